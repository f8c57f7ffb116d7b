"""Stores read by one command: temporary copies of those at URLs, ids without a copy, and notes on unfinished runs.

Shards of a URL lie in a scratch folder while they are read. An unreadable plan is no matter of a reader: `verify_store`
reports it.
"""

import heapq
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from roibeam.features.folders.durable_files import scratch_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.local_folder import is_at_url
from roibeam.features.shard.manifest import (
    ShardEntry,
    ShardManifest,
    StoreManifest,
    UnfinishedRun,
    listed_manifest,
    unfinished_run,
)
from roibeam.features.shard.reader import ShardObject
from roibeam.features.store import FeatureStore

_FREE_SHARE = 0.5  # of a scratch disk that shards may take beyond what must be there


@contextmanager
def local_store(
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


_KEPT_INDEXES = 16  # some 100 bytes for each record of their shards


class IndexedIds:
    """Ids of a store at a URL, in the order of `FeatureStore.ids`; its shards are not touched."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._indexes: OrderedDict[int, ShardObject] = OrderedDict()

    def __iter__(self) -> Iterator[str]:
        for entry in self._store.manifest.shards:
            if entry.num_records:
                yield from (key.decode("utf-8") for key, _ in self._index(entry).digests())

    def __contains__(self, image_id: object) -> bool:
        if not isinstance(image_id, str):
            return False
        return any(image_id in self._index(entry) for entry in self._store.shards_covering(image_id))

    def _index(self, entry: ShardEntry) -> ShardObject:
        if entry.shard not in self._indexes:
            folder = self._store.folder
            where = folder.where(entry.manifest)
            manifest = ShardManifest.from_bytes(listed_manifest(folder.read_bytes, entry, where).data, where)
            self._indexes[entry.shard] = ShardObject(folder, manifest)
            while len(self._indexes) > _KEPT_INDEXES:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(entry.shard)
        return self._indexes[entry.shard]


def unfinished_run_of(folder: OutputFolder, manifest: StoreManifest) -> UnfinishedRun | None:
    """`unfinished_run`, or None where the plan cannot be read."""
    try:
        return unfinished_run(folder, manifest)
    except (OSError, ValueError):
        return None


def unfinished_lines(stores: Iterable[FeatureStore]) -> list[str]:
    """A line for each store that a run has not finished; it is read as it is."""
    found = ((store.folder, unfinished_run_of(store.folder, store.manifest)) for store in stores)
    return [f"{folder}: {unfinished}; run the same command again" for folder, unfinished in found if unfinished]
