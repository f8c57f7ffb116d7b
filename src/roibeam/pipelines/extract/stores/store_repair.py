"""`roibeam store repair`: broken and missing images of a store extracted again, and no others; with its report as text.

A new attempt of each shard that needs it is written beside the old one: whole records are copied, checked, the others
extracted with the configuration that the store records. The new attempts wait in STORE/.tmp-repair/ (their manifests)
until all are there; then they are published, the store manifest last. So a killed repair leaves the store as it was,
and the next one goes on with what waits.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.fast.modes import MODES
from roibeam.extraction.weights.detector_choice import read_detector_folder
from roibeam.extraction.weights.named_model import TORCHVISION_OWN, NamedModel, is_named_model
from roibeam.extraction.weights.sources import check_weight_file
from roibeam.features.folders.folder_protocol import OutputFolder, run_lock
from roibeam.features.folders.local_folder import is_at_url, output_folder
from roibeam.features.record.fingerprint import IMPORTED_PREFIX, space_difference
from roibeam.features.shard.manifest import DeadLetter, StoreManifest
from roibeam.features.shard.writer import publish_shard
from roibeam.messages import plural, printable
from roibeam.pipelines.common.compute import check_device, check_device_name, choose_device
from roibeam.pipelines.common.console.command_files import FILE, FOLDER, NamedFiles
from roibeam.pipelines.common.locations import location_exists
from roibeam.pipelines.common.remote_files import is_url
from roibeam.pipelines.data.shard_plan import Plan, read_members
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec, ExtractJob, dataclass_from_json
from roibeam.pipelines.extract.shard.store_folder import StoreText, publish_run, tidy_store
from roibeam.pipelines.extract.store_report import write_run_report
from roibeam.pipelines.extract.stores.locations import StoreLocation
from roibeam.pipelines.extract.stores.repaired_shards import (
    Comparison,
    RepairCounts,
    images_to_extract,
    members_to_extract,
    redo_shards,
    waiting_name,
)
from roibeam.pipelines.extract.stores.store_check import ShardState, StoreDamage, find_damage

log = logging.getLogger(__name__)
_PROBED_PHOTOS = 50


@dataclass(frozen=True)
class RepairSource:
    """Present locations of a store's photos and network; for None, those in the store's manifest.

    Attributes:
        images: folder, or URL of one, that the photos or archives are below (the plan's `image_root`).
        weights: see `roibeam.extraction.weights.loading`.
        detector: a detector's folder, or the name of a shipped one, whose weights are taken.
        device: "auto", "cpu", "cuda", ...; None means that of the run that made the store.
        backbone, backbone_weights: a model of another library, which only the user may name, as its detector.
    """

    images: str | Path
    weights: str | None = None
    detector: str | None = None
    device: str | None = None
    backbone: str | None = None
    backbone_weights: str | None = None


@dataclass(frozen=True)
class RepairSummary:
    """Result of a repair.

    Attributes:
        num_shards: written anew, those of an earlier, killed repair included.
        num_extracted: images that the detector ran on.
        num_copied: records copied from the old attempts.
        lost: images that were broken or missing and could not be extracted; they are dead letters now.
        num_retried: dead letters that are records now.
        annotations_again: whether the table of captions and labels was damaged, and written again from the plan.
        compared: the new records beside the broken ones.
        is_as_before: whether the content digest is the one that the store was published with.
        seconds: wall time.
        device: torch's name of the detector's device; None where nothing was to be extracted.
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
    place: StoreLocation, source: RepairSource, *, retry_dead_letters: bool = False, scratch: str | None = None
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
    store = output_folder(place if is_at_url(place) else Path(place).absolute(), scratch)
    _check_source(source)
    with run_lock(store):
        damage = find_damage(store)
        if damage.plan is None:
            raise ValueError(_what_to_do_without_plan(store, damage))
        before, plan = damage.manifest, damage.plan
        states = [state for state in damage.shards if state.is_damaged or retry_dead_letters]
        counts, device = RepairCounts(), None
        if states:
            _check_photos(store, plan, states, source, retry=retry_dead_letters)
            jobs = _recorded_jobs(store, before, plan, source, states)
            device = jobs[states[0].number].detector.device
            states.sort(key=lambda state: (jobs[state.number].detector.mode, state.number))  # few changes of it
            counts = redo_shards(store, jobs, plan, states, retry=retry_dead_letters)
            _check_compared(store, counts.compared)
        if counts.waiting or damage.is_stale or damage.annotations:
            for manifest in counts.waiting:
                publish_shard(store, manifest)
            vocabulary = Vocabulary(before.classes, before.attributes)
            after = publish_run(store, plan, StoreText(before.config, vocabulary, before.fingerprint))
            if (after.num_records, after.num_dead_letters) != (before.num_records, before.num_dead_letters):
                write_run_report(store, plan, after)
        else:
            after = before
        tidy_store(store, plan, before.fingerprint.feature_space)
        if store.local_path is None:  # on a disk the folder went with what a stopped run leaves
            for state in states:
                store.delete(waiting_name(state.number))
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
        f"{store}: {plural(len(compared.other), 'photo is', 'photos are')} not what the broken records were made of, "
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
    spec, options = recorded_extraction(store, manifest, source)
    device_name = source.device or spec.device
    check_device(device_name)
    # Not above: a store that needs no repair, or whose photos are not there, needs no torch.
    from roibeam.pipelines.extract.shard.shard_job import shared_fingerprint

    device = choose_device(device_name, threads=spec.threads)
    log.info("%s", device.words)
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


def recorded_extraction(
    store: OutputFolder, manifest: StoreManifest, source: RepairSource
) -> tuple[DetectorSpec, ExtractOptions]:
    """Settings of a store's extraction. Raises ValueError if they are not recorded, or a model must be named again."""
    try:
        spec = DetectorSpec.from_json(manifest.config["detector"])
        options = dataclass_from_json(ExtractOptions, manifest.config["options"], "options")
    except (KeyError, ValueError) as error:
        raise ValueError(f"{store}: its manifest.json does not record how it was extracted ({error})") from None
    if spec.models:
        spec = _named_again(store, spec, source)
    elif source.detector is not None:
        spec = replace(spec, weights=read_detector_folder(source.detector).weights)
    if not isinstance(spec.config, NamedModel):
        spec = replace(spec, weights=source.weights or spec.weights)
    return spec, options


def _named_again(store: OutputFolder, spec: DetectorSpec, source: RepairSource) -> DetectorSpec:
    """The spec with its models of other libraries as the user names them: nothing runs because a store says so. Their
    weights are compared as part of the feature space."""
    for option, part, name, weights in (
        ("--detector", "config", source.detector, source.weights),
        ("--backbone", "backbone", source.backbone, source.backbone_weights),
    ):
        recorded = getattr(spec, part)
        if not isinstance(recorded, NamedModel):
            continue
        if name is None:
            raise ValueError(f"{store} was made by {recorded.name}: give it again, {option} {recorded.name}")
        opened = replace(recorded, name=name, weights=weights or "", revision="", digest="", license="").opened()
        if opened.digest != recorded.digest:
            raise ValueError(f"{option} {name}: is another file than that which made {store}; nothing was written")
        spec = replace(spec, config=opened) if part == "config" else replace(spec, backbone=opened)
    return spec


def _as_shard(spec: DetectorSpec, device: str, state: ShardState) -> DetectorSpec:
    """The detector as it computed a shard: its mode, which runs into one store may choose differently, and as many
    threads where this machine has them. A shard of two modes was repaired before: then the first of `MODES`."""
    numerics = {} if state.manifest is None else state.manifest.fingerprint.numerics
    recorded, threads = numerics.get("mode"), numerics.get("threads")
    modes = [mode for mode in MODES if mode == recorded or (isinstance(recorded, list) and mode in recorded)]
    if device != "cpu" or type(threads) is not int or not 0 < threads <= (os.cpu_count() or 1):
        threads = spec.threads
    try:
        return replace(spec, device=device, mode=modes[0] if modes else spec.mode, threads=threads)
    except ValueError as error:
        raise ValueError(f"shard {state.number}: {error}; nothing was written") from None


def _folder(source: RepairSource) -> str:
    return str(source.images) if is_url(str(source.images)) else os.path.abspath(source.images)


def _check_source(source: RepairSource) -> None:
    """Raises ValueError with all that is not there, before every record is read."""
    named = NamedFiles()
    named.need("--photos", source.images, FOLDER)
    for option, weights in (("--weights", source.weights), ("--backbone-weights", source.backbone_weights)):
        if weights != TORCHVISION_OWN and named.need(option, weights, FILE):
            named.look(partial(check_weight_file, weights))
    if source.detector is not None and not is_named_model(source.detector):
        named.look(lambda: read_detector_folder(str(source.detector)))
    if source.device is not None:
        named.look(lambda: check_device_name(str(source.device)))
    named.check()


def _check_photos(
    store: OutputFolder, plan: Plan, states: list[ShardState], source: RepairSource, *, retry: bool
) -> None:
    """Looks for photos of the shards, those to extract first: a wrong folder would make dead letters of records."""
    images = _folder(source)
    first = None
    for state in states:
        assert state.planned is not None
        to_extract = images_to_extract(state, retry=retry)
        if not to_extract:
            continue
        members = read_members(store, state.planned)
        others = {member.image_id for member in members} - to_extract
        for ids in (to_extract, others):
            for member in members_to_extract(members, ids, plan, images)[:_PROBED_PHOTOS]:
                if location_exists(member.location):
                    return
                first = first or member.location
    if first is not None:
        raise ValueError(
            f"none of the photos is there (the first: {first!r}); --photos is the folder that was "
            f"{plan.source['image_root']!r} when the store was made"
        )


# The shards


_LISTED = 20  # images, and files; the JSON lists all


def damage_json(store: StoreLocation, damage: StoreDamage) -> dict[str, Any]:
    """All that is broken or missing."""
    shards = [
        {
            "shard": state.number,
            "files": list(state.files),
            "broken": [{"image_id": image_id, "what": what} for image_id, what in state.broken.items()],
            "missing": list(state.missing),
            "unnamed": state.num_unnamed,
        }
        for state in damage.damaged
    ]
    counts = {"broken": damage.num_broken, "missing": damage.num_missing, "dead_letters": damage.num_dead_letters}
    whole = {"whole": damage.is_whole, "manifest_is_stale": damage.is_stale, "annotations": damage.annotations}
    return {"store": str(store), **whole, **counts, "shards": shards}


def damage_text(store: StoreLocation, damage: StoreDamage) -> str:
    """The first of it for the terminal, and what to do."""
    files = [line for state in damage.damaged for line in state.files]
    lines = [printable(line, 300) for line in files[:_LISTED]]
    if len(files) > _LISTED:
        lines.append(f"... and {len(files) - _LISTED:,} more about files; --json lists all")
    found = chain.from_iterable(state.images() for state in damage.damaged)
    lines += [
        f"{kind:<8} {printable(name, 100)}: {printable(what, 200)}" for kind, name, what in islice(found, _LISTED)
    ]
    more = sum(1 for _ in found)
    if more:
        lines.append(f"... and {plural(more, 'more image', 'more images')}; --json lists all")
    unnamed = sum(state.num_unnamed for state in damage.damaged)
    if unnamed:
        lines.append(f"{plural(unnamed, 'lost record')} whose ids only the source knows: the store has no plan")
    if damage.is_stale:
        lines.append("manifest.json does not list the shards as they are; a repair writes it again")
    if damage.annotations:
        lines.append(printable(damage.annotations, 300))
    letters = plural(damage.num_dead_letters, "dead letter")
    if damage.is_whole:
        return f"{store}: whole; {plural(damage.manifest.num_records, 'record')}, {letters}"
    counts = f"{plural(damage.num_broken, 'broken image')}, {plural(damage.num_missing, 'missing image')}, {letters}"
    lines.append(f"{store}: {counts}; {_advice(store, damage)}")
    return "\n".join(lines)


def _advice(store: StoreLocation, damage: StoreDamage) -> str:
    if damage.plan is None:
        return "it has no plan of its images: import or copy it again from its source"
    again = f"`roibeam store repair {store} --photos {damage.plan.source['image_root']}`"
    if not damage.damaged:
        return f"{again} writes it again"
    return f"{again} extracts the images again"


def repair_json(store: StoreLocation, summary: RepairSummary) -> dict[str, Any]:
    return {
        "store": str(store),
        "shards": summary.num_shards,
        "annotations_again": summary.annotations_again,
        "extracted": summary.num_extracted,
        "copied": summary.num_copied,
        "retried": summary.num_retried,
        "lost": [{"image_id": letter.image_id, "reason": letter.reason} for letter in summary.lost],
        "records": summary.manifest.num_records,
        "dead_letters": summary.manifest.num_dead_letters,
        "content_digest": summary.manifest.content_digest,
        "as_before": summary.is_as_before,
        "same_digest": summary.compared.same,
        "close": summary.compared.close,
        "not_compared": summary.compared.unknown,
        "doubtful": [{"image_id": image_id, "what": what} for image_id, what in summary.compared.doubtful.items()],
        "seconds": round(summary.seconds, 3),
        "device": summary.device,
    }


def repair_text(store: StoreLocation, summary: RepairSummary) -> str:
    """Result of a repair for the terminal."""
    lost = [
        f"lost     {printable(letter.image_id, 100)}: {letter.reason} ({printable(letter.detail, 200)})"
        for letter in summary.lost[:_LISTED]
    ]
    if len(summary.lost) > _LISTED:
        lost.append(f"... and {len(summary.lost) - _LISTED:,} more; {store}/dead_letters.parquet names all")
    doubtful = [
        f"doubtful {printable(image_id, 100)}: {what}; is the photo still what it was?"
        for image_id, what in islice(summary.compared.doubtful.items(), _LISTED)
    ]
    if len(summary.compared.doubtful) > _LISTED:
        doubtful.append(f"... and {len(summary.compared.doubtful) - _LISTED:,} more; --json lists all")
    done = (
        f"{store}: {plural(summary.num_shards, 'shard')} written anew: {plural(summary.num_extracted, 'image')} "
        f"extracted, {plural(summary.num_copied, 'record')} copied"
    )
    if summary.annotations_again:
        done += ", the table of captions and labels too"
    if summary.num_retried:
        done += f", {plural(summary.num_retried, 'dead letter')} now a record"
    content = "its content digest is what it was" if summary.is_as_before else "its content digest is another one now"
    found = summary.compared
    compared = [
        f"{plural(count, 'record')} {what}"
        for count, what in (
            (found.same, "extracted with the digest that it had before"),
            (
                found.close,
                "with the same regions as before, in other digits: another device, version or mode gives them",
            ),
            (found.unknown, "had nothing left to compare the new one with"),
        )
        if count
    ]
    records = plural(summary.manifest.num_records, "record")
    letters = plural(summary.manifest.num_dead_letters, "dead letter")
    return "\n".join([*lost, *doubtful, done, *compared, f"{records}, {letters}; {content}"])
