"""A Flink cluster on this machine: a JobManager, TaskManagers and the worker pool beside them, as real processes.

    python -m roibeam.pipelines.extract.runners.flink_cluster fetch FOLDER    # once: Flink and Beam's job server
    python -m roibeam.pipelines.extract.runners.flink_cluster start FOLDER
    python -m roibeam.pipelines.extract.runners.flink_cluster status FOLDER
    python -m roibeam.pipelines.extract.runners.flink_cluster stop FOLDER

For trying out and for tests. A real cluster is set up with Flink's own means; it needs `roibeam worker-pool` on each
machine that has a TaskManager.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roibeam.pipelines.extract.runners.flink_packages import fetch, flink_jars, job_server_jar
from roibeam.pipelines.extract.runners.pool_token import new_token
from roibeam.pipelines.foundation.console.our_logs import show_our_logs

log = logging.getLogger(__name__)
START_SECONDS = 120.0
END_SECONDS = 10.0
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
restart-strategy.fixed-delay.attempts: 20
restart-strategy.fixed-delay.delay: 1 s
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
_LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = Out
appender.out.name = Out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss,SSS} %-5p %-40c{1} - %m%n
"""


class FlinkCluster:
    """A cluster whose files are in FOLDER/run; its processes are found again by the process numbers noted there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._run = self.folder / "run"
        self._state = self._run / "cluster.json"

    @property
    def pids(self) -> dict[str, int]:
        """Process number by name: jobmanager, taskmanager-1, ..., worker-pool."""
        return dict(self._read()["pids"])

    @property
    def options(self) -> list[str]:
        """What follows `--runner flink --` to use this cluster."""
        state = self._read()
        return [
            f"--flink_master=localhost:{state['port']}",
            f"--environment_config=localhost:{state['pool_port']}",
            f"--flink_job_server_jar={job_server_jar(self.folder)}",
        ]

    @property
    def token_file(self) -> Path:
        """With the token of the worker pool, for `--pool-token-file`; made when the cluster starts."""
        return self.folder / "pool-token"

    def start(self, *, num_task_managers: int = 2, port: int = 8081, pool_port: int = 50000) -> None:
        """Starts all processes and waits until the TaskManagers have registered.

        Args:
            port: of the JobManager's REST interface; 0 takes a free one, as for pool_port.
        Raises:
            ValueError: if it is running already, or nothing was fetched.
            RuntimeError: if it does not come up.
        """
        jars = flink_jars(self.folder)
        if any(self.is_alive(name) for name in self.pids_if_any()):
            raise ValueError(f"a cluster of {self.folder} is running; stop it first")
        port, pool_port = port or _free_port(), pool_port or _free_port()
        for path in (self._run / "conf", self._run / "log", self._run / "tmp"):
            path.mkdir(parents=True, exist_ok=True)
        config = _CONFIG.format(port=port, rpc_port=_free_port(), tmp=self._run / "tmp")
        (self._run / "conf" / "config.yaml").write_text(config, encoding="utf-8")
        (self._run / "conf" / "log4j.properties").write_text(_LOG4J, encoding="utf-8")
        self._write({"port": port, "pool_port": pool_port, "jars": list(map(str, jars)), "pids": {}})
        self._start_java("jobmanager", ["-Xmx512m"], _JOB_MANAGER, ["--executionMode", "cluster"])
        pool = "from roibeam.pipelines.cli.main import main; main()"
        self.token_file.unlink(missing_ok=True)
        with open(os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{new_token()}\n")
        self._start_process(
            "worker-pool",
            [
                sys.executable, "-P", "-c", pool, "--debug", "worker-pool", "--port", str(pool_port),
                "--pool-token-file", str(self.token_file),
            ],
        )  # fmt: skip
        for number in range(1, num_task_managers + 1):
            self.start_task_manager(number)
        self._wait(num_task_managers)

    def start_task_manager(self, number: int) -> None:
        memory = ["-Xmx320m", "-XX:MaxDirectMemorySize=160m", "-XX:MaxMetaspaceSize=256m"]
        self._start_java(f"taskmanager-{number}", memory, _TASK_MANAGER, ["-D", f"taskmanager.resource-id=tm{number}"])

    def stop(self) -> None:
        """Ends all processes; those that do not end by themselves are killed."""
        running = {name: pid for name, pid in self.pids_if_any().items() if self.is_alive(name)}
        for name in sorted(running):  # the JobManager first, so that it does not wonder
            with contextlib.suppress(ProcessLookupError):
                os.kill(running[name], signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        for name, pid in running.items():
            while self.is_alive(name) and time.monotonic() < deadline:
                time.sleep(0.05)
            if self.is_alive(name):
                os.kill(pid, signal.SIGKILL)

    def pids_if_any(self) -> dict[str, int]:
        return self.pids if self._state.exists() else {}

    def is_alive(self, name: str) -> bool:
        """Whether the process of this name runs, and is not another one that got its number."""
        try:
            command = Path(f"/proc/{self.pids[name]}/cmdline").read_bytes()
            state = Path(f"/proc/{self.pids[name]}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        ours = b"worker-pool" if name == "worker-pool" else os.fsencode(self._run)
        return ours in command and state != "Z"

    def ask(self, path: str) -> Any:
        """What the JobManager's REST interface says: `ask("/overview")`.

        Raises:
            OSError: if it does not answer.
        """
        with urllib.request.urlopen(f"http://localhost:{self._read()['port']}{path}", timeout=10) as answer:
            return json.load(answer)

    def log_tail(self, name: str, lines: int = 20) -> str:
        text = (self._run / "log" / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _wait(self, num_task_managers: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for name in self.pids:
                if not self.is_alive(name):
                    raise RuntimeError(f"{name} ended while the cluster was started:\n{self.log_tail(name)}")
            with contextlib.suppress(OSError):
                if self.ask("/overview")["taskmanagers"] >= num_task_managers:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"the cluster did not come up in {START_SECONDS:g} s; see {self._run / 'log'}")

    def _start_java(self, name: str, memory: Sequence[str], main: str, arguments: Sequence[str]) -> None:
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _JAVA_OPENS]
        logs = f"-Dlog4j.configurationFile=file:{self._run}/conf/log4j.properties"
        class_path = os.pathsep.join(self._read()["jars"])
        command = ["java", *memory, *opens, logs, "-cp", class_path, main, "--configDir", str(self._run / "conf")]
        self._start_process(name, [*command, *arguments])

    def _start_process(self, name: str, command: Sequence[str]) -> None:
        with (self._run / "log" / f"{name}.log").open("wb") as out:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
                )
            except FileNotFoundError:
                raise RuntimeError(f"{command[0]} is needed and not installed") from None
        state = self._read()
        state["pids"][name] = process.pid
        self._write(state)

    def _read(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{self.folder}: no cluster was started here") from None
        return state

    def _write(self, state: dict[str, Any]) -> None:
        self._state.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def _run_command(asked: argparse.Namespace) -> None:
    if asked.command == "fetch":
        fetch(asked.folder)
        print(f"Flink and {job_server_jar(asked.folder)}")
        return
    cluster = FlinkCluster(asked.folder)
    if asked.command == "start":
        cluster.start(num_task_managers=asked.task_managers, port=asked.port, pool_port=asked.pool_port)
        print(f"running; web page at http://localhost:{asked.port}")
        print(
            f"roibeam extract ... --runner flink --pool-token-file {cluster.token_file} -- {' '.join(cluster.options)}"
        )
    elif asked.command == "status":
        for name, pid in cluster.pids.items():
            print(f"{name:16} {pid:>8} {'running' if cluster.is_alive(name) else 'ended'}")
    else:
        cluster.stop()


def _parser() -> argparse.ArgumentParser:
    """Of the standard library: this is a tool beside `roibeam`, which alone uses typer."""
    parser = argparse.ArgumentParser(prog="flink_cluster", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("fetch", "Fetches Flink from PyPI and Beam's job server from Maven Central."),
        ("start", "Starts JobManager, TaskManagers and the worker pool beside them."),
        ("status", "Says which processes run."),
        ("stop", "Ends all processes of the cluster."),
    ):
        command = commands.add_parser(name, help=words, description=words, allow_abbrev=False)
        command.add_argument("folder", type=Path, help="Where Flink is fetched to and its logs are.")
        if name == "start":
            command.add_argument("--task-managers", type=int, default=2, help="At least 1; default %(default)s.")
            words = "Of the JobManager's REST interface and web page; default %(default)s."
            command.add_argument("--port", type=int, default=8081, help=words)
            command.add_argument(
                "--pool-port", type=int, default=50000, help="Of the worker pool; default %(default)s."
            )
    return parser


def main() -> None:
    parser = _parser()
    asked = parser.parse_args()
    if asked.command == "start" and asked.task_managers < 1:
        parser.error(f"--task-managers must be at least 1, got {asked.task_managers}")
    show_our_logs()
    try:
        _run_command(asked)
    except (ValueError, RuntimeError, OSError) as error:
        sys.exit(f"flink_cluster: {error}")


if __name__ == "__main__":
    main()
