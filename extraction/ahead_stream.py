"""What a GPU can do ahead: the map and the proposals of a photo, while the regions of the one before are described."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def ahead_of_queue(device: torch.device) -> Iterator[None]:
    """Inside, work does not wait for what the caller has queued on the device before, and goes first; afterwards the
    caller's own work waits for it. On other devices than CUDA's this does nothing.

    What is made inside and used afterwards must be `handed_over`.
    """
    if device.type != "cuda":
        yield
        return
    stream = _stream_ahead(device)
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


def handed_over(*tensors: torch.Tensor) -> None:
    """Keeps the memory of tensors that were made ahead until the caller's work on them is done."""
    for tensor in tensors:
        if tensor.device.type == "cuda":
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


@functools.cache
def _stream_ahead(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)
