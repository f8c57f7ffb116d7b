"""Writing of shards and stores: records to one LMDB file with its offset index, then the manifests that publish it.

A shard's manifest comes after its data file, the store's manifest after all shards. `ShardWriter` takes the records of
one shard in any order. `write_shard_sequence` takes outcomes in key order and publishes shards 0, 1, 2, ...: so an
import, a copy and `StoreWriter` write a store.
"""

import hashlib
import heapq
import mmap
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

from roibeam.features.folders.durable_files import fsync_folder, json_bytes
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.record.region_record import (
    RegionRecord,
    TopKDistribution,
    content_digest,
    merge_digests,
    record_digest,
)
from roibeam.features.shard.layout import encode_meta, encode_regions
from roibeam.features.shard.lmdb_file import COMMIT_BYTES, GrowingLmdb, IndexRow, LmdbPages, encode_index
from roibeam.features.shard.manifest import (
    STORE_MANIFEST_NAME,
    AnnotationsEntry,
    DeadLetter,
    ShardEntry,
    ShardManifest,
    ShardSummary,
    StoreManifest,
    data_file_name,
    shard_manifest_name,
)
from roibeam.features.shard.reader import shard_digests
from roibeam.messages import check_list

META_DATABASE, REGIONS_DATABASE, INDEX_DATABASE = b"meta", b"regions", b"index"
INDEX_KEY = b"v1"


