"""Spark's master as a run meets it: whether it is there, and what the job is cut into."""

from __future__ import annotations

import re

from roibeam.pipelines.extract.runners.engines.listening import silence_at

_MOST_TASKS = 1000
# All that Spark tells of a master of another version, after a minute; seen with a job server of 3.5.0 and Spark 4.0.1.
NOT_TAKEN = "Cannot call methods on a stopped SparkContext"
# A worker process for each task. Beam keeps one that has died as long as a living one: all tasks of its executor would
# fail at once, and Spark ends the job at the fourth failure of a task. Tasks that share one would keep it for each
# other, so an executor has one core. (Not of local[N]: there all tasks share a process.)
SPARK_OPTIONS = ("--environment_cache_millis=0", "--job_server_jvm_properties=-Dspark.executor.cores=1")


def check_master(master: str) -> None:
    """Before a run writes anything; Spark itself tries for a minute, and then tells of a stopped SparkContext.

    Raises:
        ValueError: if no standalone master listens there, or it is no address of Spark's.
    """
    if re.match(r"local(\[.+\])?$|yarn$|k8s://", master):
        return  # made later, or reached by Spark's own means
    found = re.fullmatch(r"spark://(.+)", master)
    addresses = found[1].split(",") if found else []
    if not addresses or not all(re.fullmatch(r"[^:]+:\d+", each) for each in addresses):
        raise ValueError(f"--spark_master_url={master}: expected spark://HOST:7077, or local[2] for this machine")
    said = []
    for address in addresses:  # one of several that stand by for each other will do
        silence = silence_at(address)
        if silence is None:
            return
        said.append(silence)
    raise ValueError(f"--spark_master_url={master}: no master of Spark answers ({'; '.join(said)}); is it running?")


def spark_tasks(num_elements: int) -> list[str]:
    """Cuts the job into as many tasks as it has elements, up to 1,000. Spark's own number is that of the cores at its
    start, and a task that is lost begins anew.
    """
    return [f"--job_server_jvm_properties=-Dspark.default.parallelism={max(1, min(num_elements, _MOST_TASKS))}"]
