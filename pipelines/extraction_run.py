"""One extraction run from the driver's side: tidy, plan, pipeline, report, verdict. The command line calls this."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from features.counted import counted
from features.manifest import STORE_MANIFEST_NAME, StoreManifest, shard_manifest_name
from pipelines.beam_extraction import run_extraction
from pipelines.job import ExtractJob, shared_detector, shared_fingerprint
from pipelines.planning import Work, existing_plan, make_plan, source_facts
from pipelines.preset_names import conventions_name, selection_name
from pipelines.progress import ProgressPrinter, ProgressView
from pipelines.publish import StoreText
from pipelines.run_report import REPORT_NAME, write_run_report
from pipelines.runners.option_sets import pipeline_options
from pipelines.store_folder import check_output_folder, tidy_store
from pipelines.store_lock import store_lock

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out; nothing here changes what the store holds.

    Attributes:
        max_failures: share of failed images (0..1) above which the run counts as failed.
        retry_dead_letters: extract shards that hold dead letters again.
        runner, beam_args, workers: see `pipelines.beam_extraction.run_extraction`.
        as_json: progress as JSON lines.
    """

    max_failures: float = 0.05
    retry_dead_letters: bool = False
    runner: str = "local"
    beam_args: tuple[str, ...] = ()
    workers: int = 1
    as_json: bool = False


@dataclass(frozen=True)
class RunSummary:
    """How a run ended. `seconds`, `new_images` and `metrics` (Beam's) are of this run, the counts of the whole
    store."""

    manifest: StoreManifest
    num_images: int
    new_images: int
    seconds: float
    failures: Counter[str]
    notes: tuple[str, ...]
    max_failures: float
    metrics: dict[str, Any]

    @property
    def failed_share(self) -> float:
        return self.failures.total() / max(self.num_images, 1)

    @property
    def succeeded(self) -> bool:
        return self.failed_share <= self.max_failures


def run_extract(work: Work, options: RunOptions) -> RunSummary:
    """Extracts what is missing in the store, publishes it, writes the report.

    Raises:
        ValueError: one line for the user, before anything is written where possible.
        OSError: if the store cannot be written.
    """
    start = time.monotonic()
    check_output_folder(work.store)
    pipeline_options(options.runner, options.beam_args, device=work.detector.device)
    job, text = _prepare(work, options)
    work.store.mkdir(parents=True, exist_ok=True)
    with store_lock(work.store):
        tidy_store(work.store, existing_plan(work), job.feature_space, retry_dead_letters=options.retry_dead_letters)
        plan, notes = make_plan(work)
        view = ProgressView(work.store, plan)
        before = view.read()
        try:
            with ProgressPrinter(view, plan.num_images, as_json=options.as_json):
                metrics = run_extraction(
                    job, plan.shards, text, runner=options.runner, beam_args=options.beam_args, workers=options.workers
                )
        except KeyboardInterrupt:
            num_finished = sum((work.store / shard_manifest_name(shard.number)).exists() for shard in plan.shards)
            log.warning("%d of %s finished; those stay, the one in work is dropped and extracted again by the same "
                        "command", num_finished, counted(len(plan.shards), "shard"))  # fmt: skip
            raise
        after = view.read()
        tidy_store(work.store, plan, job.feature_space)
        seconds = time.monotonic() - start
        manifest = StoreManifest.read(work.store / STORE_MANIFEST_NAME)
        write_run_report(work.store, plan, seconds=seconds if before.images == 0 else None)
    return RunSummary(
        manifest, plan.num_images, after.images - before.images, seconds, after.failures,
        (*work.source.notes, *notes), options.max_failures, metrics,
    )  # fmt: skip


def _prepare(work: Work, options: RunOptions) -> tuple[ExtractJob, StoreText]:
    top_k, num_classes = work.options.top_k, shared_detector(work.detector).num_classes
    if top_k is not None and top_k > num_classes + 1:
        raise ValueError(f"distribution top-{top_k}: the detector has {num_classes} classes and background")
    fingerprint = shared_fingerprint(work.detector, work.options, work.vocabulary.digest, work.boxes is not None)
    job = ExtractJob(
        store=str(work.store.absolute()),
        image_root=work.source.image_root,
        detector=work.detector,
        options=work.options,
        feature_space=fingerprint.feature_space,
        vocabulary_digest=work.vocabulary.digest,
        given_boxes=work.boxes is not None,
    )
    config: dict[str, Any] = {
        "source": source_facts(work),
        "detector": asdict(work.detector),
        "conventions": conventions_name(asdict(work.detector.conventions)),
        "selection": None if work.boxes is not None else selection_name(asdict(work.detector.selection)),
        "options": asdict(work.options),
        "max_failures": options.max_failures,
    }
    return job, StoreText(config, work.vocabulary, fingerprint)


def summary_event(summary: RunSummary, store: Path) -> str:
    """The run's end as one JSON line."""
    manifest = summary.manifest
    return json.dumps(
        {
            "event": "done", "store": str(store), "report": str(store / REPORT_NAME), "images": summary.num_images,
            "new_images": summary.new_images, "records": manifest.num_records, "regions": manifest.num_regions,
            "failures": dict(summary.failures), "seconds": round(summary.seconds, 3), "notes": list(summary.notes),
            "metrics": summary.metrics, "content_digest": manifest.content_digest, "succeeded": summary.succeeded,
        }
    )  # fmt: skip
