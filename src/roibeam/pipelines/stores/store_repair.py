"""`roibeam store repair`: broken and missing images of a store extracted again, and no others.

A new attempt of each shard that needs it is written beside the old one: whole records are copied, checked, the others
extracted with the configuration that the store records. The new attempts wait in STORE/.tmp-repair/ (their manifests)
until all are there; then they are published, the store manifest last. So a killed repair leaves the store as it was,
and the next one goes on with what waits.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import lmdb

from roibeam.extraction.choice.detector_folder import read_detector_folder
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.fast.modes import MODES
from roibeam.extraction.photos.decode import LARGEST_MAX_PIXELS
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.extraction.weights.file_container import check_weight_file
from roibeam.features.comparison.feature_spaces import space_difference
from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.folders.folder_choice import is_at_url
from roibeam.features.folders.folder_lock import run_lock
from roibeam.features.folders.folder_protocol import OutputFolder, UnreachableError
from roibeam.features.folders.local_folder import SCRATCH_PREFIX
from roibeam.features.printable import printable
from roibeam.features.record.fingerprint import IMPORTED_PREFIX, merged_numerics
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import DeadLetter, ShardManifest, ShardSummary, StoreManifest, shard_manifest_name
from roibeam.features.shard.publish import publish_shard
from roibeam.features.shard.reader import ShardReader
from roibeam.features.shard.record_check import record_problem
from roibeam.features.shard.writer import ShardWriter
from roibeam.features.writing.sequence_folder import check_shard_file
from roibeam.pipelines.extract.report.run_facts import write_run_report
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec, ExtractJob, dataclass_from_json
from roibeam.pipelines.extract.shard.store_folder import tidy_store
from roibeam.pipelines.extract.shard_plan import Plan, PlannedShard, read_members
from roibeam.pipelines.extract.store_manifest import StoreText, publish_run
from roibeam.pipelines.foundation.console.progress import Progress
from roibeam.pipelines.foundation.device_choice import check_device, check_device_name, choose_device
from roibeam.pipelines.foundation.files.locations import location_exists, moved_location
from roibeam.pipelines.foundation.files.named_files import FILE, FOLDER, NamedFiles
from roibeam.pipelines.foundation.files.remote_files import is_url
from roibeam.pipelines.sources.vocabulary import Vocabulary
from roibeam.pipelines.stores.damage import ShardState, StoreDamage, find_damage
from roibeam.pipelines.stores.old_record import Comparison, OldRecord, read_old_records
from roibeam.pipelines.stores.places import Place, folder_at
from roibeam.version import __version__

log = logging.getLogger(__name__)
WAITING_FOLDER = f"{SCRATCH_PREFIX}repair"
_PROBED_PHOTOS = 50
_DOUBTFUL = "doubtful"  # in the stats of a shard: images to look at, and why


@dataclass(frozen=True)
class RepairSource:
    """Where the photos and the network of a store are now; what is None is where the store's manifest says.

    Attributes:
        images: folder, or URL of one, that the photos or archives are below (the plan's `image_root`).
        weights: see `roibeam.extraction.weights.loading`.
        detector: a detector's folder, or the name of a shipped one, whose weights are taken.
        device: "auto", "cpu", "cuda", ...; None means that of the run that made the store.
    """

    images: str | Path
    weights: str | None = None
    detector: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class RepairSummary:
    """What a repair did.

    Attributes:
        manifest: of the store now.
        num_shards: written anew, those of an earlier, killed repair included.
        num_extracted: images that the detector was asked for.
        num_copied: records copied from the old attempts.
        lost: images that were broken or missing and could not be extracted; they are dead letters now.
        num_retried: dead letters that are records now.
        annotations_again: whether the table of captions and labels was damaged, and written again from the plan.
        compared: the new records beside the broken ones.
        is_as_before: whether the content digest is the one that the store was published with.
        seconds: wall time.
        device: where the detector computed, as torch names it; None where nothing was to be extracted.
    """

    manifest: StoreManifest
    num_shards: int
    num_extracted: int
    num_copied: int
    lost: tuple[DeadLetter, ...]
    num_retried: int
    annotations_again: bool
    compared: Comparison
    is_as_before: bool
    seconds: float
    device: str | None


def repair_store(
    place: Place, source: RepairSource, *, retry_dead_letters: bool = False, scratch: str | None = None
) -> RepairSummary:
    """Extracts what is broken or missing, and publishes new attempts of the shards that held it.

    Args:
        place: the store's folder or URL.
        scratch: where a shard of a URL lies while it is read and written; None for the machine's temporary folder.
        retry_dead_letters: extract the images that failed, too; those that fail again stay dead letters.
    Raises:
        ValueError: before anything is written, when the store has no plan, when the detector that its configuration
            names now gives other features than it holds, or when the photos are not there. Before anything is
            published, when a photo is not the one that a broken record was made of.
        OSError: if the store cannot be written.
    """
    start = time.monotonic()
    store = folder_at(place if is_at_url(place) else Path(place).absolute(), scratch)
    _check_source(source)
    with run_lock(store):
        damage = find_damage(store)
        if damage.plan is None:
            raise ValueError(_what_to_do_without_plan(store, damage))
        before, plan = damage.manifest, damage.plan
        states = [state for state in damage.shards if state.is_damaged or retry_dead_letters]
        counts, device = _Counts(), None
        if states:
            _check_photos(store, plan, states, source, retry=retry_dead_letters)
            jobs = _recorded_jobs(store, before, plan, source, states)
            device = jobs[states[0].number].detector.device
            states.sort(key=lambda state: (jobs[state.number].detector.mode, state.number))  # few changes of it
            counts = _redo_shards(store, jobs, plan, states, retry=retry_dead_letters)
            _check_compared(store, counts.compared)
        if counts.waiting or damage.is_stale or damage.annotations:
            for manifest in counts.waiting:
                publish_shard(store, manifest)
            vocabulary = Vocabulary(before.classes, before.attributes)
            after = publish_run(store, StoreText(before.config, vocabulary, before.fingerprint))
            if (after.num_records, after.num_dead_letters) != (before.num_records, before.num_dead_letters):
                write_run_report(store, plan)
        else:
            after = before
        tidy_store(store, plan, before.fingerprint.feature_space)
        if store.local_path is None:  # on a disk the folder went with what a stopped run leaves
            for state in states:
                store.delete(_waiting_name(state.number))
    return RepairSummary(
        manifest=after,
        num_shards=len(counts.waiting),
        num_extracted=counts.extracted,
        num_copied=counts.copied,
        lost=tuple(counts.lost),
        num_retried=counts.retried,
        annotations_again=bool(damage.annotations),
        compared=counts.compared,
        is_as_before=after.content_digest == before.content_digest,
        seconds=time.monotonic() - start,
        device=device,
    )


def _check_compared(store: OutputFolder, compared: Comparison) -> None:
    if not compared.other:
        return
    image_id, why = next(iter(compared.other.items()))
    raise ValueError(
        f"{store}: {counted(len(compared.other), 'photo is', 'photos are')} not what the broken records were made of, "
        f"the first {printable(image_id)!r}: {why}; nothing was published: name the folder of the right photos. An "
        f"image whose photo you take away becomes a dead letter"
    )


def _what_to_do_without_plan(store: OutputFolder, damage: StoreDamage) -> str:
    if damage.manifest.fingerprint.feature_space.startswith(IMPORTED_PREFIX) and "copy" not in damage.manifest.config:
        if isinstance(damage.manifest.config.get("write"), dict):
            return (
                f"{store} was written by StoreWriter: delete part-*.json of a broken shard and write its images again, "
                f"or keep the whole records with `roibeam store copy {store} NEW --drop-damaged`"
            )
        location = damage.manifest.config.get("source", {}).get("location", "the feature file")
        return f"{store} was imported: import it again into a new folder, `roibeam store import {location} NEW`"
    return (
        f"{store} is a copy of other stores: repair those and copy them again, or keep the whole records with "
        f"`roibeam store copy {store} NEW --drop-damaged`"
    )


# The detector and the photos of the store


def _recorded_jobs(
    store: OutputFolder, manifest: StoreManifest, plan: Plan, source: RepairSource, states: list[ShardState]
) -> dict[int, ExtractJob]:
    """The store's own job for each shard, with what has moved, and as the shard was computed; ValueError when its
    features would be others, or the device does not have the shard's mode."""
    try:
        spec = DetectorSpec.from_json(manifest.config["detector"])
        options = dataclass_from_json(ExtractOptions, manifest.config["options"], "options")
    except (KeyError, ValueError) as error:
        raise ValueError(f"{store}: its manifest.json does not say how it was extracted ({error})") from None
    if source.detector is not None:
        spec = replace(spec, weights=read_detector_folder(source.detector).weights)
    device_name = source.device or spec.device
    check_device(device_name)
    # Not above: a store that needs no repair, or whose photos are not there, needs no torch.
    from roibeam.pipelines.extract.shard.job import shared_fingerprint

    device = choose_device(device_name, threads=spec.threads)
    log.info("%s", device.words)
    spec = replace(spec, weights=source.weights or spec.weights)
    specs = {state.number: _as_shard(spec, device.name, state) for state in states}
    vocabulary = Vocabulary(manifest.classes, manifest.attributes).digest
    given_boxes = "boxes" in plan.source
    fingerprint = shared_fingerprint(specs[states[0].number], options, vocabulary, given_boxes)
    if fingerprint.feature_space != manifest.fingerprint.feature_space:
        how = space_difference(manifest.fingerprint, fingerprint, {}) or "no details are recorded"
        raise ValueError(
            f"{store} holds other features than the detector would give now (store / now: {how}); nothing was written: "
            f"give the weights that it was made with, --weights or --detector"
        )
    images, space = _folder(source), fingerprint.feature_space
    return {
        number: ExtractJob(str(store), images, of_shard, options, space, vocabulary, given_boxes)
        for number, of_shard in specs.items()
    }


def _as_shard(spec: DetectorSpec, device: str, state: ShardState) -> DetectorSpec:
    """The detector as it computed a shard: its mode, which runs into one store may choose differently, and as many
    threads where this machine has them. A shard of two modes was repaired before: then the first of `MODES`."""
    numerics = {} if state.manifest is None else state.manifest.fingerprint.numerics
    told, threads = numerics.get("mode"), numerics.get("threads")
    modes = [mode for mode in MODES if mode == told or (isinstance(told, list) and mode in told)]
    if device != "cpu" or type(threads) is not int or not 0 < threads <= (os.cpu_count() or 1):
        threads = spec.threads
    try:
        return replace(spec, device=device, mode=modes[0] if modes else spec.mode, threads=threads)
    except ValueError as error:
        raise ValueError(f"shard {state.number}: {error}; nothing was written") from None


def _wanted(state: ShardState, *, retry: bool) -> set[str]:
    letters = state.manifest.dead_letters if retry and state.manifest is not None else ()
    return {*state.broken, *state.missing, *(letter.image_id for letter in letters)}


def _asked_members(members: list[ImageRef], wanted: set[str], plan: Plan, images: str) -> list[ImageRef]:
    """The wanted images, with the locations that they have below the folder `images`."""
    root = plan.source["image_root"]
    asked = [member for member in members if member.image_id in wanted]
    if root == images:
        return asked
    # What lay elsewhere is where it was.
    moved = [moved_location(member.location, root, images) for member in asked]
    return [replace(member, location=to or member.location) for member, to in zip(asked, moved, strict=True)]


def _folder(source: RepairSource) -> str:
    return str(source.images) if is_url(str(source.images)) else os.path.abspath(source.images)


def _check_source(source: RepairSource) -> None:
    """Raises ValueError with all that is not there, before every record is read."""
    named = NamedFiles()
    named.need("--photos", source.images, FOLDER)
    if named.need("--weights", source.weights, FILE):
        named.look(lambda: check_weight_file(source.weights))
    if source.detector is not None:
        named.look(lambda: read_detector_folder(str(source.detector)))
    if source.device is not None:
        named.look(lambda: check_device_name(str(source.device)))
    named.check()


def _check_photos(
    store: OutputFolder, plan: Plan, states: list[ShardState], source: RepairSource, *, retry: bool
) -> None:
    """Looks for photos of the shards, wanted ones first: a wrong folder would make dead letters of records."""
    images = _folder(source)
    first = None
    for state in states:
        assert state.planned is not None
        wanted = _wanted(state, retry=retry)
        if not wanted:
            continue
        members = read_members(store, state.planned)
        others = {member.image_id for member in members} - wanted
        for ids in (wanted, others):
            for member in _asked_members(members, ids, plan, images)[:_PROBED_PHOTOS]:
                if location_exists(member.location):
                    return
                first = first or member.location
    if first is not None:
        raise ValueError(
            f"none of the photos is there (the first: {first!r}); --photos is the folder that was "
            f"{plan.source['image_root']!r} when the store was made"
        )


# The shards


@dataclass
class _Counts:
    waiting: list[ShardManifest] = field(default_factory=list)
    extracted: int = 0
    copied: int = 0
    retried: int = 0
    lost: list[DeadLetter] = field(default_factory=list)
    compared: Comparison = field(default_factory=Comparison)


def _redo_shards(
    store: OutputFolder, jobs: dict[int, ExtractJob], plan: Plan, states: list[ShardState], *, retry: bool
) -> _Counts:
    """Writes a new attempt of each shard, its data file in its final place and its manifest in the waiting folder."""
    counts = _Counts()
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


def _waiting_name(number: int) -> str:
    return f"{WAITING_FOLDER}/{shard_manifest_name(number)}"


def _waiting_manifest(
    store: OutputFolder, shard: PlannedShard, feature_space: str, *, retry: bool
) -> ShardManifest | None:
    """A whole attempt that a killed repair left, or None."""
    name = _waiting_name(shard.number)
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
        from roibeam.pipelines.extract.shard.job import shared_fingerprint

        assert state.planned is not None
        self._store, self._job = store, job
        self._fingerprint = shared_fingerprint(job.detector, job.options, job.vocabulary_digest, job.given_boxes)
        self._state, self._shard = state, state.planned
        self._wanted = _wanted(state, retry=retry)
        self._members = read_members(store, state.planned)
        self._asked = _asked_members(self._members, self._wanted, plan, job.image_root)
        self._letters: list[DeadLetter] = []
        self._copied = 0
        self._old: dict[str, OldRecord] = {}
        self._compared = Comparison()

    def write(self, counts: _Counts, progress: Progress) -> ShardManifest | None:
        """The manifest, in the waiting folder; None when only dead letters were tried and all are what they were."""
        from roibeam.pipelines.extract.shard.shard_job import planned_bytes

        start = time.monotonic()
        old = self._state.manifest
        attempt = secrets.token_hex(4)
        room = planned_bytes(self._job, self._asked) + (old.data_bytes if old else 0)
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
        self, summary: ShardSummary, attempt: str, data: Path, counts: _Counts, *, seconds: float
    ) -> ShardManifest | None:
        """As `write`, of a data file that is whole; None, too, when it has records of other photos."""
        old = self._state.manifest
        counts.extracted += len(self._asked)
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
        if old is not None and not self._state.is_damaged:
            if summary.content_digest == old.content_digest and tuple(self._letters) == old.dead_letters:
                return None
        counts.copied += self._copied
        failed = {letter.image_id for letter in self._letters}
        tried_again = {letter.image_id for letter in old.dead_letters} & self._wanted if old else set()
        counts.retried += len(tried_again - failed)
        counts.lost += [
            letter for letter in self._letters if letter.image_id in self._wanted and letter.image_id not in tried_again
        ]
        manifest = ShardManifest.from_summary(
            summary,
            shard=self._shard.number,
            attempt=attempt,
            fingerprint=replace(self._fingerprint, numerics=self._numerics(len(self._asked))),
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
        self._store.put_bytes(_waiting_name(manifest.shard), json_bytes(manifest.to_json()))
        log.info(
            "shard %d: %s extracted, %s copied",
            self._shard.number, counted(len(self._asked), "image"), counted(self._copied, "record"),
        )  # fmt: skip
        return manifest

    def _put_all(self, writer: ShardWriter, reader: ShardReader | None, progress: Progress) -> None:
        """All members in the plan's order, so that a repaired shard is written like any other."""
        from roibeam.pipelines.extract.shard.shard_job import extract_members

        old = self._state.manifest
        kept = {letter.image_id: letter for letter in old.dead_letters} if old else {}
        # Of two kinds: an image that had a record was no larger than its run allowed, whatever the last one did.
        had_record = self._state.broken
        unlimited = replace(self._job, options=replace(self._job.options, max_pixels=LARGEST_MAX_PIXELS))
        outcomes: dict[bool, Iterator[RegionRecord | Failure]] = {
            is_old: extract_members(job, [one for one in self._asked if (one.image_id in had_record) == is_old])
            for is_old, job in ((True, unlimited), (False, self._job))
        }
        for member in progress.counting(self._members):
            if member.image_id in self._wanted:
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
                assert reader is not None, "of an unreadable shard every image is wanted"
                _copy(reader, writer, member.image_id)
                self._copied += 1

    def _is_reproducible(self) -> bool:
        """Whether a record is to come out as it was, bit for bit."""
        old, new = self._state.manifest, self._fingerprint.numerics
        return old is not None and old.fingerprint.numerics == new and new.get("mode") == "exact"

    def _numerics(self, num_extracted: int) -> dict[str, Any]:
        """How the records were computed: the copied ones as before, the others as this process does."""
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
