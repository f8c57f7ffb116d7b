"""A Spark cluster on this machine: a master, workers that start an executor each, and the worker pool beside them.

PYTHONPATH=tools python -m clusters.spark_cluster fetch FOLDER    # once: Spark, Beam's job server
PYTHONPATH=tools python -m clusters.spark_cluster start FOLDER
PYTHONPATH=tools python -m clusters.spark_cluster status FOLDER
PYTHONPATH=tools python -m clusters.spark_cluster stop FOLDER
"""

from __future__ import annotations

import shutil
from pathlib import Path

from clusters.cluster_command import run_cluster_command
from clusters.library_jar import job_server_jar
from clusters.small_cluster import SmallCluster, free_port
from clusters.spark_packages import JAVA_OPENS, fetch, spark_jars
from roibeam.version import SCALA_VERSION

PORT = 8080  # of the master's web page
MASTER_PORT = 7077
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkCluster(SmallCluster):
    """Its processes: master, sparkworker-1, ..., worker-pool. The workers start executors when a job comes."""

    engine = "spark"
    managers = "Spark workers"

    @property
    def options(self) -> list[str]:
        state, jar = self.state(), job_server_jar(self.folder)
        return [
            f"--spark_master_url=spark://localhost:{state['master_port']}",
            f"--environment_config=localhost:{state['pool_port']}",
            f"--spark_job_server_jar={jar}",
            # Else Beam sends all of its jars to each executor; here they have them.
            f"--files_to_stage={jar}",
        ]

    def start(self, *, num_managers: int = 2, port: int | None = None, pool_port: int = 50000) -> None:
        spark_jars(self.folder)
        # A web page that was asked for elsewhere means a cluster beside another one.
        master_port = MASTER_PORT if port in (None, PORT) else free_port()
        port, pool_port = PORT if port is None else port or free_port(), pool_port or free_port()
        self.begin(port=port, pool_port=pool_port, master_port=master_port)
        shutil.rmtree(self.run / "work", ignore_errors=True)
        web = ("--webui-port", str(port))
        self._start("master", _MASTER, "--host", "localhost", "--port", str(master_port), *web)
        self.start_pool(pool_port)
        for number in range(1, num_managers + 1):
            self.start_worker(number)
        self.wait(lambda: self.ask("/json/")["aliveworkers"] >= num_managers)

    def start_worker(self, number: int) -> None:
        """One core, so one shard at once, and memory for one executor of Spark's default size."""
        of_one = ("--cores", "1", "--memory", "1g", "--webui-port", str(free_port()))
        work = ("--work-dir", str(self.run / "work" / str(number)))
        master = f"spark://localhost:{self.state()['master_port']}"
        self._start(f"sparkworker-{number}", _WORKER, "--host", "localhost", *of_one, *work, master)

    def executors(self) -> dict[str, int]:
        """Process number of each executor that runs, by the name of its worker."""
        workers = {str(pid): name for name, pid in self.pids.items() if name.startswith("sparkworker-")}
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                command = (process / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            if parent in workers and _EXECUTOR in command:
                found[workers[parent]] = int(process.name)
        return found

    def _start(self, name: str, main: str, *arguments: str) -> None:
        env = {
            "SPARK_HOME": str(self.folder),
            "SPARK_SCALA_VERSION": SCALA_VERSION,  # where there is no whole distribution, Spark cannot find it out
            "SPARK_LOCAL_IP": "127.0.0.1",  # web pages would listen to other machines
            "SPARK_LOCAL_DIRS": str(self.run / "tmp"),
        }
        jars = f"{spark_jars(self.folder)}/*"
        self.start_java(name, ["-Xmx256m"], main, arguments, class_path=jars, opens=JAVA_OPENS, env=env)


if __name__ == "__main__":
    run_cluster_command(SparkCluster, fetch, port=PORT, source="Maven Central")
