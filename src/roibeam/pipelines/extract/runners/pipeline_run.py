"""Run of a Beam pipeline to its end on the chosen runner: local, portable, Flink, or any that Beam has."""

from __future__ import annotations

import functools
import json
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import grpc
import lmdb
from apache_beam.metrics import MetricsFilter
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, PortableOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import ExternalEnvironment

from roibeam.pipelines.extract.runners.clusters import NOT_TAKEN, cancel_job_on_interrupt
from roibeam.pipelines.extract.runners.runner_options import check_cluster, pipeline_options
from roibeam.pipelines.extract.runners.worker_pool import WorkerPool, run_with_workers
from roibeam.pipelines.extract.shard.process_setup import silence_closed_connections, stop_shards_on_interrupt
from roibeam.version import SCALA_VERSION, SPARK_VERSION

STOP_SECONDS = 6.0  # for dropping the work in hand after Ctrl-C; a detector call is not waited for

# The pipeline, not yet run; the runner None means the one that the options name.
BuildPipeline = Callable[[PipelineOptions, PipelineRunner | None], beam.Pipeline]


@dataclass(frozen=True)
class RunnerChoice:
    """Attributes:
    runner: see `runner_options`.
    beam_args: further Beam pipeline options, as on its command line.
    workers: processes of the local runner; 1 means this one.
    pool_token_file: see `pipeline_options`.
    """

    runner: str = "local"
    beam_args: tuple[str, ...] = ()
    workers: int = 1
    pool_token_file: str | None = None


def check_runner(choice: RunnerChoice, *, preload: str, device: str) -> None:
    """Checks, before a run writes anything, its options, and whether the cluster can be reached.

    Raises:
        ValueError: in one line that says what is missing.
    """
    _options(choice, preload, device)
    check_cluster(choice.runner, choice.beam_args)


def _options(choice: RunnerChoice, preload: str, device: str, num_elements: int | None = None) -> PipelineOptions:
    return pipeline_options(
        choice.runner, choice.beam_args, preload=preload, device=device, pool_token_file=choice.pool_token_file,
        num_elements=num_elements,
    )  # fmt: skip


def run_pipeline(
    build: BuildPipeline, choice: RunnerChoice, *, preload: str, device: str, namespace: str, num_elements: int
) -> dict[str, Any]:
    """Runs the pipeline that `build` makes to its end.

    Args:
        preload: the module whose pipeline it is, for workers to import before they have threads.
        device: that its workers compute on, see `pipeline_options`.
        namespace: of the metrics to return.
        num_elements: units of work that it spreads.
    Returns:
        Beam's metrics, by name: numbers, and {"count", "sum", "min", "max"} of distributions. Committed values where
        the runner has them, attempted ones elsewhere.
    Raises:
        ValueError: for an option that Beam does not know.
        OSError, ValueError, RuntimeError: the error that stopped a worker.
    """
    options = _options(choice, preload, device, num_elements)
    run = functools.partial(_run, namespace)
    try:
        with stop_shards_on_interrupt(STOP_SECONDS):
            if choice.runner == "local" and choice.workers == 1:
                # The DirectRunner by name would first try to download Prism; the engine it falls back to is named.
                return run(build(options, FnApiRunner()))
            elif choice.runner == "local":
                return run_with_workers(
                    lambda pool: run(_local_pipeline(build, options, choice.workers, pool)), preload=preload
                )
            elif choice.runner == "portable" and options.view_as(PortableOptions).environment_config is None:
                return run_with_workers(lambda pool: run(_portable_pipeline(build, options, pool)), preload=preload)
            elif choice.runner == "flink":
                with cancel_job_on_interrupt(options):
                    return run(build(options, None))
            else:
                silence_closed_connections()  # of Beam's threads, when its job server goes
                return run(build(options, None))
    except Exception as error:
        raise _cause(error) from None


def _run(namespace: str, pipeline: beam.Pipeline) -> dict[str, Any]:
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace(namespace))
    counters = {one.key.metric.name: one.result for one in found["counters"]}
    distributions = {
        one.key.metric.name: {name: getattr(one.result, name) for name in ("count", "sum", "min", "max")}
        for one in found["distributions"]
    }
    return {**counters, **distributions}


def _local_pipeline(build: BuildPipeline, options: PipelineOptions, workers: int, pool: WorkerPool) -> beam.Pipeline:
    """Pipeline on Beam's local engine with so many processes of the pool."""
    options.view_as(DirectOptions).direct_num_workers = workers
    return build(options, FnApiRunner(ExternalEnvironment(pool.address, pool.params)))


def _portable_pipeline(build: BuildPipeline, options: PipelineOptions, pool: WorkerPool) -> beam.Pipeline:
    """Pipeline through the interfaces of clusters: a job service, and workers of the pool."""
    options.view_as(PortableOptions).environment_config = json.dumps({"url": pool.address, "params": pool.params})
    return build(options, None)


def _cause(error: Exception) -> BaseException:
    """Error of the worker; Beam wraps it into a RuntimeError whose text is the whole traceback."""
    cause = error.__context__
    unreached = next((one for one in (error, cause) if isinstance(one, urllib.error.URLError)), None)
    if unreached is not None:
        return OSError(
            f"Beam could not fetch its job server ({unreached.reason}); hand over the jar: "
            f"-- --flink_job_server_jar=FILE (`make flink-packages` makes one), or --spark_job_server_jar=FILE "
            f"(`make spark-packages`)"
        )
    if NOT_TAKEN in str(error):
        return OSError(
            f"Spark's master took no job, or ended it: the job server is of Spark {SPARK_VERSION} with Scala "
            f"{SCALA_VERSION}, is the cluster too? Its page and log say more; finished shards stay"
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
