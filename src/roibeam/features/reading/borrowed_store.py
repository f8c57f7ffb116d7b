"""A store for a command that reads it and goes: its folder, or a URL whose shards lie in a scratch folder meanwhile."""

from __future__ import annotations

import heapq
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from roibeam.features.folders.folder_choice import is_at_url
from roibeam.features.folders.scratch_folder import scratch_folder
from roibeam.features.shard.manifest import ShardEntry
from roibeam.features.store import FeatureStore

_FREE_SHARE = 0.5  # of a scratch disk that shards may take beyond what must be there


@contextmanager
def borrowed_store(
    location: str | os.PathLike[str], *, scratch: str | None = None, keep_damaged: bool = False
) -> Iterator[FeatureStore]:
    """The store in a folder, or at a URL, for a command that reads it once from its first id to its last.

    Shards of a URL lie in a scratch folder while they are read, and are gone afterwards. No shard is held in memory.
    Room is needed for as many of the largest shards as cover one id, and one more; where the disk has more, half of
    what is free is used, so that a second pass need not copy them again.

    Args:
        scratch: parent of that folder; None for the machine's temporary folder.
        keep_damaged: see `StagedStore`.
    Raises:
        FileNotFoundError, OSError, ValueError: as `open_store`.
    """
    if not is_at_url(location):
        with FeatureStore(location) as store:
            yield store
        return
    # Not above: it needs fsspec, which reading a local store can do without.
    from roibeam.features.reading.staging import StagedStore

    url = str(location)
    with scratch_folder(scratch) as folder:
        with StagedStore(url, folder / "looked-at") as looked:
            shards = looked.manifest.shards
        needed = needed_room(shards)
        total = sum(entry.data_bytes for entry in shards)
        room = max(needed, min(total, int(shutil.disk_usage(folder).free * _FREE_SHARE)))
        with StagedStore(url, folder / "shards", max_bytes=max(room, 1), keep_damaged=keep_damaged) as store:
            yield store


def needed_room(shards: Sequence[ShardEntry]) -> int:
    """Bytes of the largest shards, of as many as cover one id and one more: what a reader in key order has open."""
    ends: list[str] = []  # heap: last ids of the shards that cover the place
    most = 0
    for entry in sorted((entry for entry in shards if entry.num_records), key=lambda entry: entry.first_id or ""):
        while ends and ends[0] < (entry.first_id or ""):
            heapq.heappop(ends)
        heapq.heappush(ends, entry.last_id or "")
        most = max(most, len(ends))
    return sum(heapq.nlargest(most + 1, (entry.data_bytes for entry in shards)))
