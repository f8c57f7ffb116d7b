"""The Beam pipeline: shards are the elements, so features never travel through a shuffle.

    Create(shards) | Reshuffle | ExtractShards | gather -> PublishStore

Beam spreads and repeats shards; `pipelines.shard_job` makes repeating them safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
import lmdb
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipelines.job import ExtractJob
from pipelines.plan import PlannedShard
from pipelines.publish import StoreText, publish_run
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
    job: ExtractJob, shards: Iterable[PlannedShard], text: StoreText, *, runner: str, beam_args: Sequence[str]
) -> None:
    """Runs the pipeline to its end.

    Args:
        runner: "local" (this process, no download) or the name of a Beam runner.
        beam_args: further Beam pipeline options, as on its command line.
    Raises:
        ValueError: for an option that Beam does not know.
        OSError, ValueError, RuntimeError: whatever stopped a worker.
    """
    options = pipeline_options(runner, beam_args)
    # The DirectRunner by name would first try to download Prism; the local engine it falls back to is named directly.
    pipeline = beam.Pipeline(runner=FnApiRunner() if runner == "local" else None, options=options)
    _ = (
        pipeline
        | "Shards" >> beam.Create(list(shards))
        | "Spread" >> beam.Reshuffle()
        | "Extract" >> beam.ParDo(ExtractShards(job))
        | "Gather" >> beam.combiners.ToList()
        | "Publish" >> beam.ParDo(PublishStore(job.store, text))
    )
    try:
        with stopping_with_the_caller(STOP_SECONDS):
            pipeline.run().wait_until_finish()
    except Exception as error:
        raise _cause(error) from None


def _cause(error: Exception) -> BaseException:
    """What went wrong in the worker; Beam wraps it into a RuntimeError whose text is the whole traceback."""
    cause = error.__context__
    if isinstance(cause, lmdb.Error):
        return OSError(f"cannot write the store: {cause}")
    if isinstance(cause, OSError | ValueError | RuntimeError | KeyboardInterrupt):
        return cause
    return error


def pipeline_options(runner: str, beam_args: Sequence[str]) -> PipelineOptions:
    """Beam's options from its command-line words; Beam itself would drop unknown ones with a warning."""
    stray = [arg for arg in beam_args if not arg.startswith("--")]
    if stray:
        raise ValueError(f"unexpected argument {stray[0]!r}: Beam options follow -- and are written --name=value")
    if any(arg.partition("=")[0] == "--runner" for arg in beam_args):
        raise ValueError("--runner goes before the --, among our own options")
    flags = ["--default_sdk_harness_log_level=ERROR", *beam_args]  # a later one of the user's counts
    options = PipelineOptions(flags if runner == "local" else [f"--runner={runner}", *flags])
    if runner == "local":  # a job server brings options of its own, so elsewhere unknown ones must pass
        known = options.get_all_options()
        unknown = set(options.get_all_options(retain_unknown_options=True)) - set(known)
        if unknown:
            raise ValueError(f"Beam does not know --{sorted(unknown)[0]} with the local runner")
    return options
