"""Flink and Beam's job server for it, fetched from PyPI and Maven Central into a folder.

FOLDER/flink/*.jar            the Flink distribution
FOLDER/job-server.jar         for --flink_job_server_jar
FOLDER/job-server/*.jar       what it consists of, where it was put together from libraries
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import zipfile
from importlib.metadata import version
from pathlib import Path

log = logging.getLogger(__name__)
FLINK_VERSION = "1.19"  # the line that `make test-cluster` runs
FLINK_PACKAGE = "apache-flink-libraries==1.19.3"
# Speaks to newer Python workers; taken where Maven Central, or a mirror of it, lacks the job server of our Beam.
LIBRARY_BEAM = "2.62.0"
JOB_SERVER_MAIN = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_FLINK_JARS = ("flink-dist-", "log4j-api-", "log4j-core-", "log4j-slf4j-impl-")
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>roibeam</groupId>
  <artifactId>flink-job-server</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.beam</groupId>
      <artifactId>beam-runners-flink-{FLINK_VERSION}</artifactId>
      <version>{LIBRARY_BEAM}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


def flink_jars(folder: Path) -> list[Path]:
    """The jars that JobManager and TaskManager run on.

    Raises:
        ValueError: if `fetch` has not been run for this folder.
    """
    jars = sorted((folder / "flink").glob("*.jar"))
    if not jars:
        raise ValueError(
            f"{folder}: no Flink in it; run: python -m roibeam.pipelines.extract.runners.flink_cluster fetch {folder}"
        )
    return jars


def job_server_jar(folder: Path) -> Path:
    return folder / "job-server.jar"


def fetch(folder: Path) -> None:
    """Fetches what is not there yet (about 400 MB over the network, once).

    Raises:
        RuntimeError: if pip or mvn cannot.
    """
    folder = folder.absolute()  # Maven takes relative ones from where its pom.xml is
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "flink").exists():
        _fetch_flink(folder)
    if not job_server_jar(folder).exists():
        _fetch_job_server(folder)


def _fetch_flink(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "--no-build-isolation", "--dest", aside, FLINK_PACKAGE])
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
            _run(["mvn", "-B", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={aside}/whole"])
        except RuntimeError:
            log.warning("Maven has no %s; putting one together from Beam %s", artifact, LIBRARY_BEAM)
        else:
            next(Path(aside, "whole").glob("*.jar")).rename(job_server_jar(folder))
            return
        Path(aside, "pom.xml").write_text(_POM, encoding="utf-8")
        copy = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        _run([*copy, "-f", f"{aside}/pom.xml", f"-DoutputDirectory={aside}/libraries"])
        libraries = folder / "job-server"
        shutil.rmtree(libraries, ignore_errors=True)
        Path(aside, "libraries").rename(libraries)
        whole = Path(aside, "job-server.jar")
        with zipfile.ZipFile(whole, "w") as jar:
            jar.writestr("META-INF/MANIFEST.MF", _manifest(sorted(path.name for path in libraries.iterdir())))
        whole.rename(job_server_jar(folder))


def _manifest(names: list[str]) -> str:
    """A jar's manifest that names a main class and the jars beside it; its lines have at most 72 bytes."""
    paths = "Class-Path: " + " ".join(f"job-server/{name}" for name in names)
    first, rest = paths[:70], paths[70:]
    wrapped = [first, *(f" {rest[at : at + 69]}" for at in range(0, len(rest), 69))]
    return "\r\n".join(["Manifest-Version: 1.0", f"Main-Class: {JOB_SERVER_MAIN}", *wrapped, "", ""])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(f"{command[0]} is needed and not installed") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(f"{' '.join(command)}: {textwrap.shorten(said[0] if said else 'failed', 300)}")
