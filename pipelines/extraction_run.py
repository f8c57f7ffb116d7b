"""One extraction run from the driver's side: plan, pipeline, report, verdict. The command line calls this."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from extraction.engine import ExtractOptions, extract
from extraction.images import Failure, ImageRef
from features.layout import encode_meta, encode_regions
from features.manifest import STORE_MANIFEST_NAME, TEMPORARY_SUFFIX, StoreManifest
from pipelines.beam_extraction import pipeline_options, run_extraction
from pipelines.job import DetectorSpec, ExtractJob, shared_detector, shared_fingerprint, vocabulary_digest
from pipelines.plan import Plan, extend_plan, planned_ids, read_plan, shard_size_for
from pipelines.progress import ProgressPrinter, ProgressView
from pipelines.publish import StoreText, read_shard_manifests
from pipelines.run_report import REPORT_NAME, write_run_report
from pipelines.shard_job import SCRATCH_PREFIX
from pipelines.sources import Source
from pipelines.store_lock import LOCK_NAME, store_lock
from pipelines.vocabulary import Vocabulary

log = logging.getLogger(__name__)
TIMING_TRIES = 5  # images looked at for one that decodes
DRY_RUN_IMAGES = 3


@dataclass(frozen=True)
class ExtractRequest:
    """What the user asked for.

    Attributes:
        store: folder to write; made if missing.
        vocabulary: names to store.
        shard_size: images per shard; None means about ten minutes of work, at most 4,000.
        max_failures: share of failed images (0..1) above which the run counts as failed.
        runner, beam_args: see `pipelines.beam_extraction.run_extraction`.
    """

    source: Source
    store: Path
    detector: DetectorSpec
    options: ExtractOptions
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    shard_size: int | None = None
    max_failures: float = 0.05
    runner: str = "local"
    beam_args: tuple[str, ...] = ()
    as_json: bool = False


@dataclass(frozen=True)
class RunSummary:
    """How a run ended. `seconds` and `new_images` are of this run, the counts of the whole store."""

    manifest: StoreManifest
    num_images: int
    new_images: int
    seconds: float
    failures: Counter[str]
    notes: tuple[str, ...]
    max_failures: float

    @property
    def failed_share(self) -> float:
        return self.failures.total() / max(self.num_images, 1)

    @property
    def succeeded(self) -> bool:
        return self.failed_share <= self.max_failures


@dataclass(frozen=True)
class Estimate:
    """What a dry run found: `images` is how many the run would extract, after those already done."""

    images: int
    timed: int
    seconds_per_image: float
    bytes_per_image: float
    shard_size: int
    num_shards: int

    @property
    def seconds(self) -> float:
        return self.images * self.seconds_per_image


def run_extract(request: ExtractRequest) -> RunSummary:
    """Extracts what is missing in the store, publishes it, writes the report.

    Raises:
        ValueError: one line for the user, before anything is written where possible.
    """
    start = time.monotonic()
    check_output_folder(request.store)
    pipeline_options(request.runner, request.beam_args)
    job, text = _prepare(request)
    request.store.mkdir(parents=True, exist_ok=True)
    with store_lock(request.store):
        _clear_leftovers(request.store)
        plan, notes = _plan(request)
        view = ProgressView(request.store, plan)
        before = view.read()
        with ProgressPrinter(view, plan.num_images, as_json=request.as_json):
            run_extraction(job, plan.shards, text, runner=request.runner, beam_args=request.beam_args)
        after = view.read()
        seconds = time.monotonic() - start
        manifest = StoreManifest.read(request.store / STORE_MANIFEST_NAME)
        write_run_report(request.store, plan, seconds=seconds if before.images == 0 else None)
    return RunSummary(
        manifest, plan.num_images, after.images - before.images, seconds, after.failures,
        (*request.source.notes, *notes), request.max_failures,
    )  # fmt: skip


def estimate(request: ExtractRequest) -> Estimate:
    """Times three photos, writes nothing."""
    check_output_folder(request.store)
    images = _new_images(request, _existing_plan(request))[0]
    step = max(1, len(images) // DRY_RUN_IMAGES)
    chosen = images[::step][:DRY_RUN_IMAGES]
    seconds, num_bytes, timed = 0.0, 0, 0
    for image in chosen:
        start = time.monotonic()
        (outcome,) = extract([image], shared_detector(request.detector), options=request.options)
        if isinstance(outcome, Failure):
            log.warning("dry run: %s: %s (%s)", image.image_id, outcome.reason, outcome.detail)
            continue
        seconds += time.monotonic() - start
        num_bytes += len(encode_meta(outcome)) + 4096 * -(-(len(encode_regions(outcome)) + 16) // 4096)
        timed += 1
    if images and not timed:
        raise ValueError(f"none of the {len(chosen)} images tried could be extracted; see the warnings above")
    per_image = seconds / max(timed, 1)
    size = request.shard_size or shard_size_for(per_image)
    return Estimate(len(images), timed, per_image, num_bytes / max(timed, 1), size, -(-len(images) // size))


def check_output_folder(store: Path) -> None:
    """Raises ValueError when `store` cannot become or continue a store: a file, or a folder with other things in it."""
    if store.exists() and not store.is_dir():
        raise ValueError(f"{store} is a file; give a folder to write the store into")
    if store.is_dir() and read_plan(store) is None:
        others = [path.name for path in store.iterdir() if path.name not in (LOCK_NAME, "plan")]
        if others:
            raise ValueError(
                f"{store} is not empty and no store of ours ({sorted(others)[0]} is in it); choose a new folder"
            )


def _prepare(request: ExtractRequest) -> tuple[ExtractJob, StoreText]:
    digest = vocabulary_digest(request.vocabulary.classes, request.vocabulary.attributes)
    fingerprint = shared_fingerprint(request.detector, request.options, digest)
    store = request.store.absolute()
    job = ExtractJob(str(store), request.detector, request.options, fingerprint.feature_space, digest)
    config = {
        "source": _source_facts(request.source),
        "detector": asdict(request.detector),
        "options": asdict(request.options),
        "max_failures": request.max_failures,
    }
    return job, StoreText(config, request.vocabulary, fingerprint)


def _source_facts(source: Source) -> dict[str, str]:
    return {
        "kind": source.kind,
        "location": source.location,
        "image_root": source.image_root,
        "id_rule": source.id_rule,
    }


def _settings(request: ExtractRequest) -> dict[str, Any]:
    """What must not change between runs into one store, field by field, so that a change can be named."""
    digest = vocabulary_digest(request.vocabulary.classes, request.vocabulary.attributes)
    details = shared_fingerprint(request.detector, request.options, digest).details
    return {"distribution": request.options.distribution, "feature_space": details}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _existing_plan(request: ExtractRequest) -> Plan | None:
    """The store's plan, if it belongs to this source and these settings."""
    plan = read_plan(request.store)
    if plan is None:
        return None
    if plan.source != _source_facts(request.source):
        had, got = plan.source, _source_facts(request.source)
        key = next(key for key in got if had.get(key) != got[key])
        raise ValueError(
            f"{request.store} holds another run: its source has {key} {had.get(key)}, now {got[key]}; "
            f"choose a new folder"
        )
    had, now = _flat(plan.settings), _flat(_settings(request))
    different = [key for key in sorted(had | now) if had.get(key) != now.get(key)]
    if different:
        changes = ", ".join(f"{key} was {had.get(key)}, is now {now.get(key)}" for key in different[:3])
        raise ValueError(
            f"{request.store} was made with other settings: {changes}; repeat them, or choose a new folder"
        )
    return plan


