"""Flink and Beam's job server for it, fetched from PyPI and Maven Central into a folder.

FOLDER/flink/*.jar            the Flink distribution
FOLDER/job-server.jar         for --flink_job_server_jar
FOLDER/job-server/*.jar       what it consists of, where it was put together from libraries
"""

from __future__ import annotations

import logging
import shutil
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from clusters.library_jar import (
    LIBRARY_BEAM,
    job_server_jar,
    put_together,
    run_tool,
)  # fmt: skip
from roibeam.version import FLINK_VERSION

log = logging.getLogger(__name__)
FLINK_PACKAGE = "apache-flink-libraries==1.19.3"
_JOB_SERVER_MAIN = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_FLINK_JARS = ("flink-dist-", "log4j-api-", "log4j-core-", "log4j-slf4j-impl-")


def flink_jars(folder: Path) -> list[Path]:
    """The jars that JobManager and TaskManager run on.

    Raises:
        ValueError: if `fetch` has not been run for this folder.
    """
    jars = sorted((folder / "flink").glob("*.jar"))
    if not jars:
        raise ValueError(
            f"{folder}: no Flink in it; run: PYTHONPATH=tools python -m clusters.flink_cluster fetch {folder}"
        )
    return jars


def fetch(folder: Path) -> Path:
    """Fetches what is not there yet (about 400 MB over the network, once); returns the job server.

    Raises:
        RuntimeError: if pip or mvn cannot.
    """
    folder = folder.absolute()  # Maven takes relative ones from where its pom.xml is
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "flink").exists():
        _fetch_flink(folder)
    if not job_server_jar(folder).exists():
        _fetch_job_server(folder)
    return job_server_jar(folder)


def _fetch_flink(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run_tool([*pip, "--no-build-isolation", "--dest", aside, FLINK_PACKAGE])
        (archive,) = Path(aside).glob("apache*.tar.gz")
        jars = Path(aside) / "flink"
        jars.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if "/deps/lib/" in member.name and name.startswith(_FLINK_JARS):
                    content = tar.extractfile(member)
                    assert content is not None, member.name
                    with (jars / name).open("wb") as file:
                        shutil.copyfileobj(content, file)
        jars.rename(folder / "flink")


def _fetch_job_server(folder: Path) -> None:
    """Beam's own job server of our version; else its libraries of another version, put together."""
    artifact = f"org.apache.beam:beam-runners-flink-{FLINK_VERSION}-job-server:{version('apache-beam')}"
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        try:
            run_tool(
                ["mvn", "-B", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={aside}/whole"]
            )
        except RuntimeError:
            log.warning("Maven has no %s; putting one together from Beam %s", artifact, LIBRARY_BEAM)
        else:
            next(Path(aside, "whole").glob("*.jar")).rename(job_server_jar(folder))
            return
    libraries = [
        f"org.apache.beam:beam-runners-flink-{FLINK_VERSION}:{LIBRARY_BEAM}", "org.slf4j:slf4j-simple:1.7.36",
    ]  # fmt: skip
    put_together(folder, "job-server", libraries, _JOB_SERVER_MAIN)
