"""A Flink cluster on this machine: a JobManager, TaskManagers and the worker pool beside them.

PYTHONPATH=tools python -m clusters.flink_cluster fetch FOLDER    # once: Flink, Beam's job server
PYTHONPATH=tools python -m clusters.flink_cluster start FOLDER
PYTHONPATH=tools python -m clusters.flink_cluster status FOLDER
PYTHONPATH=tools python -m clusters.flink_cluster stop FOLDER
"""

from __future__ import annotations

import os

from clusters.cluster_command import run_cluster_command
from clusters.flink_packages import fetch, flink_jars
from clusters.library_jar import job_server_jar
from clusters.small_cluster import SmallCluster, free_port

PORT = 8081  # of the JobManager's REST interface and web page
_JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
# Flink 1.19 on Java 17; these are the lines of its own config.yaml.
_JAVA_OPENS = (
    "java.lang", "java.lang.reflect", "java.net", "java.io", "java.nio", "java.text", "java.time", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch",
)  # fmt: skip
# Small: the features stay in the Python workers, through Flink go shard numbers.
_CONFIG = """\
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {rpc_port}
jobmanager.bind-host: localhost
jobmanager.memory.heap.size: 512m
rest.address: localhost
rest.bind-address: localhost
rest.port: {port}
heartbeat.interval: 1000
heartbeat.timeout: 10000
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 50
restart-strategy.fixed-delay.delay: 2 s
cluster.evenly-spread-out-slots: true
taskmanager.host: localhost
taskmanager.numberOfTaskSlots: 2
taskmanager.cpu.cores: 1.0
taskmanager.memory.framework.heap.size: 64m
taskmanager.memory.framework.off-heap.size: 64m
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 64m
taskmanager.memory.network.min: 32m
taskmanager.memory.network.max: 32m
taskmanager.memory.managed.size: 64m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
io.tmp.dirs: {tmp}
"""


class FlinkCluster(SmallCluster):
    """Its processes: jobmanager, taskmanager-1, ..., worker-pool."""

    engine = "flink"
    managers = "TaskManagers"

    @property
    def options(self) -> list[str]:
        state = self.state()
        return [
            f"--flink_master=localhost:{state['port']}",
            f"--environment_config=localhost:{state['pool_port']}",
            f"--flink_job_server_jar={job_server_jar(self.folder)}",
        ]

    def start(self, *, num_managers: int = 2, port: int | None = None, pool_port: int = 50000) -> None:
        jars = flink_jars(self.folder)
        port, pool_port = PORT if port is None else port or free_port(), pool_port or free_port()
        self.begin(port=port, pool_port=pool_port, jars=list(map(str, jars)))
        config = _CONFIG.format(port=port, rpc_port=free_port(), tmp=self.run / "tmp")
        (self.run / "conf" / "config.yaml").write_text(config, encoding="utf-8")
        self._start("jobmanager", ["-Xmx512m"], _JOB_MANAGER, "--executionMode", "cluster")
        self.start_pool(pool_port)
        for number in range(1, num_managers + 1):
            self.start_task_manager(number)
        self.wait(lambda: self.ask("/overview")["taskmanagers"] >= num_managers)

    def start_task_manager(self, number: int) -> None:
        memory = ["-Xmx320m", "-XX:MaxDirectMemorySize=160m", "-XX:MaxMetaspaceSize=256m"]
        self._start(f"taskmanager-{number}", memory, _TASK_MANAGER, "-D", f"taskmanager.resource-id=tm{number}")

    def _start(self, name: str, memory: list[str], main: str, *arguments: str) -> None:
        jars = os.pathsep.join(self.state()["jars"])
        arguments = ("--configDir", str(self.run / "conf"), *arguments)
        self.start_java(name, memory, main, arguments, class_path=jars, opens=_JAVA_OPENS)


if __name__ == "__main__":
    run_cluster_command(FlinkCluster, fetch, port=PORT, source="PyPI and Maven Central")
