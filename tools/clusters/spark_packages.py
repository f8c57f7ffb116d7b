"""Spark and Beam's job server for it, fetched from Maven Central into a folder.

FOLDER/jars/*.jar        Spark and Beam's libraries; FOLDER is the SPARK_HOME of a small cluster
FOLDER/job-server.jar    for --spark_job_server_jar: it names these jars
"""

from __future__ import annotations

from pathlib import Path

from clusters.library_jar import LIBRARY_BEAM, job_server_jar, put_together
from roibeam.version import SCALA_VERSION, SPARK_VERSION

# What Spark and Arrow look into on Java 17; Spark's own scripts and launcher open the same (JavaModuleOptions).
JAVA_OPENS = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
    "sun.util.calendar",
)  # fmt: skip
_JOB_SERVER_MAIN = "org.apache.beam.runners.spark.SparkJobServerDriver"
_ARTIFACTS = (
    f"org.apache.beam:beam-runners-spark-3:{LIBRARY_BEAM}",
    *(f"org.apache.spark:spark-{part}_{SCALA_VERSION}:{SPARK_VERSION}" for part in ("core", "sql", "streaming")),
    "org.slf4j:slf4j-api:2.0.7",  # Spark's; Beam asks for an older one, with which both would be silent
)


def spark_jars(folder: Path) -> Path:
    """The folder of the jars that master, workers and executors run on.

    Raises:
        ValueError: if `fetch` has not been run for this folder.
    """
    if not job_server_jar(folder).exists():
        raise ValueError(
            f"{folder}: no Spark in it; run: PYTHONPATH=tools python -m clusters.spark_cluster fetch {folder}"
        )
    return folder / "jars"


def fetch(folder: Path) -> Path:
    """Fetches what is not there yet (about 300 MB over the network, once); returns the job server.

    Maven Central has whole job servers too. These hold no Spark that could run a cluster, and a mirror may lack them.

    Raises:
        RuntimeError: if mvn cannot.
    """
    folder = folder.absolute()  # Maven takes relative ones from where its pom.xml is
    folder.mkdir(parents=True, exist_ok=True)
    if not job_server_jar(folder).exists():
        put_together(folder, "jars", _ARTIFACTS, _JOB_SERVER_MAIN, opens=JAVA_OPENS)
    return job_server_jar(folder)
