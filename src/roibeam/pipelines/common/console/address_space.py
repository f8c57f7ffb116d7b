"""A limit on the address space (`ulimit -v`): one line, wherever it is reached.

A library that runs out of address space while it is loaded ends in an ImportError, in a MemoryError without a word, or
in C++, which ends the process; chance says in which. So under too small a limit torch is not begun with, and under a
still smaller one nothing is. Under a larger one C++ can end the process as well, where it starts a thread (OpenMP,
OpenBLAS) or builds an error. No code of ours runs then; so a second process, which is there only under a limit, waits
for the end and says the line.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import select
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

# Most that `roibeam extract` of a photo by the toy detector had, with torch 2.15 of CUDA 13 on two cores, was 4.2 GB,
# of which 2.4 GB are CUDA's libraries. Threads and models take more; that is told where it is missing.
_NEEDED_BYTES = 4_500_000_000
_OF_CUDA_BYTES = 2_400_000_000
# `roibeam --version` mapped 0.53 GB, mostly for numpy, pyarrow and OpenCV; each further thread of OpenBLAS 0.18 GB.
_NEEDED_BY_ALL_BYTES = 600_000_000
_CURE = "raise the limit (such as ulimit -v 9000000), or take it away (ulimit -v unlimited)"


def address_space_limit() -> int | None:
    """Bytes that this process may map; None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def refuse_the_smallest_limit() -> None:
    """To be called before anything large is imported.

    Raises:
        MemoryError: if the limit is below what the libraries of every command map.
    """
    limit = address_space_limit()
    if limit is not None and limit < _NEEDED_BY_ALL_BYTES:
        needed = f"every command needs {_NEEDED_BY_ALL_BYTES / 1e9:.1f} GB for the libraries alone"
        raise MemoryError(f"the address space is limited to {limit / 1e9:.2f} GB, and {needed}; {_CURE}")


def refuse_torch_under_a_small_limit() -> None:
    """From now on `import torch` is a MemoryError of one line, if the limit is below what its libraries map."""
    limit = address_space_limit()
    spec = importlib.util.find_spec("torch") if limit is not None else None
    if limit is None or spec is None or spec.origin is None:
        return
    has_cuda = (Path(spec.origin).parent / "lib" / "libtorch_cuda.so").exists()
    needed = _NEEDED_BYTES - (0 if has_cuda else _OF_CUDA_BYTES)
    if limit < needed:
        # Numpy would start as many as there are cores; what needs no torch multiplies no large matrices.
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        said = (
            f"the address space is limited to {limit / 1e9:.1f} GB, and this command needs {needed / 1e9:.1f} GB for "
            f"the libraries alone; {_CURE}"
        )
        sys.meta_path.insert(0, _NoTorch(said))


class _NoTorch:
    """Finds torch, so that whoever only asks whether it is installed is told so, and does not load it."""

    def __init__(self, said: str) -> None:
        self._said = said

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "torch" else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        raise MemoryError(self._said)

    def exec_module(self, module: ModuleType) -> None:
        raise MemoryError(self._said)


def told_when_it_ends_unsaid() -> Callable[[], None]:
    """Starts the process that says one line, if this one ends by no exit of ours; does nothing without a limit.

    Returns:
        what is called when the process is about to end in good order, or with a line of its own.
    """
    limit = address_space_limit()
    if limit is None or not hasattr(os, "pidfd_open"):
        return lambda: None
    this = os.pidfd_open(os.getpid())
    reading, writing = os.pipe()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        # A child of a child is nobody's: whoever waits for any child of this process does not meet it.
        if not os.fork():
            _wait_and_tell(this, reading, writing, limit)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(this)
    os.close(reading)
    return lambda: _say_goodbye(writing)


def _say_goodbye(writing: int) -> None:
    os.write(writing, b".")
    os.close(writing)


def _wait_and_tell(process: int, reading: int, writing: int, limit: int) -> None:
    """
    Args:
        process: its file descriptor, which can be read when it has ended.
        reading: end of the pipe on which it says that it ends in good order.
    """
    os.setsid()  # Ctrl-C is not for this process
    for each in (0, 1, writing):  # who reads the output must not wait for this process
        os.close(each)
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    waiting.poll()
    os.set_blocking(reading, False)
    try:
        is_said = os.read(reading, 1) == b"."
    except BlockingIOError:  # nothing, and another process still has the other end
        is_said = False
    if not is_said:
        line = f"the process has ended without a word, and its address space was limited to {limit / 1e9:.1f} GB"
        os.write(2, f"roibeam: not enough memory, it seems: {line}; {_CURE}\n".encode())