def _new_images(request: ExtractRequest, plan: Plan | None) -> tuple[list[ImageRef], list[str]]:
    """Images that no shard holds yet; notes on planned ones that are gone."""
    if plan is None:
        return request.source.images, []
    known = planned_ids(request.store, plan)
    new = [image for image in request.source.images if image.image_id not in known]
    gone = len(known) - (len(request.source.images) - len(new))
    return new, [f"{gone:,} images of earlier runs are no longer in the source; their records stay"] if gone else []


def _plan(request: ExtractRequest) -> tuple[Plan, list[str]]:
    plan = _existing_plan(request)
    new, notes = _new_images(request, plan)
    if plan is not None and not new:
        return plan, notes
    size = request.shard_size or shard_size_for(_time_one(new, request))
    facts, settings = _source_facts(request.source), _settings(request)
    plan = extend_plan(request.store, plan, source=facts, settings=settings, images=new, shard_size=size)
    return plan, notes


def _time_one(images: Sequence[ImageRef], request: ExtractRequest) -> float:
    """Seconds one image takes, warm-up included, so that shards come out rather too small than too large."""
    for image in images[:TIMING_TRIES]:
        start = time.monotonic()
        (outcome,) = extract([image], shared_detector(request.detector), options=request.options)
        if not isinstance(outcome, Failure):
            return time.monotonic() - start
    return 1.0


def _clear_leftovers(store: Path) -> None:
    """Removes what killed runs left: scratch folders, and data files that no manifest names. Needs the store's lock."""
    for scratch in store.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(scratch)
    plan = read_plan(store)
    named = {manifest.data_file for manifest in read_shard_manifests(store, plan) if manifest} if plan else set()
    for data in store.glob("part-*.lmdb"):
        if data.name not in named:
            data.unlink()
    for temporary in [*store.glob(f".*{TEMPORARY_SUFFIX}"), *store.glob(f"*{TEMPORARY_SUFFIX}")]:
        temporary.unlink()


def summary_event(summary: RunSummary, store: Path) -> str:
    """The run's end as one JSON line."""
    manifest = summary.manifest
    return json.dumps(
        {
            "event": "done", "store": str(store), "report": str(store / REPORT_NAME), "images": summary.num_images,
            "new_images": summary.new_images, "records": manifest.num_records, "regions": manifest.num_regions,
            "failures": dict(summary.failures), "seconds": round(summary.seconds, 3),
            "content_digest": manifest.content_digest, "succeeded": summary.succeeded,
        }
    )  # fmt: skip