class ShardWriter:
    """Writes one data file; use it as a context manager. Raises ValueError when `path` exists.

    Leaving the block without `finish` deletes the file, so a failed attempt leaves nothing that could be taken for a
    shard.

    Args:
        path: the data file; must not exist (two attempts never share a file).
        planned_bytes: expected size of all values; see `GrowingLmdb`. The file only ever has the size of its pages.
        commit_bytes: values per transaction; the writer's memory is about twice this.
    """

    def __init__(self, path: str | os.PathLike[str], *, planned_bytes: int, commit_bytes: int = COMMIT_BYTES) -> None:
        if planned_bytes < 0 or commit_bytes < 1:
            raise ValueError(f"planned_bytes {planned_bytes} and commit_bytes {commit_bytes} must be positive")
        self.path = Path(path)
        self._records: dict[bytes, tuple[int, bytes]] = {}  # key -> number of regions, record digest
        self._kind: tuple[int, str] | None = None  # feature_dim, feature dtype of every record
        self._largest_key = b""
        try:
            with open(self.path, "xb"):
                pass
        except FileExistsError:
            raise ValueError(
                f"{self.path}: exists already; a data file is never written over, name another attempt"
            ) from None
        try:
            self._lmdb = GrowingLmdb(
                self.path,
                subdir=False,
                map_bytes=planned_bytes + planned_bytes // 16,
                commit_bytes=commit_bytes,
                databases=(META_DATABASE, REGIONS_DATABASE, INDEX_DATABASE),
            )
        except BaseException:
            self.path.unlink(missing_ok=True)
            raise
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    @property
    def num_records(self) -> int:
        return len(self._records)

    def put(self, record: RegionRecord) -> None:
        """Adds one record; ascending ids pack the tree best, any order is right. Raises ValueError for an id that is
        there already, or features of another width or dtype than the records before."""
        self._check_open()
        key = record.image_id.encode("utf-8")
        if key in self._records:
            raise ValueError(f"{self.path}: image id {record.image_id!r} is there already; ids are unique in a store")
        kind = (record.features.shape[1], record.feature_dtype)
        if self._kind not in (None, kind):
            raise ValueError(
                f"{self.path}: record {record.image_id!r} has features {kind}, the records before it {self._kind}; "
                f"one store holds one width and dtype"
            )
        meta, regions = encode_meta(record), encode_regions(record)
        append = key > self._largest_key
        for database, value in ((META_DATABASE, meta), (REGIONS_DATABASE, regions)):
            stored = self._lmdb.put(key, value, database, append=append)
            assert stored, "duplicates were refused before"
        self._records[key] = (record.num_regions, record_digest(record))
        self._kind = kind
        self._largest_key = max(self._largest_key, key)
        if self._lmdb.is_due:
            self._lmdb.commit()

    def finish(self) -> ShardSummary:
        """Commits, adds the offset index, makes the file durable and closes it.

        Returns:
            What the shard manifest needs. Without records the file is deleted and the summary is the empty one.
        """
        self._check_open()
        if self._kind is None:
            self.discard()
            return ShardSummary()
        try:
            self._lmdb.commit()
            rows = self._rows()
            index = encode_index(rows, feature_dim=self._kind[0], feature_dtype=self._kind[1])
            self._lmdb.put(INDEX_KEY, index, INDEX_DATABASE)
            self._lmdb.finish()
            # LMDB is copy-on-write, so adding the index moved nothing; it costs little to know instead of believing.
            if self._rows() != rows:
                raise RuntimeError(f"{self.path}: values moved while the offset index was written; please report this")
            summary = self._summary(rows, index)
            self._lmdb.close()
            self._open = False
            # Pages beyond the last one in use are not part of the tree; without them the size gives the page count.
            os.truncate(self.path, summary.data_bytes)
            with open(self.path, "r+b") as file:
                os.fsync(file.fileno())
            fsync_folder(self.path.parent)
        except BaseException:
            self.discard()
            self.path.unlink(missing_ok=True)
            raise
        return summary

    def discard(self) -> None:
        """Closes and deletes an unfinished file; does nothing after `finish`."""
        if not self._open:
            return
        self._open = False
        self._lmdb.close()
        self.path.unlink(missing_ok=True)

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"{self.path}: this writer is finished or discarded")

    def _rows(self) -> list[IndexRow]:
        """The index rows of the committed file, in key order."""
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            pages = LmdbPages(mapped, str(self.path))
            metas, regions = pages.values(META_DATABASE), pages.values(REGIONS_DATABASE)
            rows = []
            for meta, region in zip(metas, regions, strict=True):
                assert meta.key == region.key
                rows.append(IndexRow(*meta, *region[1:], *self._records[meta.key]))
        if [row.key for row in rows] != sorted(self._records):
            raise RuntimeError(f"{self.path}: the finished tree holds other keys than were put; please report this")
        return rows

    def _summary(self, rows: list[IndexRow], index: bytes) -> ShardSummary:
        assert self._kind is not None
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            pages = LmdbPages(mapped, str(self.path))
            (place,) = pages.values(INDEX_DATABASE)
            assert mapped[place.offset : place.offset + place.length] == index
        return ShardSummary(
            data_bytes=pages.num_pages * pages.page_size,
            page_size=pages.page_size,
            num_pages=pages.num_pages,
            index_offset=place.offset,
            index_bytes=place.length,
            num_records=len(rows),
            num_regions=sum(row.num_regions for row in rows),
            feature_dim=self._kind[0],
            feature_dtype=self._kind[1],
            first_id=rows[0].key.decode("utf-8"),
            last_id=rows[-1].key.decode("utf-8"),
            content_digest=content_digest((row.key, row.digest) for row in rows),
        )


_Pair = tuple[bytes, bytes]  # key, record digest


def publish_shard(
    folder: str | os.PathLike[str] | OutputFolder, manifest: ShardManifest, *, first: bool = False
) -> bool:
    """Writes `part-<shard>.json`; the data file it names, already in its final place, is the shard from now on.

    Args:
        first: leave a manifest that is there as it is: another attempt's, at work at the same time.
    Returns:
        False when there was one; then nothing was written.
    """
    output, name, data = output_folder(folder), shard_manifest_name(manifest.shard), json_bytes(manifest.to_json())
    if first:
        return output.put_first(name, data)
    output.put_bytes(name, data)
    return True


