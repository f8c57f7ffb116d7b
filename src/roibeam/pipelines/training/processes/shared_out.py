"""Items that all processes of a run work on together, as one process would alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Found = TypeVar("Found")


def shared_out(
    items: Sequence[Item], batch_size: int, work: Callable[[Sequence[Item]], Iterable[Found]]
) -> list[Found]:
    """What `work` finds for each item, in their order. Every process calls it alike, and gets the same.

    Batches of `batch_size` fall to the processes in turn. So a batch has the items that it has in one process alone,
    and numbers that depend on what shares a batch are the same to the bit.

    Args:
        work: some of the items, whole batches of them -> one thing for each, which is pickled.
    Raises:
        ValueError: in all processes, where `work` raises one in any of them.
    """
    rank, num_ranks = 0, 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if num_ranks == 1:
        return list(work(items))
    places = [
        [place for place in range(len(items)) if place // batch_size % num_ranks == each] for each in range(num_ranks)
    ]
    own: list[Found] | ValueError
    try:
        own = list(work([items[place] for place in places[rank]]))
    except ValueError as error:
        own = error  # else the others would wait for this process
    parts: list[Any] = [None] * num_ranks
    torch.distributed.all_gather_object(parts, own if isinstance(own, list) else str(own))
    if isinstance(own, ValueError):
        raise own
    found: list[Any] = [None] * len(items)
    for of_rank, part in zip(places, parts, strict=True):
        if isinstance(part, str):
            raise ValueError(part)
        for place, each in zip(of_rank, part, strict=True):
            found[place] = each
    return found
