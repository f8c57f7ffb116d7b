"""Run of a Beam pipeline to its end on local, portable, Flink or any other runner, with the options of each.

`--runner NAME` fills in Beam's options; options after -- go before them. local and portable need nothing else; flink,
spark and dataflow name their cluster after --. Any other name is a Beam runner's own, and gets no options from us.
`slots_of` counts from them how many shards are in work at once.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import urllib.error
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import lmdb
from apache_beam.metrics import MetricsFilter
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, PortableOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import ExternalEnvironment

from roibeam.messages import near_names, plural
from roibeam.pipelines.extract.request import RunnerChoice
from roibeam.pipelines.extract.runners.clusters import (
    NOT_TAKEN,
    SPARK_OPTIONS,
    cancel_job_on_interrupt,
    check_job_server,
    check_job_service,
    check_master,
    spark_tasks,
    task_slots,
)
from roibeam.pipelines.extract.runners.pool_token import TOKEN_PARAM, environment_config, read_token
from roibeam.pipelines.extract.runners.worker_pool import WorkerPool, run_with_workers
from roibeam.pipelines.extract.shard.process_setup import silence_closed_connections, stop_shards_on_interrupt
from roibeam.version import FLINK_VERSION, SCALA_VERSION, SPARK_VERSION

log = logging.getLogger(__name__)
WORKER_POOL = "localhost:50000"  # on each machine the pool beside its TaskManager
MIN_RAM = "8GB"  # for one worker process: model, batches, a shard's page cache
ACCELERATOR = "type:nvidia-l4;count:1;install-nvidia-driver"
GPU_MACHINE = "g2-standard-8"
BEAM_NAMES = {
    "portable": "PortableRunner",
    "flink": "FlinkRunner",
    "spark": "SparkRunner",
    "dataflow": "DataflowRunner",
}
# Options that a runner needs, with an example.
_NEEDED = {
    "flink": {"--flink_master": "HOST:8081"},
    "spark": {"--spark_master_url": "spark://HOST:7077"},
    "dataflow": {
        "--project": "my-project",
        "--region": "us-central1",
        "--temp_location": "gs://bucket/tmp",
        "--sdk_container_image": "us-docker.pkg.dev/my-project/roibeam/worker:0.2",
    },
}
_NEEDED_WORDS = {"flink": ", the JobManager's REST address"}
_REPEATABLE = ("--experiments", "--resource_hints", "--dataflow_service_options", "--job_server_jvm_properties")


def missing_options(runner: str, beam_args: Sequence[str]) -> list[str]:
    """Options that a runner cannot do without and that are not given, each as an example."""
    return [f"{name}={example}" for name, example in _NEEDED.get(runner, {}).items() if _value(name, beam_args) is None]


def check_needed(runner: str, beam_args: Sequence[str]) -> None:
    """Raises ValueError that names what a runner cannot do without and is not given."""
    if missing := missing_options(runner, beam_args):
        raise ValueError(f"--runner {runner} needs -- {' '.join(missing)}{_NEEDED_WORDS.get(runner, '')}")


def runner_flags(
    runner: str, beam_args: Sequence[str], *, preload: str, device: str = "cpu", to_plan: bool = False,
    num_elements: int | None = None,
) -> list[str]:  # fmt: skip
    """All Beam options of a run, defaults first, so that a later one of the user's counts.

    Args:
        runner: "local", one of `BEAM_NAMES`, or the name that Beam has for a runner.
        beam_args: the user's, each "--name=value" or "--name".
        preload: the module whose pipeline runs, for workers to import before they have threads.
        device: of the detector: with "cuda...", a runner that can takes machines with a GPU.
        to_plan: nothing will run: options may be missing, and a cluster need not answer.
        num_elements: units of work that the pipeline spreads; None while that is not known.
    """
    _check(beam_args)
    if not to_plan:
        check_needed(runner, beam_args)
    own_flags = list(_DEFAULTS.get(runner, ()))
    if runner == "dataflow":
        own_flags += _dataflow(preload, device)
    if runner == "flink" and _value("--parallelism", beam_args) is None:
        own_flags += _flink_parallelism(_value("--flink_master", beam_args), to_plan=to_plan)
    if runner == "spark" and num_elements is not None:
        own_flags += spark_tasks(num_elements)
    given = {_name(arg) for arg in beam_args}
    own_flags = [flag for flag in own_flags if _name(flag) in _REPEATABLE or _name(flag) not in given]
    named = [] if runner == "local" else [f"--runner={BEAM_NAMES.get(runner, runner)}"]
    return [*named, "--default_sdk_harness_log_level=ERROR", *own_flags, *beam_args]


def pipeline_options(
    choice: RunnerChoice, *, preload: str, device: str = "cpu", num_elements: int | None = None
) -> PipelineOptions:
    """Beam's options from its command-line words; Beam itself would drop unknown ones with a warning.

    Args:
        preload, device, num_elements: as of `runner_flags`.
    """
    runner, beam_args = choice.runner, choice.beam_args
    flags = runner_flags(runner, beam_args, preload=preload, device=device, num_elements=num_elements)
    check_known(runner, beam_args)
    options = PipelineOptions(flags)
    if choice.pool_token_file is not None:
        portable = options.view_as(PortableOptions)
        if portable.environment_type != "EXTERNAL" or portable.environment_config is None:
            raise ValueError(f"--pool-token-file is for a cluster's worker pools; --runner {runner} here has none")
        token = read_token(Path(choice.pool_token_file))
        portable.environment_config = environment_config(portable.environment_config, token)
    return options


def check_known(runner: str, beam_args: Sequence[str]) -> None:
    """Checks that Beam knows these options; where there is a job server, which has its own, it is a warning."""
    _check(beam_args)
    options = PipelineOptions(list(beam_args))
    known = options.get_all_options()
    unknown = sorted(set(options.get_all_options(retain_unknown_options=True)) - set(known))
    if not unknown:
        return
    near = near_names(unknown[0], known)
    meant = f": did you mean --{near[0]}?" if near else ""
    if runner in ("local", "dataflow"):
        raise ValueError(f"Beam does not know --{unknown[0]} with --runner {runner}{meant}")
    log.warning("Beam does not know --%s, which goes to the job server as it is%s", unknown[0], meant)


def is_beam_option(name: str) -> bool:
    """Whether Beam has an option of this name, such as "--parallelism"."""
    return name.removeprefix("--").replace("-", "_") in PipelineOptions([]).get_all_options()


# Nothing is staged: workers have roibeam installed, and a folder that job server and workers share is one more thing
# that can be missing ("FileNotFoundException: /tmp/beam-artifact-staging/...").
_EXTERNAL = ("--environment_type=EXTERNAL", "--experiments=disable_logging_submission_environment")
# Options of engines with a worker pool beside each TaskManager or executor.
_POOLED = (
    *_EXTERNAL,
    f"--environment_config={WORKER_POOL}",
    "--sdk_worker_parallelism=1",  # one worker process, so one model, per TaskManager or executor
)
_DEFAULTS: dict[str, tuple[str, ...]] = {
    # Beam's own job service in this process; the pool's address is put in when the pool stands.
    "portable": ("--job_endpoint=embed", *_EXTERNAL),
    # A worker that has died is kept as long as a living one, by tasks that could not start too, and each restart of the
    # job meets it and fails at once, until none is left. Two seconds are those of a restart (docs/cluster.md).
    "flink": (f"--flink_version={FLINK_VERSION}", *_POOLED, "--environment_cache_millis=2000"),
    "spark": (*_POOLED, *SPARK_OPTIONS),
}


def _flink_parallelism(master: str | None, *, to_plan: bool) -> list[str]:
    """Parallelism option with the number of the cluster's task slots: Flink's own default is 1."""
    if master is None:
        return []
    try:
        slots = task_slots(master)
    except ValueError:
        if to_plan:
            return []
        raise
    if not slots and not to_plan:
        raise ValueError(f"--flink_master={master}: the cluster has no task slots; start its TaskManagers")
    return [f"--parallelism={slots}"] if slots else []


def check_cluster(runner: str, beam_args: Sequence[str]) -> None:
    """Checks the cluster before a run writes anything: an engine that does not answer, or a job server that cannot
    start, is an error. Too few slots of Flink are a warning, since a job waits for them silently.
    """
    if runner == "spark":
        check_master(_value("--spark_master_url", beam_args) or "")
    if runner == "flink":
        _check_slots(_value("--flink_master", beam_args), _value("--parallelism", beam_args))
    endpoint = _value("--job_endpoint", beam_args)  # a job server that runs elsewhere
    if runner in ("portable", "flink", "spark") and endpoint not in (None, "embed"):
        check_job_service(endpoint)
    elif runner in ("flink", "spark"):
        java = _value("--job_server_java_launcher", beam_args) or "java"
        check_job_server(runner, java, _value(f"--{runner}_job_server_jar", beam_args))


def _check_slots(master: str | None, parallelism: str | None) -> None:
    if master is None or parallelism is None or master.startswith("["):
        return  # without --parallelism it has answered already; [local] and [auto] are Beam's own, started later
    slots = task_slots(master)
    if parallelism.isdigit() and slots < int(parallelism):
        log.warning(
            "--parallelism=%s, but the cluster at %s has %s now: the job waits until there are as many",
            parallelism, master, plural(slots, "task slot"),
        )  # fmt: skip


def _dataflow(preload: str, device: str) -> list[str]:
    flags = [
        # Imported before there are threads: two that unpickle at once would import torchvision in two orders.
        f"--beam_plugins={preload}",
        "--sdk_location=container",  # Beam and roibeam are in the image
        "--experiments=no_use_multiple_sdk_containers",  # else a process, and a model, for each CPU of a machine
        "--number_of_worker_harness_threads=2",  # shards at once in it: one computes while the other is written
        f"--resource_hints=min_ram={MIN_RAM}",
    ]
    if device.startswith("cuda"):
        flags += [
            f"--machine_type={GPU_MACHINE}",
            f"--dataflow_service_options=worker_accelerator={ACCELERATOR}",
            f"--resource_hints=accelerator={ACCELERATOR}",
        ]
    return flags


def _check(beam_args: Sequence[str]) -> None:
    stray = [arg for arg in beam_args if not arg.startswith("--")]
    if stray:
        raise ValueError(f"unexpected argument {stray[0]!r}: Beam options follow -- and are written --name=value")
    if any(_name(arg) == "--runner" for arg in beam_args):
        raise ValueError("--runner goes before the --, among our own options")
    if any(TOKEN_PARAM in arg for arg in beam_args):
        raise ValueError("a token on a command line is seen by all users of this machine: give --pool-token-file FILE")


def _name(arg: str) -> str:
    return arg.partition("=")[0]


def _value(name: str, beam_args: Sequence[str]) -> str | None:
    values = [arg.partition("=")[2] for arg in beam_args if _name(arg) == name]
    return values[-1] if values else None


@dataclass(frozen=True)
class Slots:
    """
    Attributes:
        shards: in work at once; None where only the cluster knows.
        computing: of them at full speed: processes may share a GPU.
    """

    shards: int | None
    computing: int | None
    words: str


def slots_of(runner: str, flags: Sequence[str], *, workers: int = 1, device: str = "cpu", gpus: int = 0) -> Slots:
    """Shards in work at once.

    Args:
        flags: all Beam options of the run.
    """
    if runner == "local":
        words = plural(workers, "process", "processes") + (" (--workers)" if workers > 1 else "")
        if not device.startswith("cuda"):
            return Slots(workers, workers, words)
        there = 1 if ":" in device else max(gpus, 1)
        if workers < there:
            words += f" on {workers} of {there} GPUs; --workers {there} takes all"
        else:
            words += f" {'that share' if workers > there else 'on'} {plural(there, 'GPU')}"
        return Slots(workers, min(workers, there), words)
    number, words = _cluster_slots(runner, flags)
    return Slots(number, number, words)


def _cluster_slots(runner: str, flags: Sequence[str]) -> tuple[int | None, str]:
    if runner == "portable":
        processes = _number("--sdk_worker_parallelism", flags) or 1
        return processes, plural(processes, "worker process", "worker processes")
    if runner == "flink":
        slots = _number("--parallelism", flags)
        if slots is None:
            return None, "the cluster's task slots; give their number: -- --parallelism=N"
        return slots, f"{plural(slots, 'task slot')} (--parallelism), one on each TaskManager"
    if runner == "spark":
        master = _value("--spark_master_url", flags) or ""
        local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
        if local is None:
            return None, "cores of all executors, which Beam's options do not say"
        cores = (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
        return cores, f"{plural(cores, 'core')} ({master})"
    if runner == "dataflow":
        name = "--num_workers" if _value("--max_num_workers", flags) is None else "--max_num_workers"
        machines = _number(name, flags)
        if machines is None:
            return None, "as many machines as Dataflow takes; limit their number: -- --max_num_workers=N"
        return machines, f"{plural(machines, 'machine')} ({name}), one process on each"
    workers = _number("--direct_num_workers", flags)
    return workers, f"{workers} (--direct_num_workers)" if workers else f"as many as {runner} takes"


def _number(name: str, flags: Sequence[str]) -> int | None:
    text = _value(name, flags)
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else None


STOP_SECONDS = 6.0  # for dropping the work in hand after Ctrl-C; a detector call is not waited for

# The pipeline, not yet run; the runner None means the one that the options name.
BuildPipeline = Callable[[PipelineOptions, PipelineRunner | None], beam.Pipeline]


def check_runner(choice: RunnerChoice, *, preload: str, device: str) -> None:
    """Checks, before a run writes anything, its options, and whether the cluster can be reached."""
    pipeline_options(choice, preload=preload, device=device)
    check_cluster(choice.runner, choice.beam_args)


def run_pipeline(
    build: BuildPipeline, choice: RunnerChoice, *, preload: str, device: str, namespace: str, num_elements: int
) -> dict[str, Any]:
    """Runs the pipeline that `build` makes to its end.

    Args:
        preload, device: as of `runner_flags`.
        num_elements: units of work that it spreads.
    Returns:
        Beam's metrics, by name: numbers, and {"count", "sum", "min", "max"} of distributions. Committed values where
        the runner has them, attempted ones elsewhere.
    Raises:
        ValueError: for an option that Beam does not know.
        OSError, ValueError, RuntimeError: the error that stopped a worker.
    """
    options = pipeline_options(choice, preload=preload, device=device, num_elements=num_elements)
    run = functools.partial(_run, namespace)
    try:
        with stop_shards_on_interrupt(STOP_SECONDS):
            if choice.runner == "local" and choice.workers == 1:
                # The DirectRunner by name would first try to download Prism; the engine it falls back to is named.
                return run(build(options, FnApiRunner()))
            elif choice.runner == "local":
                options.view_as(DirectOptions).direct_num_workers = choice.workers
                return run_with_workers(lambda pool: run(build(options, _pool_runner(pool))), preload=preload)
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


def _pool_runner(pool: WorkerPool) -> FnApiRunner:
    """Beam's local engine with the processes of the pool."""
    return FnApiRunner(ExternalEnvironment(pool.address, pool.params))


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
            f"{SCALA_VERSION}, is the cluster too? See its page and log; finished shards stay"
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