def publish_store(
    folder: str | os.PathLike[str] | OutputFolder,
    shards: Iterable[int],
    *,
    fingerprint: Fingerprint,
    config: dict[str, Any],
    classes: Iterable[str] | None = None,
    attributes: Iterable[str] | None = None,
    annotations: AnnotationsEntry | None = None,
) -> StoreManifest:
    """Writes `manifest.json` over the published shards with these numbers; run again with more of them, the store
    grows.

    Args:
        fingerprint: of the store; every shard must have its feature space.
        config: resolved configuration of the run, JSON.
        classes, attributes: names in id order; None when unknown.
        annotations: the table of captions and labels, in its place already; None where there is none.
    Raises:
        FileNotFoundError: when a shard has no manifest or data file.
        ValueError: when shards disagree in feature space, width or dtype, hold one image twice, or a file is damaged.
    """
    check_list(classes, "classes")
    check_list(attributes, "attributes")
    folder = output_folder(folder)
    entries: list[ShardEntry] = []
    filled: list[ShardManifest] = []
    kinds: dict[tuple[int, str | None], int] = {}
    dead_letters = 0
    numbers = sorted(set(shards))
    for shard, (name, data) in zip(numbers, folder.read_many(map(shard_manifest_name, numbers)), strict=True):
        path = folder.where(name)
        if data is None:
            raise FileNotFoundError(f"{path}: the manifest of shard {shard} is missing; extract the shard again")
        manifest = ShardManifest.from_bytes(data, path)
        if manifest.shard != shard:
            raise ValueError(f"{path}: is the manifest of shard {manifest.shard}, expected {shard}; was it renamed?")
        if manifest.fingerprint.feature_space != fingerprint.feature_space:
            raise ValueError(
                f"{path}: feature space {manifest.fingerprint.feature_space}, the store's is "
                f"{fingerprint.feature_space}; "
                f"features of two detectors or conventions do not mix: extract into another folder"
            )
        dead_letters += len(manifest.dead_letters)
        if manifest.data_file is not None:
            kinds.setdefault((manifest.feature_dim, manifest.feature_dtype), shard)
            filled.append(replace(manifest, dead_letters=(), stats={}))  # small: all are kept
        entries.append(ShardEntry.of(manifest, manifest_sha256=hashlib.sha256(data).hexdigest()))
    if len(kinds) > 1:
        raise ValueError(f"{folder}: shards differ in feature width and dtype (first shard of each: {kinds})")
    feature_dim, feature_dtype = next(iter(kinds), (0, None))
    store = StoreManifest(
        fingerprint=fingerprint,
        config=config,
        classes=None if classes is None else tuple(classes),
        attributes=None if attributes is None else tuple(attributes),
        feature_dim=feature_dim,
        feature_dtype=feature_dtype,
        shards=tuple(entries),
        num_records=sum(entry.num_records for entry in entries),
        num_regions=sum(entry.num_regions for entry in entries),
        num_dead_letters=dead_letters,
        content_digest=content_digest(merge_digests(digests_in_sequences(folder, filled))),
        annotations=annotations,
    )
    folder.put_bytes(STORE_MANIFEST_NAME, json_bytes(store.to_json()))
    return store


def digests_in_sequences(folder: OutputFolder, manifests: Sequence[ShardManifest]) -> list[Iterator[_Pair]]:
    """The digests of all shards, those whose ranges of ids follow one another in one stream.

    A merge holds a place in every stream it was given, and most stores, whose shards overlap nowhere, are one.
    """
    sequences: list[list[ShardManifest]] = []
    ends: list[tuple[bytes, int]] = []  # heap: last key of each sequence, its number
    for manifest in sorted(manifests, key=lambda each: (each.first_id or "").encode("utf-8", "surrogatepass")):
        assert manifest.first_id is not None and manifest.last_id is not None
        if ends and ends[0][0] < manifest.first_id.encode("utf-8", "surrogatepass"):
            number = heapq.heappop(ends)[1]
        else:
            number = len(sequences)
            sequences.append([])
        sequences[number].append(manifest)
        heapq.heappush(ends, (manifest.last_id.encode("utf-8", "surrogatepass"), number))
    return [chain.from_iterable(map(partial(shard_digests, folder), sequence)) for sequence in sequences]


