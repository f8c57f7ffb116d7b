"""The image ids of a store at a URL from its indexes alone: no shard is copied to ask which images there are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from roibeam.features.shard.listed_manifest import listed_manifest
from roibeam.features.shard.manifest import ShardEntry, ShardManifest
from roibeam.features.shard.remote_reader import ShardObject
from roibeam.features.store import FeatureStore

_KEPT_INDEXES = 16  # some 100 bytes for each record of their shards


class IndexedIds:
    """Which ids a store holds, in the order of `FeatureStore.ids`.

    Args:
        store: at a URL; its shards are not touched.
    """

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
