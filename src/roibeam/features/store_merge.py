"""The entries of several stores as one stream in key order, read from their indexes alone."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from roibeam.features.printable import printable
from roibeam.features.shard.listed_manifest import listed_manifest
from roibeam.features.shard.manifest import DeadLetter, ShardEntry, ShardManifest
from roibeam.features.shard.remote_reader import shard_digests
from roibeam.features.shard.sequence import Repeat
from roibeam.features.store import FeatureStore


class StoredRecord(NamedTuple):
    """A record to be read: its id, the number of the store that holds it, its record digest."""

    image_id: str
    source: int
    digest: bytes


Entry = StoredRecord | DeadLetter | Repeat
_Found = tuple[bytes, int, bytes | DeadLetter]  # key, number of the store, record digest or dead letter


class StoreMerge:
    """Which records and dead letters one store made of these has.

    An image that several stores hold with equal content is one record and equal repeats. A dead letter counts where no
    other store has a record of its image, once if several say the same.

    Memory: the dead letters, the ids asked for, and 256 index rows for each shard whose range of ids covers the place
    that is read (one per store, unless ranges overlap).

    Args:
        stores: opened; the first one's record is taken where several are equal.
        asked: image ids to keep; None for all.
        is_without: whether `asked` names the images that are left out, record and dead letter, in place of those kept.
    Raises:
        ValueError, OSError: when a shard manifest is missing, damaged, or not the one that its store manifest lists.
    """

    def __init__(
        self, stores: Sequence[FeatureStore], asked: Collection[str] | None = None, *, is_without: bool = False
    ) -> None:
        self._stores = stores
        self._asked = asked
        self._is_without = is_without
        self.missing: set[str] = set(asked or ())
        self.dead_letters: Counter[str] = Counter()
        self._shards: list[tuple[bytes, int, int, ShardManifest]] = []
        letters: list[_Found] = []
        for source, store in enumerate(stores):
            data = store.folder.read_many(entry.manifest for entry in store.manifest.shards)
            for entry, (_, content) in zip(store.manifest.shards, data, strict=True):
                manifest = _checked_manifest(store, entry, content)
                letters += [(_key(letter.image_id), source, letter) for letter in manifest.dead_letters]
                if manifest.first_id is not None:
                    bare = replace(manifest, dead_letters=(), stats={})
                    self._shards.append((_key(manifest.first_id), source, entry.shard, bare))
        self._letters = sorted(letters, key=itemgetter(0, 1))
        self._shards.sort(key=itemgetter(0, 1, 2))

    @property
    def num_entries(self) -> int:
        """Records and dead letters of the stores, or ids asked for: as many entries come at most."""
        if self._asked is not None and not self._is_without:
            return len(self._asked)
        return sum(len(store) for store in self._stores) + len(self._letters)

    def entries(self) -> Iterator[Entry]:
        """Every entry in key order, the same ones each time for the same stores.

        Afterwards `missing` holds the ids asked for that no store has a record or dead letter of, and `dead_letters`
        counts by reason those that came.

        Raises:
            ValueError: naming image and stores, when two hold one image with different content, or one holds it twice;
                naming the file, when an index is damaged.
        """
        self.missing = set(self._asked or ())
        self.dead_letters.clear()
        rows: Iterator[_Found] = self._rows()
        merged = heapq.merge(rows, self._letters, key=itemgetter(0))
        for key, group in groupby(merged, key=itemgetter(0)):
            image_id = _image_id(key)
            if self._asked is not None:
                self.missing.discard(image_id)
                if (image_id in self._asked) == self._is_without:
                    continue
            yield from self._of_one_image(image_id, list(group))

    def _of_one_image(self, image_id: str, found: list[_Found]) -> Iterator[Entry]:
        records = [(source, what) for _, source, what in found if isinstance(what, bytes)]
        for source, digest in records[1:]:
            first, path = records[0], self._stores[source].folder
            if source == first[0]:
                raise ValueError(f"{path}: image id {image_id!r} is in two of its shards; `roibeam store verify` it")
            if digest != first[1]:
                raise ValueError(
                    f"image id {image_id!r} has different content in {self._stores[first[0]].folder} and {path}; "
                    f"`roibeam store diff` shows how they differ, --ids copies a part of one; two images of one name "
                    f"need ids of their own: extract one source again with --id-prefix"
                )
        if records:
            yield StoredRecord(image_id, *records[0])
        for source, _ in records[1:]:
            yield Repeat(image_id, str(self._stores[source].folder))
        holders = {source for source, _ in records}
        said: set[DeadLetter] = set()
        for _, source, what in found:
            if isinstance(what, DeadLetter) and what not in said and (not records or source in holders):
                said.add(what)
                self.dead_letters[what.reason] += 1
                yield what

    def _rows(self) -> Iterator[_Found]:
        """(key, source, record digest) of all stores in key order; a shard's file is looked at from its first id on."""
        waiting = deque(self._shards)
        streams: list[tuple[bytes, int, int, bytes, Iterator[tuple[bytes, bytes]]]] = []
        while waiting or streams:
            while waiting and (not streams or waiting[0][0] <= streams[0][0]):
                first_key, source, shard, manifest = waiting.popleft()
                assert manifest.data_file is not None
                stream = shard_digests(self._stores[source].folder, manifest)
                key, digest = next(stream)
                if key != first_key:
                    raise self._disordered(source, manifest.data_file, key)
                heapq.heappush(streams, (key, source, shard, digest, stream))
            key, source, shard, digest, stream = streams[0]
            yield key, source, digest
            following = next(stream, None)
            if following is None:
                heapq.heappop(streams)
                continue
            if following[0] <= key:
                raise self._disordered(source, f"shard {shard}", following[0])
            heapq.heapreplace(streams, (following[0], source, shard, following[1], stream))

    def _disordered(self, source: int, where: str, key: bytes) -> ValueError:
        name = printable(key.decode("utf-8", "replace"))
        return ValueError(
            f"{self._stores[source].folder}: {where}: image id {name!r} is not in its place in key order; the index is "
            f"damaged: copy the file again or re-extract the shard"
        )


def _checked_manifest(store: FeatureStore, entry: ShardEntry, data: bytes | None) -> ShardManifest:
    where = store.folder.where(entry.manifest)

    def read(name: str) -> bytes:
        return data if data is not None and name == entry.manifest else store.folder.read_bytes(name)

    listed, digest, _ = listed_manifest(read, entry, where)
    manifest = ShardManifest.from_bytes(listed, where)
    if ShardEntry.of(manifest, manifest_sha256=digest) != entry:
        raise ValueError(
            f"{where}: is not the manifest that manifest.json was made from; finish the run that changed it, or verify "
            f"the store"
        )
    return manifest


def _key(image_id: str) -> bytes:
    return image_id.encode("utf-8", "surrogatepass")  # dead letters may have ids that no record can have


def _image_id(key: bytes) -> str:
    try:
        return key.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ValueError(
            f"a record has the key {printable(repr(key))}, which is not UTF-8; the index is damaged: `roibeam store "
            f"verify` tells which file"
        ) from None