@dataclass(frozen=True)
class Repeat:
    """An entry whose image was read before, with equal content: left out, and counted."""

    image_id: str
    location: str


Outcome = RegionRecord | DeadLetter | Repeat


@dataclass(frozen=True)
class ShardOutput:
    """Output of a store: its folder or URL, and the local folder that data files are written in (the same for a
    folder)."""

    folder: OutputFolder
    work: Path


class ShardSequence:
    """Outcomes in, one by one; shards with ascending numbers out, each published when it is full.

    One data file is open at a time. Memory does not grow with the number of outcomes: one record, one LMDB transaction,
    the dead letters of one shard.

    Args:
        place: the store's folder, where it is one of this machine.
        fingerprint: feature space and numerics of the shards.
        source: what the records come from; goes into the digest of a shard's members.
        shard_size: outcomes per shard, at most; None: no such limit.
        shard_bytes: a shard also ends with the record that brings it to so many bytes of arrays; None: no such limit.
        planned_bytes: rough size of a shard, so that the map of LMDB need not grow.
        first_shard: its number; larger than 0 where earlier shards are there already.
        stats: for every manifest, beside "equal_repeats".
        before_publish: called with a finished data file (None without a record) and what was written to it; returns
            more stats, or raises what ends the writing.
    """

    def __init__(
        self,
        place: Path | ShardOutput,
        *,
        fingerprint: Fingerprint,
        source: str,
        shard_size: int | None,
        shard_bytes: int | None,
        planned_bytes: int,
        first_shard: int = 0,
        stats: dict[str, Any] | None = None,
        before_publish: Callable[[Path | None, ShardSummary], dict[str, Any]] | None = None,
    ) -> None:
        if not isinstance(place, ShardOutput):
            place = ShardOutput(output_folder(place), place)
        self._folder, self._work, self._fingerprint, self._source = place.folder, place.work, fingerprint, source
        self._shard_size, self._shard_bytes, self._planned_bytes = shard_size, shard_bytes, planned_bytes
        self._number, self._stats = first_shard, stats or {}
        self._before_publish = before_publish or (lambda _path, _summary: {})
        self._open: _OpenShard | None = None

    @property
    def number(self) -> int:
        """Number of the shard that the next outcome goes to."""
        return self._number

    def put(self, outcome: Outcome) -> ShardManifest | None:
        """Adds an outcome; the manifest of its shard where it filled one.

        Raises:
            ValueError: for records of several widths or dtypes in one shard, or one id twice in it.
            OSError: when the folder cannot be written; then `discard`.
        """
        if self._open is None:
            self._open = _OpenShard(self._work, self._number, self._source, self._planned_bytes)
        shard = self._open
        shard.put(outcome)
        is_full = self._shard_size is not None and shard.taken >= self._shard_size
        is_full |= self._shard_bytes is not None and shard.num_bytes >= self._shard_bytes
        return self.finish() if is_full else None

    def finish(self) -> ShardManifest | None:
        """Publishes the open shard; None where none is open."""
        shard = self._open
        if shard is None:
            return None
        summary = shard.writer.finish()
        path = shard.writer.path if summary.num_records else None
        try:
            more = self._before_publish(path, summary)
        except BaseException:
            if path is not None:
                path.unlink(missing_ok=True)
            raise
        manifest = ShardManifest.from_summary(
            summary,
            shard=self._number,
            attempt=shard.attempt,
            fingerprint=self._fingerprint,
            members_digest=shard.members.hexdigest(),
            dead_letters=shard.letters,
            stats={"equal_repeats": shard.repeats, **self._stats, **more},
        )
        manifest = self._published(manifest, path)
        self._open = None
        self._number += 1
        return manifest

    def _published(self, manifest: ShardManifest, path: Path | None) -> ShardManifest:
        """The manifest that counts; at a URL, where nothing is locked, that of another run which was quicker."""
        if self._folder.local_path is not None:
            publish_shard(self._folder, manifest)
            return manifest
        if path is not None and manifest.data_file is not None:
            self._folder.put_file(path, manifest.data_file)
            path.unlink(missing_ok=True)
        if publish_shard(self._folder, manifest, first=True):
            return manifest
        name = shard_manifest_name(manifest.shard)
        other = ShardManifest.from_bytes(self._folder.read_bytes(name), self._folder.where(name))
        if (other.members_digest, num_outcomes(other)) != (manifest.members_digest, num_outcomes(manifest)):
            raise ValueError(f"{self._folder.where(name)}: another run writes another store there; choose a new folder")
        if manifest.data_file is not None and manifest.data_file != other.data_file:
            self._folder.delete(manifest.data_file)
        return other

    def discard(self) -> None:
        """Deletes the open shard."""
        if self._open is not None:
            self._open.writer.discard()
            self._open = None


