"""Beam's job server put together from libraries that Maven fetches: a jar that names its main class and these.

FOLDER/job-server.jar    for --flink_job_server_jar or --spark_job_server_jar
FOLDER/NAME/*.jar        what it consists of
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import textwrap
import zipfile
from collections.abc import Sequence
from pathlib import Path

# Speaks to newer Python workers; taken where Maven Central, or a mirror of it, lacks the job server of our Beam.
LIBRARY_BEAM = "2.62.0"
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>roibeam</groupId>
  <artifactId>job-server</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
_DEPENDENCY = """\
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>
"""


def job_server_jar(folder: Path) -> Path:
    return folder / "job-server.jar"


def put_together(folder: Path, name: str, artifacts: Sequence[str], main: str, *, opens: Sequence[str] = ()) -> None:
    """Fetches artifacts with all that they need into FOLDER/NAME, and writes the job server's jar beside it.

    Args:
        artifacts: each "group:artifact:version".
        main: the class to start.
        opens: packages of java.base that it looks into.
    Raises:
        RuntimeError: if mvn cannot.
    """
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        dependencies = "".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
        Path(aside, "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
        copy = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        run_tool([*copy, "-f", f"{aside}/pom.xml", f"-DoutputDirectory={aside}/libraries"])
        libraries = folder / name
        shutil.rmtree(libraries, ignore_errors=True)
        Path(aside, "libraries").rename(libraries)
        whole = Path(aside, "job-server.jar")
        paths = [f"{name}/{path.name}" for path in sorted(libraries.iterdir())]
        with zipfile.ZipFile(whole, "w") as jar:
            jar.writestr("META-INF/MANIFEST.MF", _manifest(main, paths, opens))
        whole.rename(job_server_jar(folder))


def _manifest(main: str, paths: Sequence[str], opens: Sequence[str]) -> str:
    """A jar's manifest that names a main class and the jars beside it; its lines have at most 72 bytes."""
    lines = ["Manifest-Version: 1.0", f"Main-Class: {main}", "Class-Path: " + " ".join(paths)]
    if opens:
        lines.append("Add-Opens: " + " ".join(f"java.base/{package}" for package in opens))
    wrapped = []
    for line in lines:
        first, rest = line[:70], line[70:]
        wrapped += [first, *(f" {rest[at : at + 69]}" for at in range(0, len(rest), 69))]
    return "\r\n".join([*wrapped, "", ""])


def run_tool(command: list[str]) -> None:
    """Runs pip or mvn.

    Raises:
        RuntimeError: if it is not installed, or fails: with its first line.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(f"{command[0]} is needed and not installed") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(f"{' '.join(command)}: {textwrap.shorten(said[0] if said else 'failed', 300)}")
