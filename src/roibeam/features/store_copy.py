"""Copies of stores: the entries of several stores in key order, and the changes that a copy makes to records.

`StoreMerge` reads the order from the stores' indexes alone. `RecordChange` drops, casts or filters, and gives the
fingerprint of the changed store.
"""

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.batch import RegionFilter
from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint, feature_space_of
from roibeam.features.record.region_record import FEATURE_DTYPES, RegionRecord, TopKDistribution, top_k_of
from roibeam.features.shard.manifest import DeadLetter, ShardEntry, ShardManifest, checked_manifest
from roibeam.features.shard.reader import shard_digests
from roibeam.features.shard.writer import Repeat
from roibeam.features.store import FeatureStore
from roibeam.messages import printable


class StoredRecord(NamedTuple):
    """A record to be read: its id, the number of the store that holds it, its record digest."""

    image_id: str
    source: int
    digest: bytes


Entry = StoredRecord | DeadLetter | Repeat
_Found = tuple[bytes, int, bytes | DeadLetter]  # key, number of the store, record digest or dead letter


class StoreMerge:
    """Records and dead letters of one store that is made of several.

    An image that several stores hold with equal content is one record and equal repeats. A dead letter counts where no
    other store has a record of its image, once if several have the same.

    Memory: the dead letters, the selected ids, and 256 index rows for each shard whose range of ids covers the place
    that is read (one per store, unless ranges overlap).

    Args:
        stores: opened; the first one's record is taken where several are equal.
        selected: image ids to keep; None for all.
        is_without: whether `selected` is left out, record and dead letter, instead of kept.
    Raises:
        ValueError, OSError: when a shard manifest is missing, damaged, or not the one that its store manifest lists.
    """

    def __init__(
        self, stores: Sequence[FeatureStore], selected: Collection[str] | None = None, *, is_without: bool = False
    ) -> None:
        self._stores = stores
        self._selected = selected
        self._is_without = is_without
        self.missing: set[str] = set(selected or ())
        self.dead_letters: Counter[str] = Counter()
        self._shards: list[tuple[bytes, int, int, ShardManifest]] = []
        letters: list[_Found] = []
        for source, store in enumerate(stores):
            data = store.folder.read_many(entry.manifest for entry in store.manifest.shards)
            for entry, (_, content) in zip(store.manifest.shards, data, strict=True):
                manifest = _manifest_of(store, entry, content)
                letters += [(_key(letter.image_id), source, letter) for letter in manifest.dead_letters]
                if manifest.first_id is not None:
                    bare = replace(manifest, dead_letters=(), stats={})
                    self._shards.append((_key(manifest.first_id), source, entry.shard, bare))
        self._letters = sorted(letters, key=itemgetter(0, 1))
        self._shards.sort(key=itemgetter(0, 1, 2))

    @property
    def num_entries(self) -> int:
        """Most entries that can come: records and dead letters of the stores, or selected ids."""
        if self._selected is not None and not self._is_without:
            return len(self._selected)
        return sum(len(store) for store in self._stores) + len(self._letters)

    def entries(self) -> Iterator[Entry]:
        """Every entry in key order, the same ones each time for the same stores.

        Afterwards `missing` holds the selected ids that no store has a record or dead letter of, and `dead_letters`
        counts by reason those that came. Raises ValueError naming image and stores, when two hold one image with
        different content, or one holds it twice; naming the file, when an index is damaged."""
        self.missing = set(self._selected or ())
        self.dead_letters.clear()
        rows: Iterator[_Found] = self._rows()
        merged = heapq.merge(rows, self._letters, key=itemgetter(0))
        for key, group in groupby(merged, key=itemgetter(0)):
            image_id = _image_id(key)
            if self._selected is not None:
                self.missing.discard(image_id)
                if (image_id in self._selected) == self._is_without:
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
        seen: set[DeadLetter] = set()
        for _, source, what in found:
            if isinstance(what, DeadLetter) and what not in seen and (not records or source in holders):
                seen.add(what)
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


def _manifest_of(store: FeatureStore, entry: ShardEntry, data: bytes | None) -> ShardManifest:
    def read(name: str) -> bytes:
        return data if data is not None and name == entry.manifest else store.folder.read_bytes(name)

    return checked_manifest(read, entry, store.folder.where(entry.manifest))[0]


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


COPY_DTYPES = ("float16", "float32")


class DoesNotFitError(ValueError):
    """One record cannot be changed as requested; the others may."""


