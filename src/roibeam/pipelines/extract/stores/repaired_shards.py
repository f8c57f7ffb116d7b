"""Shards written anew by `roibeam store repair`: whole records copied, the others extracted and compared.

A repair takes photos by their names. Others under the same names would give whole records with wrong features, so
what can still be read of a broken record is compared with the new one.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from roibeam.extraction.photos.decode import LARGEST_MAX_PIXELS
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.folders.folder_protocol import OutputFolder, UnreachableError
from roibeam.features.folders.local_folder import SCRATCH_PREFIX
from roibeam.features.record.fingerprint import merged_numerics
from roibeam.features.record.region_record import RegionRecord, record_digest
from roibeam.features.record_pairing import MAX_MATCHED_REGIONS, match_regions
from roibeam.features.shard.layout import RegionMeta
from roibeam.features.shard.manifest import DeadLetter, ShardManifest, ShardSummary, shard_manifest_name
from roibeam.features.shard.reader import ShardReader
from roibeam.features.shard.writer import ShardWriter
from roibeam.features.verify import record_problem
from roibeam.features.writing.partial_store import check_shard_file
from roibeam.messages import plural
from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.common.locations import moved_location
from roibeam.pipelines.data.shard_plan import Plan, PlannedShard, read_members
from roibeam.pipelines.extract.shard.detector_spec import ExtractJob
from roibeam.pipelines.extract.stores.store_check import ShardState
from roibeam.version import __version__

_LEAST_AGREEING = 0.5  # of the regions; of two photos hardly any, of one photo on two devices nearly all


@dataclass(frozen=True)
class OldRecord:
    """Attributes:
    digest: of the whole record, from its shard's index.
    meta: size, boxes and classes; None where they are damaged.
    """

    digest: bytes
    meta: RegionMeta | None


def read_old_records(reader: ShardReader, image_ids: Iterable[str]) -> dict[str, OldRecord]:
    """Readable parts of a shard's broken records, by image id; records without any are left out."""
    found = {}
    for image_id in image_ids:
        row = reader.find(image_id)
        if row < 0:
            continue
        ((_, digest),) = reader.digests(row, row + 1)
        try:
            meta = reader.meta_at(row, check=True)
        except ValueError:
            meta = None
        found[image_id] = OldRecord(digest, meta)
    return found


@dataclass
class Comparison:
    """New records beside the broken ones.

    Attributes:
        same: with the digest of the record before.
        close: of the same size and with mostly the same regions; how they were computed differs, so digits do.
        unknown: nothing is left to compare them with.
        doubtful: image id -> what differs, though it was computed in the same way.
        other: image id -> why the photo is another one.
    """

    same: int = 0
    close: int = 0
    unknown: int = 0
    doubtful: dict[str, str] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)

    def add(self, new: RegionRecord, old: OldRecord | None, *, is_reproducible: bool) -> None:
        """Counts a record that was extracted in the place of a broken one.

        Args:
            old: None where nothing is left of it.
            is_reproducible: whether it was computed as the old one was, so that it should be equal bit for bit.
        """
        if old is None:
            self.unknown += 1
        elif record_digest(new) == old.digest:
            self.same += 1
        elif old.meta is not None and (why := _other_photo(new, old.meta)):
            self.other[new.image_id] = why
        elif is_reproducible:
            self.doubtful[new.image_id] = "has another digest than before, though it was computed in the same way"
        elif old.meta is None:
            self.unknown += 1
        else:
            self.close += 1

    def add_lost(self, image_ids: Sequence[str], *, is_same: bool, is_reproducible: bool) -> None:
        """Counts the records of a shard whose file was lost: only the digest of all together is known."""
        if is_same:
            self.same += len(image_ids)
        elif is_reproducible:
            what = "its shard was lost and has another digest now, though it was computed in the same way"
            self.doubtful |= dict.fromkeys(image_ids, what)
        else:
            self.unknown += len(image_ids)

    def merge(self, shard: Comparison) -> None:
        """Adds what was found in one shard."""
        self.same += shard.same
        self.close += shard.close
        self.unknown += shard.unknown
        self.doubtful |= shard.doubtful
        self.other |= shard.other


def _other_photo(new: RegionRecord, meta: RegionMeta) -> str:
    """Reason why a record is of another photo than the one of `meta`; "" where it may be of the same."""
    if (new.height, new.width) != (meta.height, meta.width):
        return f"the photo has {new.width} x {new.height} pixels, that of the record had {meta.width} x {meta.height}"
    most = max(new.num_regions, meta.num_regions)
    if most > MAX_MATCHED_REGIONS:
        return ""
    pairs = match_regions(meta.boxes, new.boxes)
    agreeing = int(np.count_nonzero(meta.class_ids[pairs[:, 0]] == new.class_ids[pairs[:, 1]]))
    if agreeing >= _LEAST_AGREEING * most:
        return ""
    return f"{agreeing} of {most} regions have the place and class that they had in the record"


