"""One extraction run from the driver's side: tidy, plan, Beam pipeline, report, verdict.

    run_extract(request) -> open_work -> extract_work -> RunSummary
    Create(shards) | Reshuffle | ExtractShards | gather -> PublishStore

Shards are the elements, so features never travel through a shuffle. Beam spreads and repeats shards;
`roibeam.pipelines.extract.shard.shard_job` makes repeating them safe. The command line opens the work itself, before
it imports this file: an error in a request is reported before torch and Beam are there.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.weights.detector_choice import Detectron2Config
from roibeam.features.folders.folder_protocol import OutputFolder, run_lock
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest
from roibeam.messages import plural
from roibeam.pipelines.common.console.progress import Progress, duration, waiting
from roibeam.pipelines.common.console.termination import set_resume_hint
from roibeam.pipelines.data.datasets.photo_folders import DRAWN_WORLD, are_toy_photos
from roibeam.pipelines.data.feature_settings import conventions_name, selection_name
from roibeam.pipelines.data.shard_plan import Plan, PlannedShard, plan_of_now
from roibeam.pipelines.extract.planning import check_classes, fitting_plan, make_plan, source_facts
from roibeam.pipelines.extract.request import ExtractRequest, RunnerChoice, RunOptions
from roibeam.pipelines.extract.runners.pipeline_run import check_runner, run_pipeline
from roibeam.pipelines.extract.shard.detector_spec import ExtractJob
from roibeam.pipelines.extract.shard.run_progress import REMOTE_LOOK_SECONDS, ProgressView, num_extracted
from roibeam.pipelines.extract.shard.shard_job import ShardMeter, ShardResult, extract_shard, shared_fingerprint
from roibeam.pipelines.extract.shard.store_folder import (
    SUMMARY_NAME,
    RunEnd,
    StoreText,
    publish_run,
    tidy_store,
    write_run_summary,
)
from roibeam.pipelines.extract.store_page import has_toy_photos, is_toy_world_detector, warning_of_store
from roibeam.pipelines.extract.store_report import REPORT_NAME, output_tree, write_run_report
from roibeam.pipelines.extract.work import Work, open_work

PIPELINE = __name__  # for workers to import before they have threads
METRICS = "roibeam"  # the namespace


class ExtractShards(beam.DoFn):
    """PlannedShard -> ShardResult; the detector is loaded once per process, on first use."""

    def __init__(self, job: ExtractJob) -> None:
        self._job = job

    def process(self, shard: PlannedShard) -> Iterator[ShardResult]:
        meter = ShardMeter()
        result = extract_shard(self._job, shard, meter)
        if result.seconds is not None:
            report_metrics(result, meter)
        yield result


def report_metrics(result: ShardResult, meter: ShardMeter) -> None:
    """Reports an extracted shard to Beam: counters ok, dead, dead_<reason>, regions, bytes; distributions
    decode_ms, net_ms, write_ms over images and shard_seconds over shards. Namespace "roibeam".

    A shard counts once it has its manifest, so lost attempts are not in them.
    """
    Metrics.counter(METRICS, "ok").inc(result.num_records - meter.num_copied)
    Metrics.counter(METRICS, "dead").inc(result.num_failures)
    for reason, count in Counter(failure.reason for failure in meter.failures).items():
        Metrics.counter(METRICS, f"dead_{reason.replace(' ', '_')}").inc(count)
    Metrics.counter(METRICS, "regions").inc(meter.num_regions)
    Metrics.counter(METRICS, "bytes").inc(meter.num_bytes)
    for name in ("decode_ms", "net_ms", "write_ms"):
        distribution = Metrics.distribution(METRICS, name)
        for value in getattr(meter.times, name).values:
            distribution.update(value)
    assert result.seconds is not None
    Metrics.distribution(METRICS, "shard_seconds").update(round(result.seconds))


class PublishStore(beam.DoFn):
    """All ShardResults -> manifest.json and dead_letters.parquet, written once every shard is there."""

    def __init__(self, store: str, plan: Plan, text: StoreText) -> None:
        self._store, self._plan, self._text = store, plan, text

    def process(self, results: Sequence[ShardResult]) -> Iterator[int]:
        yield publish_run(output_folder(self._store), self._plan, self._text, keep=True).num_records


def run_extraction(job: ExtractJob, plan: Plan, text: StoreText, choice: RunnerChoice) -> dict[str, Any]:
    """Runs the pipeline to its end.

    Returns:
        Beam's metrics, by the names of `report_metrics`: numbers, and {"count", "sum", "min", "max"} of
        distributions. Committed values where the runner has them, attempted ones elsewhere.
    """
    return run_pipeline(
        functools.partial(extraction_pipeline, job, plan, text),
        choice,
        preload=PIPELINE,
        device=job.detector.device,
        namespace=METRICS,
        num_elements=len(plan.shards),
    )


def extraction_pipeline(
    job: ExtractJob, plan: Plan, text: StoreText, options: PipelineOptions, runner: PipelineRunner | None = None
) -> beam.Pipeline:
    """The pipeline, not yet run; `runner` None means the one that `options` name."""
    pipeline = beam.Pipeline(runner=runner, options=options)
    _ = (
        pipeline
        | "Shards" >> beam.Create(plan.shards, reshuffle=False)  # else they are spread twice
        | "Spread" >> beam.Reshuffle()
        | "Extract" >> beam.ParDo(ExtractShards(job))
        | "Gather" >> beam.combiners.ToList()
        | "Publish" >> beam.ParDo(PublishStore(job.store, plan, text))
    )
    return pipeline


log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class RunSummary:
    """Result of a run. `seconds`, `new_images` and `metrics` (Beam's) are of this run, the counts of the whole store;
    `device` is torch's name of the detector's device."""

    store: OutputFolder
    manifest: StoreManifest
    num_images: int
    new_images: int
    seconds: float
    failures: Counter[str]
    notes: tuple[str, ...]
    max_failures: float
    metrics: dict[str, Any]
    device: str

    @property
    def failed_share(self) -> float:
        return self.failures.total() / max(self.num_images, 1)

    @property
    def succeeded(self) -> bool:
        return self.failed_share <= self.max_failures

    @property
    def warning(self) -> str | None:
        """Warning that the regions mean nothing, with the reason; None where they may mean something."""
        found = warning_of_store(self.manifest)
        return None if found is None else found.line

    def __repr__(self) -> str:
        """RunSummary(store: 12 records with 240 regions, 1 image failed; 12 images extracted in 3 s)"""
        held = f"{plural(self.manifest.num_records, 'record')} with {plural(self.manifest.num_regions, 'region')}"
        failed = f"{plural(self.failures.total(), 'image')} failed"
        done = f"{plural(self.new_images, 'image')} extracted in {duration(self.seconds)}"
        return f"RunSummary({self.store}: {held}, {failed}; {done})"


def run_extract(request: ExtractRequest, *, tell: Callable[[str], None] = log.info) -> RunSummary:
    """Runs `roibeam extract`: extracts all images of a source that the store lacks.

    Args:
        tell: called with each remark for the user, a line.
    Raises:
        ValueError: one line for the user, before anything is written where possible.
        OSError: if the store cannot be written.
    """
    return extract_work(open_work(request, tell=tell), request.run, tell=tell)


def extract_work(work: Work, options: RunOptions, *, tell: Callable[[str], None] = log.info) -> RunSummary:
    """Extracts what is missing in the store, publishes it, writes the report.

    Args:
        tell: called with a line on the shards, once they are known.
    """
    started = time.time()
    folder = work.store
    check_runner(options, preload=PIPELINE, device=work.detector.device)
    with waiting("loading the detector"):
        job, text = _prepare(work, options)
    if folder.local_path is not None:
        folder.local_path.mkdir(parents=True, exist_ok=True)
    with run_lock(folder):
        before = plan_of_now(folder, work.plan)
        fitting = fitting_plan(work, before)
        tidy_store(folder, fitting, job.feature_space, retry_dead_letters=options.retry_dead_letters)
        plan, notes = make_plan(work, fitting, options.max_failures, replaced=before)
        view = ProgressView(folder, plan)
        view.begin()
        if not options.json:
            tell(_shards_words(plan, len(view.finished), folder))
        all_notes = (*work.source.notes, *notes)

        def end(status: str, error: str | None, done: RunSummary | None = None) -> None:
            ended = time.time() if done is None else started + done.seconds
            run_end = RunEnd(
                status, error, options.runner, options.beam_args, started, ended, all_notes,
                None if done is None else done.manifest.content_digest, None if done is None else done.metrics,
            )  # fmt: skip
            write_run_summary(folder, plan, run_end, view)

        least_seconds = 1.0 if folder.local_path is not None else REMOTE_LOOK_SECONDS
        try:
            with Progress(
                "extracting", plan.num_images, view=view.read, as_json=options.json, least_seconds=least_seconds
            ):
                metrics = run_extraction(job, plan, text, options)
            after = view.read()
            tidy_store(folder, plan, job.feature_space)
            new_images = num_extracted(view.new())
            seconds = round(time.time() - started, 3)  # as the summary keeps it, so that a rerun reports the same
            data = folder.read_bytes(STORE_MANIFEST_NAME)
            manifest = StoreManifest.from_bytes(data, folder.where(STORE_MANIFEST_NAME))
            with waiting("writing the report"):
                write_run_report(folder, plan, manifest, seconds=seconds, new_images=new_images)
        except KeyboardInterrupt:
            end("interrupted", "interrupted")
            finished = f"{len(view.finished):,} of {plural(len(plan.shards), 'shard')}"
            set_resume_hint(f"{finished} finished and kept, what is in work is dropped")
            raise
        except Exception as error:
            end("failed", " ".join(str(error).split()) or type(error).__name__)
            raise
        summary = RunSummary(
            folder, manifest, plan.num_images, new_images, seconds, after.failures, all_notes,
            options.max_failures, metrics, work.detector.device,
        )  # fmt: skip
        failed = None if summary.succeeded else f"{summary.failed_share:.1%} of the images failed"
        end("finished" if failed is None else "failed", failed, summary)
    return summary


def _shards_words(plan: Plan, num_finished: int, folder: OutputFolder) -> str:
    """Line on the work to do and its output, the last one before the work."""
    most = max((shard.num_images for shard in plan.shards), default=0)
    done = f", {num_finished:,} of them finished before" if num_finished else ""
    return f"{plural(len(plan.shards), 'shard')} of at most {plural(most, 'image')}{done}, into {folder}"


def _prepare(work: Work, options: RunOptions) -> tuple[ExtractJob, StoreText]:
    check_classes(work)
    config_of = work.detector.config
    # Its numerics are this process's; the store's are taken from the shards.
    fingerprint = shared_fingerprint(work.detector_here, work.options, work.vocabulary.digest, work.boxes is not None)
    job = ExtractJob(
        store=str(work.store),
        image_root=work.source.image_root,
        detector=work.detector,
        options=work.options,
        feature_space=fingerprint.feature_space,
        vocabulary_digest=work.vocabulary.digest,
        given_boxes=work.boxes is not None,
        scratch=options.scratch,
    )
    has_grid = bool(getattr(config_of, "grid", ""))
    config: dict[str, Any] = {
        "source": source_facts(work),
        "detector": work.detector.to_json(),
        "conventions": conventions_name(asdict(work.detector.conventions))
        if isinstance(config_of, DetectorConfig)
        else "detectron2's own"
        if isinstance(config_of, Detectron2Config)
        else "the model's own",
        "selection": None if work.boxes is not None or has_grid else selection_name(asdict(work.detector.selection)),
        "options": asdict(work.options),
        "max_failures": options.max_failures,
    }
    if is_toy_world_detector(work.detector.weights, work.vocabulary.classes):
        photos = (image.location for image in work.source.images)
        config[DRAWN_WORLD] = has_toy_photos(config["source"]) or are_toy_photos(photos)
    if work.captions is not None:
        config["captions"] = work.captions.report.to_json()
    if work.leaks is not None:
        config["held_out"] = work.leaks.to_json()
    return job, StoreText(config, work.vocabulary, fingerprint)


def summary_event(summary: RunSummary) -> str:
    """The run's end as one JSON line."""
    manifest, store = summary.manifest, summary.store
    return json.dumps(
        {
            "event": "done", "store": str(store), "report": store.where(REPORT_NAME),
            "summary": store.where(SUMMARY_NAME), "images": summary.num_images,
            "new_images": summary.new_images, "records": manifest.num_records, "regions": manifest.num_regions,
            "failures": dict(summary.failures), "seconds": round(summary.seconds, 3), "device": summary.device,
            "notes": list(summary.notes), "warning": summary.warning,
            "metrics": summary.metrics, "content_digest": manifest.content_digest, "succeeded": summary.succeeded,
            "join": manifest.config.get("captions"), "held_out": manifest.config.get("held_out"),
        }
    )  # fmt: skip


def summary_text(summary: RunSummary) -> str:
    """The run's end for the terminal, with the tree that was written."""
    manifest = summary.manifest
    lines = [f"note: {note}" for note in summary.notes]
    if summary.new_images:
        done = f"{plural(summary.new_images, 'image')} extracted in {duration(summary.seconds)}"
    else:
        done = f"all {plural(summary.num_images, 'image')} are there already; nothing to do"
    lines.append(
        f"{plural(manifest.num_records, 'record')} with {plural(manifest.num_regions, 'region')}, "
        f"{plural(manifest.num_dead_letters, 'dead letter')}; {done}"
    )
    for reason, count in summary.failures.most_common():
        lines.append(f"  {count:>6,} {reason}")
    if summary.warning is not None:
        lines.append(f"warning: {summary.warning}")
    return "\n".join([*lines, "", *output_tree(summary.store)])
