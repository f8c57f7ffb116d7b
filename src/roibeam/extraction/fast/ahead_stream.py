"""What a GPU can do ahead: the maps and the proposals of photos, while the regions of those before are described."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def queued_apart(
    device: torch.device, name: str, work: Callable[[], Result], *, after: torch.cuda.Event | None = None
) -> tuple[Result, torch.cuda.Event | None]:
    """Work that does not wait for what the caller has queued on the device before, and goes first. On other devices
    than CUDA's it is just done.

    Args:
        name: of the queue; works of one name are done in their order.
        work: what it makes and the caller uses later must be `handed_over` to the caller's stream.
        after: what it waits for.
    Returns:
        The result, and what to wait for before the result is used (`wait_for`).
    """
    if device.type != "cuda":
        return work(), None
    stream = _stream(device, name)
    if after is not None:
        stream.wait_event(after)
    with torch.cuda.stream(stream):
        return work(), stream.record_event()


def wait_for(done: torch.cuda.Event | None) -> None:
    """What the caller queues from now on waits for it."""
    if done is not None:
        torch.cuda.current_stream().wait_event(done)


def handed_over(*tensors: torch.Tensor) -> None:
    """Keeps the memory of tensors that were made in another stream until the work of this one on them is done."""
    for tensor in tensors:
        if tensor.device.type == "cuda":
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


@functools.cache
def _stream(device: torch.device, name: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)
