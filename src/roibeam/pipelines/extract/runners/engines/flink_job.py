"""Flink as a run meets it: how many slots it has, and a job that ends with the run.

Beam's job server, which could end it, is a child of the run and gone after the same Ctrl-C; Flink goes on without it.
"""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from apache_beam.options.pipeline_options import FlinkRunnerOptions, GoogleCloudOptions, PipelineOptions

from roibeam.pipelines.extract.runners.hang_ups import keep_hang_ups_quiet

_SECONDS = 10.0
_ENDED = ("FINISHED", "CANCELED", "FAILED")


def flink_url(master: str) -> str:
    """Flink's REST interface by its `--flink_master`, which may have no scheme."""
    return master if "://" in master else f"http://{master}"


def task_slots(master: str) -> int:
    """Task slots of a Flink cluster.

    Raises:
        ValueError: if its JobManager does not answer.
    """
    url = f"{flink_url(master)}/overview"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            return int(json.load(answer)["slots-total"])
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"--flink_master={master}: {url} does not answer as a Flink JobManager ({error}); is it running?"
        ) from None


@contextmanager
def ended_with_the_run(options: PipelineOptions) -> Iterator[None]:
    """Around a run with `--runner flink`: Ctrl-C cancels its job. The job gets a name that no other has."""
    keep_hang_ups_quiet()
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
    with urllib.request.urlopen(f"{url}/jobs/overview", timeout=_SECONDS) as answer:
        jobs = json.load(answer)["jobs"]
    for job in jobs:
        if job["name"] == name and job["state"] not in _ENDED:
            urllib.request.urlopen(urllib.request.Request(f"{url}/jobs/{job['jid']}", method="PATCH"), timeout=_SECONDS)
