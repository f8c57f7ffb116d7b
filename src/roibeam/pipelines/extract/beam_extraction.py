"""The Beam pipeline: shards are the elements, so features never travel through a shuffle.

    Create(shards) | Reshuffle | ExtractShards | gather -> PublishStore

Beam spreads and repeats shards; `roibeam.pipelines.extract.shard.shard_job` makes repeating them safe.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

from roibeam.pipelines.data.shard_plan import PlannedShard
from roibeam.pipelines.extract.runners.pipeline_run import RunnerChoice, run_pipeline
from roibeam.pipelines.extract.shard.detector_spec import ExtractJob
from roibeam.pipelines.extract.shard.shard_job import ShardMeter, ShardResult, extract_shard
from roibeam.pipelines.extract.shard.store_folder import StoreText, publish_run

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

    def __init__(self, store: str, text: StoreText) -> None:
        self._store, self._text = store, text

    def process(self, results: Sequence[ShardResult]) -> Iterator[int]:
        yield publish_run(self._store, self._text, keep=True).num_records


def run_extraction(
    job: ExtractJob, shards: Iterable[PlannedShard], text: StoreText, choice: RunnerChoice
) -> dict[str, Any]:
    """Runs the pipeline to its end.

    Args:
        choice: the runner.
    Returns:
        Beam's metrics, by the names of `report_metrics`: numbers, and {"count", "sum", "min", "max"} of
        distributions. Committed values where the runner has them, attempted ones elsewhere.
    Raises:
        ValueError: for an option that Beam does not know.
        OSError, ValueError, RuntimeError: the error that stopped a worker.
    """
    shards = list(shards)
    return run_pipeline(
        functools.partial(extraction_pipeline, job, shards, text),
        choice,
        preload=PIPELINE,
        device=job.detector.device,
        namespace=METRICS,
        num_elements=len(shards),
    )


def extraction_pipeline(
    job: ExtractJob,
    shards: Iterable[PlannedShard],
    text: StoreText,
    options: PipelineOptions,
    runner: PipelineRunner | None = None,
) -> beam.Pipeline:
    """The pipeline, not yet run; `runner` None means the one that `options` name."""
    pipeline = beam.Pipeline(runner=runner, options=options)
    _ = (
        pipeline
        | "Shards" >> beam.Create(list(shards), reshuffle=False)  # else they are spread twice
        | "Spread" >> beam.Reshuffle()
        | "Extract" >> beam.ParDo(ExtractShards(job))
        | "Gather" >> beam.combiners.ToList()
        | "Publish" >> beam.ParDo(PublishStore(job.store, text))
    )
    return pipeline
