"""Clusters of Flink and Spark as a run meets them: checks before it begins, slots, tasks, and the end of its job.

Both are reached through Beam's job server, a Java process beside the run. The server could end a job, but it is a child
of the run and gone after the same Ctrl-C; Flink goes on without it, so its job is cancelled here.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from apache_beam.options.pipeline_options import FlinkRunnerOptions, GoogleCloudOptions, PipelineOptions

from roibeam.pipelines.extract.shard.process_setup import silence_closed_connections

_CONNECT_SECONDS = 10.0


def connection_problem(address: str) -> str | None:
    """Reason why nothing can be reached at "host:port"; None where something listens."""
    found = re.fullmatch(r"([^:,/]+):(\d+)", address)
    if found is None:
        return f"{address}: expected HOST:PORT"
    try:
        socket.create_connection((found[1], int(found[2])), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return f"{address}: {error}"
    return None


_JAVA_SECONDS = 30.0
OLDEST_JAVA = 11
# Spark 3.5 ends with "getSubject is not supported" on Java 24 and newer (seen with 25). Flink's own error is left.
TOO_NEW_JAVA = {"spark": 24}


def check_job_server(engine: str, java: str, jar: str | None) -> None:
    """
    Args:
        engine: "flink" or "spark".
        java: of `--job_server_java_launcher`.
        jar: of `--flink_job_server_jar` or `--spark_job_server_jar`; None where Beam fetches its own.
    """
    if jar is not None and "://" not in jar and not Path(jar).is_file():
        raise ValueError(f"--{engine}_job_server_jar={jar}: no such file; `make {engine}-packages` makes one")
    needs = f"--runner {engine} starts Beam's job server here, which needs Java 11 or 17"
    if shutil.which(java) is None:
        raise ValueError(f"{needs}: there is no {java!r} on PATH; install it or give --job_server_java_launcher=FILE")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_SECONDS)
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if found is None:
        raise ValueError(f"{needs}: {java!r} does not print its version; give --job_server_java_launcher=FILE")
    version = int(found[1])
    if version < OLDEST_JAVA or version >= TOO_NEW_JAVA.get(engine, version + 1):
        raise ValueError(f"{needs}: {java!r} is Java {version}; give --job_server_java_launcher=FILE")


def check_job_service(endpoint: str) -> None:
    """Checks the job service before a run writes anything; Beam itself waits for five minutes until a timeout."""
    problem = connection_problem(endpoint)
    if problem is not None:
        raise ValueError(f"--job_endpoint={endpoint}: no job service answers ({problem}); is it running?")


_FLINK_SECONDS = 10.0
_FLINK_ENDED = ("FINISHED", "CANCELED", "FAILED")


def flink_url(master: str) -> str:
    """Flink's REST interface by its `--flink_master`, which may have no scheme."""
    return master if "://" in master else f"http://{master}"


def task_slots(master: str) -> int:
    """Task slots of a Flink cluster. Raises ValueError if its JobManager does not answer."""
    url = f"{flink_url(master)}/overview"
    try:
        with urllib.request.urlopen(url, timeout=_FLINK_SECONDS) as answer:
            return int(json.load(answer)["slots-total"])
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"--flink_master={master}: {url} does not answer as a Flink JobManager ({error}); is it running?"
        ) from None


@contextmanager
def cancel_job_on_interrupt(options: PipelineOptions) -> Iterator[None]:
    """Cancels the job of `--runner flink` when Ctrl-C ends the block. The job gets a name that no other has."""
    silence_closed_connections()
    named = options.view_as(GoogleCloudOptions)  # where Beam keeps the name of a job for any runner
    named.job_name = f"{named.job_name or 'roibeam'}-{secrets.token_hex(4)}"
    try:
        yield
    except KeyboardInterrupt:
        with suppress(OSError, ValueError, KeyError):  # a cluster that is gone has no job either
            cancel_job(flink_url(options.view_as(FlinkRunnerOptions).flink_master), named.job_name)
        raise


def cancel_job(url: str, name: str) -> None:
    """Cancels the jobs of this name that have not ended.

    Raises:
        OSError: if Flink does not answer.
        ValueError, KeyError: if something else does.
    """
    with urllib.request.urlopen(f"{url}/jobs/overview", timeout=_FLINK_SECONDS) as answer:
        jobs = json.load(answer)["jobs"]
    for job in jobs:
        if job["name"] == name and job["state"] not in _FLINK_ENDED:
            urllib.request.urlopen(
                urllib.request.Request(f"{url}/jobs/{job['jid']}", method="PATCH"), timeout=_FLINK_SECONDS
            )


_MOST_TASKS = 1000
# Spark's only error for a master of another version, after a minute; seen with a job server of 3.5.0 and Spark 4.0.1.
NOT_TAKEN = "Cannot call methods on a stopped SparkContext"
# A worker process for each task. Beam keeps one that has died as long as a living one: all tasks of its executor would
# fail at once, and Spark ends the job at the fourth failure of a task. Tasks that share one would keep it for each
# other, so an executor has one core. (Not of local[N]: there all tasks share a process.)
SPARK_OPTIONS = ("--environment_cache_millis=0", "--job_server_jvm_properties=-Dspark.executor.cores=1")


def check_master(master: str) -> None:
    """Checks the master before a run writes anything; Spark itself tries for a minute, then says little."""
    if re.match(r"local(\[.+\])?$|yarn$|k8s://", master):
        return  # made later, or reached by Spark's own means
    found = re.fullmatch(r"spark://(.+)", master)
    addresses = found[1].split(",") if found else []
    if not addresses or not all(re.fullmatch(r"[^:]+:\d+", each) for each in addresses):
        raise ValueError(f"--spark_master_url={master}: expected spark://HOST:7077, or local[2] for this machine")
    problems = []
    for address in addresses:  # one of several that stand by for each other will do
        problem = connection_problem(address)
        if problem is None:
            return
        problems.append(problem)
    raise ValueError(f"--spark_master_url={master}: no master of Spark answers ({'; '.join(problems)}); is it running?")


def spark_tasks(num_elements: int) -> list[str]:
    """Cuts the job into as many tasks as it has elements, up to 1,000. Spark's own number is that of the cores at its
    start, and a task that is lost begins anew.
    """
    return [f"--job_server_jvm_properties=-Dspark.default.parallelism={max(1, min(num_elements, _MOST_TASKS))}"]