@dataclass(frozen=True)
class RecordChange:
    """The change, the same for all records; ValueError for another dtype or distribution.

    Attributes:
        dtype: of the features, one of `COPY_DTYPES`; None keeps that of the record. Every float16 and bfloat16 value
            is a float32; the other way values are rounded, and one beyond the range does not fit.
        distribution: "keep", "none" (left out) or "top-<k>": the k best classes and the rest mass.
        regions: which to keep; None for all.
    """

    dtype: str | None = None
    distribution: str = "keep"
    regions: RegionFilter | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in COPY_DTYPES:
            raise ValueError(f"--dtype {self.dtype!r}: choose one of {', '.join(COPY_DTYPES)}")
        if self.distribution not in ("keep", "none") and self.top_k is None:
            raise ValueError(
                f"--distribution {self.distribution!r}: choose none or top-K, such as top-20, or leave it out"
            )

    @property
    def top_k(self) -> int | None:
        """k of "top-<k>", else None."""
        return top_k_of(self.distribution)

    def to_json(self) -> dict[str, Any]:
        """Plain values; those that change nothing are None or "keep"."""
        return asdict(self)

    def apply(self, record: RegionRecord) -> RegionRecord:
        """The changed record; `record` itself when nothing changes.

        Raises:
            DoesNotFitError: naming the record, when a value is beyond the range of the new dtype.
            ValueError: naming the record, when it has fewer classes than the requested top-k, or none.
        """
        changed: dict[str, Any] = {}
        rows = None if self.regions is None else self.regions.rows(record.class_scores)
        if rows is not None:
            for name in ("boxes", "features", "class_ids", "class_scores", "attribute_ids", "attribute_scores"):
                value = getattr(record, name)
                changed[name] = None if value is None else value[rows]
            changed["class_distribution"] = _rows_of(record.class_distribution, rows)
        if self.dtype is not None and self.dtype != record.feature_dtype:
            changed["features"] = _cast(changed.get("features", record.features), self.dtype, record.image_id)
            if record.image_feature is not None:
                changed["image_feature"] = _cast(record.image_feature, self.dtype, record.image_id)
        if self.distribution != "keep":
            kept = changed.get("class_distribution", record.class_distribution)
            changed["class_distribution"] = None if self.top_k is None else _top_k(kept, self.top_k, record.image_id)
        return replace(record, **changed) if changed else record

    def fingerprint(self, before: Fingerprint, stored_dtype: str | None) -> Fingerprint:
        """The fingerprint of a store whose records, features in `stored_dtype` (None without records), were changed so.

        Dtype and choice of regions are part of the feature space; the class distribution is not. A store in float32
        that was copied to float16 is in the space of an extraction in float16. The other way it is in a space of its
        own ("rounded_to" names the narrower dtype), which copying back leaves again.
        """
        # A store may lack the fields that its space is the hash of; then the space itself stands for them.
        stated = before.details or {"feature_space": before.feature_space}
        details = dict(stated)
        old = stored_dtype or details.get("feature_dtype")
        if self.dtype is not None and old not in (None, self.dtype):
            rounded = [*_listed(details.pop("rounded_to", [])), *([] if old == "float32" else [old])]
            if rounded and rounded[-1] == self.dtype:
                rounded.pop()
            details |= {"feature_dtype": self.dtype} | ({"rounded_to": rounded} if rounded else {})
        if self.regions is not None and self.regions != RegionFilter():
            details["region_filters"] = [*_listed(details.get("region_filters", [])), asdict(self.regions)]
        if details == stated:
            return before
        imported = before.feature_space.startswith(IMPORTED_PREFIX)
        space = before.feature_space if imported else feature_space_of(details)
        return Fingerprint(space, before.numerics, details)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]  # a stranger's store may have anything here


def _cast(values: np.ndarray, dtype: str, image_id: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = values.astype(FEATURE_DTYPES[dtype])
    if not np.isfinite(cast).all():
        largest = float(np.abs(values.astype(np.float32)).max())
        raise DoesNotFitError(
            f"record {image_id!r}: a feature of {largest:.6g} is beyond {dtype}, which ends at "
            f"{float(np.finfo(dtype).max):.6g}; float32 holds it"
        )
    return cast


def _rows_of(
    distribution: np.ndarray | TopKDistribution | None, rows: np.ndarray
) -> np.ndarray | TopKDistribution | None:
    if isinstance(distribution, TopKDistribution):
        return replace(
            distribution,
            class_ids=distribution.class_ids[rows],
            probabilities=distribution.probabilities[rows],
            rest=distribution.rest[rows],
        )
    return None if distribution is None else distribution[rows]


def _top_k(distribution: np.ndarray | TopKDistribution | None, k: int, image_id: str) -> TopKDistribution:
    """The k best; ties go to the lower class id. The rest mass is what they lack to 1, so the way there (at once, or
    over a larger k) does not matter."""
    if distribution is None:
        raise ValueError(
            f"record {image_id!r} has no class distribution to take the best {k} of; leave --distribution out, or "
            f"choose none"
        )
    if isinstance(distribution, TopKDistribution):
        ids, best, num_classes = distribution.class_ids, distribution.probabilities, distribution.num_classes
    else:
        ids, best, num_classes = None, distribution, distribution.shape[1] - 1
    if k > best.shape[1]:
        raise ValueError(f"record {image_id!r} has {best.shape[1]} class probabilities per region, top-{k} needs more")
    if ids is None:
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]
        ids, best = order.astype(np.uint16), np.take_along_axis(best, order, axis=1)
    elif k == best.shape[1]:
        assert isinstance(distribution, TopKDistribution)
        return distribution
    ids, best = np.ascontiguousarray(ids[:, :k]), np.ascontiguousarray(best[:, :k])
    rest = np.clip(1.0 - best.sum(axis=1, dtype=np.float64), 0.0, 1.0)
    return TopKDistribution(ids, best, rest.astype(np.float16), num_classes)
