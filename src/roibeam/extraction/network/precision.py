"""Plain float32 arithmetic, or TF32 in convolutions on request, for any settings of the caller; for threads that share
one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_lock = threading.Condition()
_inside = 0  # calls of all threads that are inside now, all of one kind
_tf32 = False  # which kind
_before = contextlib.ExitStack()  # puts the caller's switches back


@contextlib.contextmanager
def plain_float32(device: torch.device, *, tf32: bool = False) -> Iterator[None]:
    """Context in which arithmetic is float32 on every device.

    torch lets CUDA convolutions round to TF32 by default, `set_float32_matmul_precision` does so to matrix products (to
    bfloat16 on CPUs), and a surrounding autocast halves everything; all change features silently. The switches are
    global to the process: the first thread to enter sets them, the last to leave restores the former ones.

    Args:
        tf32: whether CUDA's convolutions round to TF32; other products do not. A thread waits while others are
            inside with the other value; none may request both.
    """
    global _inside, _tf32
    with _lock:
        _lock.wait_for(lambda: not _inside or _tf32 == tf32)
        if not _inside:
            _set_switches("tf32" if tf32 else "ieee")
            _tf32 = tf32
        _inside += 1
    try:
        with torch.autocast(device.type, enabled=False):  # a matter of each thread
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _before.close()
                _lock.notify_all()


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half-precision numbers widened; float64 stays, so that weights of it train in it."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _set_switches(convolutions: str) -> None:
    backends: Any = torch.backends
    always = (backends.cuda.matmul, backends.mkldnn.conv, backends.mkldnn.matmul)
    wanted: list[tuple[Any, str, Any]] = [
        (part, "fp32_precision", precision)
        for parts, precision in (((backends.cudnn.conv,), convolutions), (always, "ieee"))
        for part in parts
        # "none" is the value of a part that follows a switch above it which has none: float32.
        if part.fp32_precision != precision and (part.fp32_precision, precision) != ("none", "ieee")
    ]
    wanted += [(backends.cudnn, "benchmark", False), (backends.cudnn, "deterministic", True)]
    for part, name, value in wanted:
        _before.callback(setattr, part, name, getattr(part, name))
        setattr(part, name, value)
