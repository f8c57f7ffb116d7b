"""Work that the processes of a run share: items shared out among them, and files that others write."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from roibeam.messages import plural

Item = TypeVar("Item")
Found = TypeVar("Found")


def shared_out(
    items: Sequence[Item], batch_size: int, work: Callable[[Sequence[Item]], Iterable[Found]]
) -> list[Found]:
    """Results of `work` for each item, in order. Every process calls it alike, and gets the same.

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


logger = logging.getLogger(__name__)

_SECONDS = 0.2  # between two looks
_WARN_AFTER, _WARN_AGAIN = 60.0, 600.0  # seconds until a warning names the missing files
_GONE_AFTER = 600.0  # seconds without the process that writes a file: launched ones come within seconds of each other


def wait_for_files(
    files: Sequence[Path],
    is_whole: Callable[[Path], bool] = Path.is_file,
    is_at_work: Callable[[Path], bool] = lambda _file: True,
) -> None:
    """Returns when all are whole; a launcher ends this process when another one fails.

    After a minute a warning names the missing files: machines that share no disk would wait for ever.

    Args:
        is_at_work: whether the process that writes a file exists.
    Raises:
        ValueError: if the process of a missing file was gone for ten minutes.
    """
    begin = seen_at = time.monotonic()
    warn_at, missing = begin + _WARN_AFTER, list(files)
    while missing := [file for file in missing if not is_whole(file)]:
        now = time.monotonic()
        if now >= warn_at:
            warn_at += _WARN_AGAIN
            logger.warning(
                "waiting for %s of %s that other processes write, such as %s; if there are several machines, all must "
                "share this folder", f"{len(missing):,}", plural(len(files), "file"), missing[0].absolute(),
            )  # fmt: skip
        if all(map(is_at_work, missing)):
            seen_at = now
        elif now - seen_at > _GONE_AFTER:
            raise ValueError(
                f"{missing[0]}: is missing, and no process that would write it is at work; run the same command again "
                f"with as many processes, and it goes on from the other parts"
            )
        time.sleep(_SECONDS)
