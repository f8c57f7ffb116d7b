"""The Beam pipeline: shards are the elements, so features never travel through a shuffle.

    Create(shards) | Reshuffle | ExtractShards | gather -> PublishStore

Beam spreads and repeats shards; `roibeam.pipelines.extract.shard.shard_job` makes repeating them safe.
"""

from __future__ import annotations

import functools
import json
import urllib.error
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import grpc
import lmdb
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, PortableOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import ExternalEnvironment

from roibeam.pipelines.extract.runners.flink_job import ended_with_the_run
from roibeam.pipelines.extract.runners.option_sets import pipeline_options
from roibeam.pipelines.extract.runners.worker_pool import WorkerPool, run_with_workers
from roibeam.pipelines.extract.shard.detector_spec import ExtractJob
from roibeam.pipelines.extract.shard.running_shards import stopping_with_the_caller
from roibeam.pipelines.extract.shard.shard_job import ShardMeter, ShardResult, extract_shard
from roibeam.pipelines.extract.shard_plan import PlannedShard
from roibeam.pipelines.extract.store_manifest import StoreText, publish_run

PIPELINE = __name__  # for workers to import before they have threads
METRICS = "roibeam"  # the namespace
STOP_SECONDS = 6.0  # for dropping the shards in work after Ctrl-C; a detector call is not waited for


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
    """Tells Beam of a shard that was extracted: counters ok, dead, dead_<reason>, regions, bytes; distributions
    decode_ms, net_ms, write_ms over images and shard_seconds over shards. Namespace "roibeam".

    A shard counts once it has its manifest, so what a repeated attempt did before it was lost is not in them.
    """
    Metrics.counter(METRICS, "ok").inc(result.num_records)
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
    job: ExtractJob,
    shards: Iterable[PlannedShard],
    text: StoreText,
    *,
    runner: str,
    beam_args: Sequence[str],
    workers: int = 1,
    pool_token_file: str | None = None,
) -> dict[str, Any]:
    """Runs the pipeline to its end.

    Args:
        runner: see `roibeam.pipelines.extract.runners.option_sets`.
        beam_args: further Beam pipeline options, as on its command line.
        workers: processes of the local runner; 1 means this one.
        pool_token_file: see `pipeline_options`.
    Returns:
        What Beam counted, by the names of `report_metrics`: numbers, and {"count", "sum", "min", "max"} of
        distributions. Committed values where the runner tells them, attempted ones elsewhere.
    Raises:
        ValueError: for an option that Beam does not know.
        OSError, ValueError, RuntimeError: whatever stopped a worker.
    """
    options = pipeline_options(
        runner, beam_args, preload=PIPELINE, device=job.detector.device, pool_token_file=pool_token_file
    )
    try:
        with stopping_with_the_caller(STOP_SECONDS):
            if runner == "local" and workers == 1:
                # The DirectRunner by name would first try to download Prism; the engine it falls back to is named.
                return _run(extraction_pipeline(job, shards, text, options, FnApiRunner()))
            elif runner == "local":
                return run_with_workers(
                    functools.partial(_run_local, job, shards, text, options, workers), preload=PIPELINE
                )
            elif runner == "portable" and options.view_as(PortableOptions).environment_config is None:
                return run_with_workers(functools.partial(_run_portable, job, shards, text, options), preload=PIPELINE)
            elif runner == "flink":
                with ended_with_the_run(options):
                    return _run(extraction_pipeline(job, shards, text, options))
            else:
                return _run(extraction_pipeline(job, shards, text, options))
    except Exception as error:
        raise _cause(error) from None


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
        | "Shards" >> beam.Create(list(shards))
        | "Spread" >> beam.Reshuffle()
        | "Extract" >> beam.ParDo(ExtractShards(job))
        | "Gather" >> beam.combiners.ToList()
        | "Publish" >> beam.ParDo(PublishStore(job.store, text))
    )
    return pipeline


def _run(pipeline: beam.Pipeline) -> dict[str, Any]:
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace(METRICS))
    counters = {one.key.metric.name: one.result for one in found["counters"]}
    distributions = {
        one.key.metric.name: {name: getattr(one.result, name) for name in ("count", "sum", "min", "max")}
        for one in found["distributions"]
    }
    return {**counters, **distributions}


def _run_local(
    job: ExtractJob,
    shards: Iterable[PlannedShard],
    text: StoreText,
    options: PipelineOptions,
    workers: int,
    pool: WorkerPool,
) -> dict[str, Any]:
    """On Beam's local engine with so many processes of the pool."""
    options.view_as(DirectOptions).direct_num_workers = workers
    return _run(
        extraction_pipeline(job, shards, text, options, FnApiRunner(ExternalEnvironment(pool.address, pool.params)))
    )


def _run_portable(
    job: ExtractJob, shards: Iterable[PlannedShard], text: StoreText, options: PipelineOptions, pool: WorkerPool
) -> dict[str, Any]:
    """Through the interfaces that clusters have: a job service, and workers of the pool."""
    options.view_as(PortableOptions).environment_config = json.dumps({"url": pool.address, "params": pool.params})
    return _run(extraction_pipeline(job, shards, text, options))


def _cause(error: Exception) -> BaseException:
    """What went wrong in the worker; Beam wraps it into a RuntimeError whose text is the whole traceback."""
    cause = error.__context__
    unreached = next((one for one in (error, cause) if isinstance(one, urllib.error.URLError)), None)
    if unreached is not None:
        return OSError(
            f"Beam could not fetch its job server ({unreached.reason}); hand over the jar: "
            f"-- --flink_job_server_jar=FILE (`make flink-packages` makes one), or --spark_job_server_jar=FILE"
        )
    if isinstance(error, grpc.RpcError):
        return OSError(
            "Beam's job service hung up: has its process died? A job on a cluster may go on without it; "
            "when that has ended, or was cancelled, the same command does what is missing"
        )
    if isinstance(cause, lmdb.Error):
        return OSError(f"cannot write the store: {cause}")
    if isinstance(cause, OSError | ValueError | RuntimeError | KeyboardInterrupt):
        return cause
    return error