log = logging.getLogger(__name__)
WAITING_FOLDER = f"{SCRATCH_PREFIX}repair"
_DOUBTFUL = "doubtful"  # in the stats of a shard: images to look at, and why


@dataclass
class RepairCounts:
    waiting: list[ShardManifest] = field(default_factory=list)
    extracted: int = 0
    copied: int = 0
    retried: int = 0
    lost: list[DeadLetter] = field(default_factory=list)
    compared: Comparison = field(default_factory=Comparison)


def redo_shards(
    store: OutputFolder, jobs: dict[int, ExtractJob], plan: Plan, states: list[ShardState], *, retry: bool
) -> RepairCounts:
    """Writes a new attempt of each shard, its data file in its final place and its manifest in the waiting folder."""
    counts = RepairCounts()
    total = sum(state.planned.num_images for state in states if state.planned is not None)
    with Progress("repairing", total) as progress:
        for number, state in enumerate(states, 1):
            assert state.planned is not None
            job = jobs[state.number]
            manifest = _waiting_manifest(store, state.planned, job.feature_space, retry=retry)
            if manifest is not None:
                log.info("shard %d (%d of %d): done by an earlier repair", state.number, number, len(states))
                counts.waiting.append(manifest)
                counts.compared.doubtful |= manifest.stats.get(_DOUBTFUL, {})
                progress.to(progress.done + state.planned.num_images)
                continue
            try:
                attempt = _NewAttempt(store, job, plan, state, retry=retry)
                manifest = attempt.write(counts, progress)
            except lmdb.Error as error:
                raise OSError(f"cannot write the store: {error}") from None
            if manifest is not None:
                counts.waiting.append(manifest)
    return counts


def waiting_name(number: int) -> str:
    return f"{WAITING_FOLDER}/{shard_manifest_name(number)}"


def _waiting_manifest(
    store: OutputFolder, shard: PlannedShard, feature_space: str, *, retry: bool
) -> ShardManifest | None:
    """A whole attempt that a killed repair left, or None."""
    name = waiting_name(shard.number)
    try:
        manifest = ShardManifest.from_bytes(store.read_bytes(name), store.where(name))
        check_shard_file(store, manifest)
    except UnreachableError:
        raise
    except (OSError, ValueError):
        return None
    is_of_shard = manifest.shard == shard.number and manifest.members_digest == shard.members_digest
    if not is_of_shard or manifest.fingerprint.feature_space != feature_space or (retry and manifest.dead_letters):
        return None
    return manifest