class _OpenShard:
    """The shard that a sequence is writing, and the contents of its manifest."""

    def __init__(self, folder: Path, number: int, source: str, planned_bytes: int) -> None:
        self.attempt = secrets.token_hex(4)
        self.writer = ShardWriter(folder / data_file_name(number, self.attempt), planned_bytes=planned_bytes)
        self.members = hashlib.sha256(source.encode("utf-8", "backslashreplace"))
        self.letters: list[DeadLetter] = []
        self.repeats = self.taken = self.num_bytes = 0

    def put(self, outcome: Outcome) -> None:
        self.members.update(outcome.image_id.encode("utf-8", "surrogatepass") + b"\0")
        if isinstance(outcome, RegionRecord):
            self.writer.put(outcome)
            self.num_bytes += _array_bytes(outcome)
        elif isinstance(outcome, DeadLetter):
            self.letters.append(outcome)
        else:
            self.repeats += 1
        self.taken += 1


def write_shard_sequence(outcomes: Iterable[Outcome], sequence: ShardSequence) -> Iterator[ShardManifest]:
    """Writes all outcomes and yields the manifest of each shard; `publish_store` comes after the last.

    Args:
        outcomes: records in any order, with ids that are unique; ascending ones make shards with disjoint ranges. No
            outcome of the next shard is taken before the manifest of the last one was yielded.
    Raises:
        ValueError, OSError: as `ShardSequence.put`; the shard that was being written leaves no file.
    """
    try:
        for outcome in outcomes:
            manifest = sequence.put(outcome)
            if manifest is not None:
                yield manifest
        manifest = sequence.finish()
        if manifest is not None:
            yield manifest
    finally:
        sequence.discard()


def num_outcomes(manifest: ShardManifest) -> int:
    """Number of outcomes in a shard of such a sequence."""
    return manifest.num_records + len(manifest.dead_letters) + int(manifest.stats["equal_repeats"])


def _array_bytes(record: RegionRecord) -> int:
    """Bytes of a record's arrays; its place in the file takes up to a page and a half more."""
    arrays = [record.features, record.boxes, record.class_ids, record.class_scores]
    arrays += [
        each for each in (record.attribute_ids, record.attribute_scores, record.image_feature) if each is not None
    ]
    distribution = record.class_distribution
    if isinstance(distribution, TopKDistribution):
        arrays += [distribution.class_ids, distribution.probabilities, distribution.rest]
    elif distribution is not None:
        arrays.append(distribution)
    return sum(array.nbytes for array in arrays)
