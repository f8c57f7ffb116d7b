"""Float32 arithmetic that is float32, whatever the caller has switched on; for threads that share one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

_lock = threading.Lock()
_inside = 0  # calls of all threads that are inside now
_before = contextlib.ExitStack()  # puts the caller's switches back


@contextlib.contextmanager
def plain_float32(device: torch.device) -> Iterator[None]:
    """Inside, arithmetic is float32 on every device.

    torch lets CUDA convolutions round to TF32 by default, `set_float32_matmul_precision` does so to matrix products (to
    bfloat16 on CPUs), and a surrounding autocast halves everything; all change features unsaid. The switches are global
    to the process: the first to come in sets them, the last to go out, in whichever thread, puts back what was there.
    """
    global _inside
    with _lock:
        if not _inside:
            _set_switches()
        _inside += 1
    try:
        with torch.autocast(device.type, enabled=False):  # a matter of each thread
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _before.close()


def _set_switches() -> None:
    backends: Any = torch.backends
    precisions = (backends.cudnn.conv, backends.cuda.matmul, backends.mkldnn.conv, backends.mkldnn.matmul)
    exact: list[tuple[Any, str, Any]] = [
        (part, "fp32_precision", "ieee") for part in precisions if part.fp32_precision not in ("none", "ieee")
    ]
    exact += [(backends.cudnn, "benchmark", False), (backends.cudnn, "deterministic", True)]
    for part, name, value in exact:
        _before.callback(setattr, part, name, getattr(part, name))
        setattr(part, name, value)