class _NewAttempt:
    """One shard being written anew."""

    def __init__(self, store: OutputFolder, job: ExtractJob, plan: Plan, state: ShardState, *, retry: bool) -> None:
        from roibeam.pipelines.extract.shard.shard_job import shared_fingerprint

        assert state.planned is not None
        self._store, self._job = store, job
        self._fingerprint = shared_fingerprint(job.detector, job.options, job.vocabulary_digest, job.given_boxes)
        self._state, self._shard = state, state.planned
        self._chosen = images_to_extract(state, retry=retry)
        self._members = read_members(store, state.planned)
        self._inputs = members_to_extract(self._members, self._chosen, plan, job.image_root)
        self._letters: list[DeadLetter] = []
        self._copied = 0
        self._old: dict[str, OldRecord] = {}
        self._compared = Comparison()

    def write(self, counts: RepairCounts, progress: Progress) -> ShardManifest | None:
        """The manifest, in the waiting folder; None when only dead letters were tried and all are what they were."""
        from roibeam.pipelines.extract.shard.shard_job import planned_bytes

        start = time.monotonic()
        old = self._state.manifest
        attempt = secrets.token_hex(4)
        room = planned_bytes(self._job, self._inputs) + (old.data_bytes if old else 0)
        with ExitStack() as opened:
            reader = None
            if old is not None and old.data_file is not None and self._state.is_readable:
                path = opened.enter_context(self._store.local_file(old.data_file, old.data_bytes))
                reader = opened.enter_context(ShardReader(path, old))
                self._old = read_old_records(reader, self._state.broken)
            data = opened.enter_context(self._store.scratch(f"repair-{attempt}", None)) / "data.lmdb"
            with ShardWriter(data, planned_bytes=room) as writer:
                self._put_all(writer, reader, progress)
                summary = writer.finish()
            return self._finished(summary, attempt, data, counts, seconds=time.monotonic() - start)

    def _finished(
        self, summary: ShardSummary, attempt: str, data: Path, counts: RepairCounts, *, seconds: float
    ) -> ShardManifest | None:
        """Result of `write` for a data file that is whole; None, too, when it has records of other photos."""
        old = self._state.manifest
        counts.extracted += len(self._inputs)
        if not self._state.is_readable:
            is_same = old is not None and old.content_digest == summary.content_digest
            lost = {letter.image_id for letter in self._letters}
            self._compared.add_lost(
                [image_id for image_id in self._state.broken if image_id not in lost],
                is_same=is_same, is_reproducible=self._is_reproducible() and not lost & self._state.broken.keys(),
            )  # fmt: skip
        counts.compared.merge(self._compared)
        if self._compared.other:
            return None
        found = (summary.content_digest, tuple(self._letters))
        if old is not None and not self._state.is_damaged and found == (old.content_digest, old.dead_letters):
            return None
        counts.copied += self._copied
        failed = {letter.image_id for letter in self._letters}
        tried_again = {letter.image_id for letter in old.dead_letters} & self._chosen if old else set()
        counts.retried += len(tried_again - failed)
        counts.lost += [
            letter for letter in self._letters if letter.image_id in self._chosen and letter.image_id not in tried_again
        ]
        manifest = ShardManifest.from_summary(
            summary,
            shard=self._shard.number,
            attempt=attempt,
            fingerprint=replace(self._fingerprint, numerics=self._numerics(len(self._inputs))),
            members_digest=self._shard.members_digest,
            dead_letters=self._letters,
            stats={
                "seconds": round(seconds, 3),
                "copied": self._copied,
                "roibeam": __version__,
                **({_DOUBTFUL: self._compared.doubtful} if self._compared.doubtful else {}),
            },
        )
        if manifest.data_file is not None:
            self._store.put_file(data, manifest.data_file)
        if self._store.local_path is not None:
            (self._store.local_path / WAITING_FOLDER).mkdir(exist_ok=True)
        self._store.put_bytes(waiting_name(manifest.shard), json_bytes(manifest.to_json()))
        log.info(
            "shard %d: %s extracted, %s copied",
            self._shard.number, plural(len(self._inputs), "image"), plural(self._copied, "record"),
        )  # fmt: skip
        return manifest

    def _put_all(self, writer: ShardWriter, reader: ShardReader | None, progress: Progress) -> None:
        """All members in the plan's order, so that a repaired shard is written like any other."""
        from roibeam.pipelines.extract.shard.shard_job import extract_members

        old = self._state.manifest
        kept = {letter.image_id: letter for letter in old.dead_letters} if old else {}
        # Two kinds: an image that had a record was within the limit of its run, whatever the last run's limit.
        had_record = self._state.broken
        unlimited = replace(self._job, options=replace(self._job.options, max_pixels=LARGEST_MAX_PIXELS))
        outcomes: dict[bool, Iterator[RegionRecord | Failure]] = {
            is_old: extract_members(job, [one for one in self._inputs if (one.image_id in had_record) == is_old])
            for is_old, job in ((True, unlimited), (False, self._job))
        }
        for member in progress.counting(self._members):
            if member.image_id in self._chosen:
                was_record = member.image_id in had_record
                outcome = next(outcomes[was_record])
                if isinstance(outcome, Failure):
                    self._letters.append(DeadLetter(**asdict(outcome)))
                    continue
                writer.put(outcome)
                if was_record and self._state.is_readable:
                    before = self._old.get(member.image_id)
                    self._compared.add(outcome, before, is_reproducible=self._is_reproducible())
            elif member.image_id in kept:
                self._letters.append(kept[member.image_id])
            else:
                assert reader is not None, "every image of an unreadable shard is extracted"
                _copy(reader, writer, member.image_id)
                self._copied += 1

    def _is_reproducible(self) -> bool:
        """Whether an extracted record must be equal to the old one, bit for bit."""
        old, new = self._state.manifest, self._fingerprint.numerics
        return old is not None and old.fingerprint.numerics == new and new.get("mode") == "exact"

    def _numerics(self, num_extracted: int) -> dict[str, Any]:
        """Numerics of the records: the copied ones' as before, the others' of this process."""
        old, new = self._state.manifest, self._fingerprint.numerics
        if old is None or not self._copied:
            return new
        if not num_extracted:
            return old.fingerprint.numerics
        return merged_numerics([old.fingerprint.numerics, new])


def _copy(reader: ShardReader, writer: ShardWriter, image_id: str) -> None:
    # Checked again: it was whole when the damage was looked for, and a copy makes checksums of its own.
    what = record_problem(reader, reader.row_of(image_id), image_id)
    if what is not None:
        raise ValueError(f"{reader.path}: record {image_id!r} was whole a moment ago: {what}; run the repair again")
    writer.put(reader.get(image_id, copy=False))


def images_to_extract(state: ShardState, *, retry: bool) -> set[str]:
    letters = state.manifest.dead_letters if retry and state.manifest is not None else ()
    return {*state.broken, *state.missing, *(letter.image_id for letter in letters)}


def members_to_extract(members: list[ImageRef], image_ids: set[str], plan: Plan, images: str) -> list[ImageRef]:
    """Members of these image ids, with the locations that they have below the folder `images`."""
    root = plan.source["image_root"]
    chosen = [member for member in members if member.image_id in image_ids]
    if root == images:
        return chosen
    # Photos that lay elsewhere are where they were.
    moved = [moved_location(member.location, root, images) for member in chosen]
    return [replace(member, location=to or member.location) for member, to in zip(chosen, moved, strict=True)]
