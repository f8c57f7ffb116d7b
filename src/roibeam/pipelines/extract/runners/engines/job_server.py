"""Beam's job server, a Java process beside the run: what must be there before it can start."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from roibeam.pipelines.extract.runners.engines.listening import silence_at

_SECONDS = 30.0
OLDEST_JAVA = 11
# Spark 3.5 ends with "getSubject is not supported" on Java 24 and newer (seen with 25). Flink is left to tell itself.
TOO_NEW_JAVA = {"spark": 24}


def check_job_server(engine: str, java: str, jar: str | None) -> None:
    """
    Args:
        engine: "flink" or "spark".
        java: of `--job_server_java_launcher`.
        jar: of `--flink_job_server_jar` or `--spark_job_server_jar`; None where Beam fetches its own.
    Raises:
        ValueError: if Java or the jar is missing or cannot run it.
    """
    if jar is not None and "://" not in jar and not Path(jar).is_file():
        raise ValueError(f"--{engine}_job_server_jar={jar}: no such file; `make {engine}-packages` makes one")
    wanted = f"--runner {engine} starts Beam's job server here, which needs Java 11 or 17"
    if shutil.which(java) is None:
        raise ValueError(f"{wanted}: there is no {java!r} on PATH; install it or give --job_server_java_launcher=FILE")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=_SECONDS)
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if found is None:
        raise ValueError(f"{wanted}: {java!r} does not tell its version; give --job_server_java_launcher=FILE")
    version = int(found[1])
    if version < OLDEST_JAVA or version >= TOO_NEW_JAVA.get(engine, version + 1):
        raise ValueError(f"{wanted}: {java!r} is Java {version}; give --job_server_java_launcher=FILE")


def check_job_service(endpoint: str) -> None:
    """Before a run writes anything; Beam itself waits for five minutes, and then tells of a timeout.

    Raises:
        ValueError: if nothing listens at `--job_endpoint`.
    """
    silence = silence_at(endpoint)
    if silence is not None:
        raise ValueError(f"--job_endpoint={endpoint}: no job service answers ({silence}); is it running?")
