"""The Beam pipeline: shards are the elements, so features never travel through a shuffle.

    Create(shards) | Reshuffle | ExtractShards | gather -> PublishStore

Beam spreads and repeats shards; `pipelines.shard_job` makes repeating them safe.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
import lmdb
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, PortableOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import ExternalEnvironment

from pipelines.job import ExtractJob
from pipelines.plan import PlannedShard
from pipelines.publish import StoreText, publish_run
from pipelines.runners.option_sets import pipeline_options
from pipelines.runners.with_workers import run_with_workers
from pipelines.running_shards import stopping_with_the_caller
from pipelines.shard_job import ShardResult, extract_shard

STOP_SECONDS = 6.0  # for dropping the shards in work after Ctrl-C; a detector call is not waited for


class ExtractShards(beam.DoFn):
    """PlannedShard -> ShardResult; the detector is loaded once per process, on first use."""

    def __init__(self, job: ExtractJob) -> None:
        self._job = job
        self._records = Metrics.counter("roibeam", "records")
        self._failures = Metrics.counter("roibeam", "failures")
        self._seconds = Metrics.distribution("roibeam", "shard_seconds")

    def process(self, shard: PlannedShard) -> Iterator[ShardResult]:
        result = extract_shard(self._job, shard)
        if result.seconds is not None:
            self._records.inc(result.num_records)
            self._failures.inc(result.num_failures)
            self._seconds.update(round(result.seconds))
        yield result


class PublishStore(beam.DoFn):
    """All ShardResults -> manifest.json and dead_letters.parquet, written once every shard is there."""

    def __init__(self, store: str, text: StoreText) -> None:
        self._store, self._text = store, text

    def process(self, results: Sequence[ShardResult]) -> Iterator[int]:
        nothing_new = all(result.seconds is None for result in results)
        yield publish_run(self._store, self._text, keep=nothing_new).num_records


def run_extraction(
    job: ExtractJob,
    shards: Iterable[PlannedShard],
    text: StoreText,
    *,
    runner: str,
    beam_args: Sequence[str],
    workers: int = 1,
) -> None:
    """Runs the pipeline to its end.

    Args:
        runner: see `pipelines.runners.option_sets`.
        beam_args: further Beam pipeline options, as on its command line.
        workers: processes of the local runner; 1 means this one.
    Raises:
        ValueError: for an option that Beam does not know.
        OSError, ValueError, RuntimeError: whatever stopped a worker.
    """
    options = pipeline_options(runner, beam_args, device=job.detector.device)
    try:
        with stopping_with_the_caller(STOP_SECONDS):
            if runner == "local" and workers == 1:
                # The DirectRunner by name would first try to download Prism; the engine it falls back to is named.
                _run(extraction_pipeline(job, shards, text, options, FnApiRunner()))
            elif runner == "local":
                run_with_workers(functools.partial(_run_local, job, shards, text, options, workers))
            elif runner == "portable" and options.view_as(PortableOptions).environment_config is None:
                run_with_workers(functools.partial(_run_portable, job, shards, text, options))
            else:
                _run(extraction_pipeline(job, shards, text, options))
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


def _run(pipeline: beam.Pipeline) -> None:
    pipeline.run().wait_until_finish()


def _run_local(
    job: ExtractJob, shards: Iterable[PlannedShard], text: StoreText, options: PipelineOptions, workers: int, pool: str
) -> None:
    """On Beam's local engine with so many processes of the pool."""
    options.view_as(DirectOptions).direct_num_workers = workers
    _run(extraction_pipeline(job, shards, text, options, FnApiRunner(ExternalEnvironment(pool))))


def _run_portable(
    job: ExtractJob, shards: Iterable[PlannedShard], text: StoreText, options: PipelineOptions, pool: str
) -> None:
    """Through the interfaces that clusters have: a job service, and workers of the pool."""
    options.view_as(PortableOptions).environment_config = pool
    _run(extraction_pipeline(job, shards, text, options))


def _cause(error: Exception) -> BaseException:
    """What went wrong in the worker; Beam wraps it into a RuntimeError whose text is the whole traceback."""
    cause = error.__context__
    if isinstance(cause, lmdb.Error):
        return OSError(f"cannot write the store: {cause}")
    if isinstance(cause, OSError | ValueError | RuntimeError | KeyboardInterrupt):
        return cause
    return error
