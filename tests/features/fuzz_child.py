"""Where hurt files are read: a fork of the test's process, limited in memory and time, watched for code that runs."""

import importlib
import os
import resource
import signal
import sys
import traceback
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from soak_share import SHARE

T = TypeVar("T")
SECONDS_PER_MUTATION = 30
_SLACK = 4 * 2**20  # arenas of the allocators, which grow in steps
_CODE = ("exec", "compile", "marshal.loads", "pickle.find_class", "ctypes.", "subprocess.", "os.system", "os.exec",
         "os.posix_spawn", "os.fork", "socket.")  # fmt: skip
for _name in ("cp437", "utf_16_be", "utf_16_le", "utf_32_be", "utf_32_le"):
    # json and zip find these by themselves in hurt text, and the child watches what is imported and opened.
    importlib.import_module(f"encodings.{_name}")


def soak_seeds(count: int) -> range:
    """The seeds of a soak: `count` of them, or the share that ROIBEAM_SOAK says."""
    return range(1000, 1000 + round(count * SHARE))


def in_a_child(read_all: Callable[[Callable[[str], object]], None], seeds: range) -> str:
    """Calls `read_all` in a fork.

    Args:
        read_all: reads what each seed hurts and tells one character of it.
    Returns:
        all characters; fewer than seeds, or a child that ends by a signal or an exception, fail with the seed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            read_all(lambda mark: os.write(writing, mark.encode()))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        marks = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    how = signal.Signals(-code).name if code < 0 else "an exception, printed above"
    assert code == 0 and len(marks) == len(seeds), f"{how} at seed {seeds[min(len(marks), len(seeds) - 1)]}"
    return marks


@contextmanager
def limited_time(seconds: int = SECONDS_PER_MUTATION) -> Any:
    """The process is killed by SIGALRM when one mutation takes so long."""
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def watch(folder: Path) -> list[str]:
    """From now on, for good: code being run and files opened outside of `folder` are noted in the returned list."""
    inside, seen = os.fspath(folder), []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_CODE):
            seen.append(f"{event} {arguments[:1]!r:.200}")
        elif event == "open" and isinstance(arguments[0], str) and not arguments[0].startswith(inside):
            seen.append(f"open {arguments[0]}")

    sys.addaudithook(hook)
    return seen


def traced_peak(read: Callable[[], object]) -> int:
    """Most bytes that Python's and numpy's allocators held at once meanwhile, beyond those held before."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def watched(read: Callable[[], T], seed: int, most_bytes: int, seen: list[str]) -> T:
    """What `read` gives within its time, while nothing is `seen`; for every tenth seed also within its memory."""
    seen.clear()
    found: list[T] = []
    with limited_time():
        if seed % 10:
            found.append(read())
        else:
            peak = traced_peak(lambda: found.append(read()))
            assert peak <= most_bytes, f"{peak} bytes of memory, at most {most_bytes} are expected"
    assert not seen, seen
    return found[0]


def limit_memory(more: int) -> None:
    """Address space that the process may take beyond the most it had; allocators of C libraries count too."""
    status = Path("/proc/self/status").read_text()
    (peak,) = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmPeak:")]
    limit = peak + more + _SLACK
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
