"""Outcomes in, published shards 0, 1, 2, ... out: how an import, a copy and `StoreWriter` write a store."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.shard.manifest import DeadLetter, ShardManifest, ShardSummary, data_file_name, shard_manifest_name
from roibeam.features.shard.publish import publish_shard
from roibeam.features.shard.writer import ShardWriter


@dataclass(frozen=True)
class Repeat:
    """An entry whose image was read before, with equal content: left out, and counted."""

    image_id: str
    location: str


Outcome = RegionRecord | DeadLetter | Repeat


@dataclass(frozen=True)
class ShardPlace:
    """Where a store is written: its folder or URL, and the folder of this machine that data files are written in, which
    is the same for a folder."""

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
        place: Path | ShardPlace,
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
        if not isinstance(place, ShardPlace):
            place = ShardPlace(output_folder(place), place)
        self._folder, self._work, self._fingerprint, self._source = place.folder, place.work, fingerprint, source
        self._shard_size, self._shard_bytes, self._planned_bytes = shard_size, shard_bytes, planned_bytes
        self._number, self._stats = first_shard, stats or {}
        self._before_publish = before_publish or (lambda path, summary: {})
        self._open: _OpenShard | None = None

    @property
    def number(self) -> int:
        """Of the shard that the next outcome goes to."""
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
        """Publishes the shard that was begun; None where none was."""
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
        """Deletes the shard that was begun."""
        if self._open is not None:
            self._open.writer.discard()
            self._open = None


class _OpenShard:
    """The shard that a sequence is writing, and what its manifest will say."""

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
            outcome of the next shard is asked for before the manifest of the last one was yielded.
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
    """How many outcomes a shard of such a sequence took."""
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
