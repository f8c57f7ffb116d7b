"""A cluster on this machine, as real processes: an engine's own, and the worker pool beside them.

For trying out and for tests. A real cluster is set up with the engine's own means; it needs `roibeam worker-pool` on
each machine that computes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roibeam.pipelines.extract.runners.pool_token import new_token

START_SECONDS = 120.0
END_SECONDS = 10.0
POOL = "worker-pool"
LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = Out
appender.out.name = Out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss,SSS} %-5p %-40c{1} - %m%n
"""


class SmallCluster(ABC):
    """A cluster whose files are in FOLDER/run; its processes are found again by the process numbers noted there.

    Attributes:
        engine: its name, as of `--runner`.
        managers: what its computing processes are called.
    """

    engine: str
    managers: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.run = self.folder / "run"
        self._state = self.run / "cluster.json"

    @property
    @abstractmethod
    def options(self) -> list[str]:
        """What follows `--runner ENGINE --` to use this cluster."""

    @abstractmethod
    def start(self, *, num_managers: int = 2, port: int | None = None, pool_port: int = 50000) -> None:
        """Starts all processes and waits until those that compute have registered.

        Args:
            port: of the web page; None takes the engine's own, 0 a free one, as for pool_port.
        Raises:
            ValueError: if it is running already, or nothing was fetched.
            RuntimeError: if it does not come up.
        """

    @property
    def pids(self) -> dict[str, int]:
        """Process number by name: the leader's, those that compute, worker-pool."""
        return dict(self.state()["pids"])

    @property
    def token_file(self) -> Path:
        """With the token of the worker pool, for `--pool-token-file`; made when the cluster starts."""
        return self.folder / "pool-token"

    @property
    def web_page(self) -> str:
        return f"http://localhost:{self.state()['port']}"

    def stop(self) -> None:
        """Ends all processes; those that do not end by themselves are killed."""
        running = {name: pid for name, pid in self.pids_if_any().items() if self.is_alive(name)}
        for name in sorted(running):  # the leader first, so that it does not wonder
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
        noted = self.state()
        try:
            state, started = _state_and_start(noted["pids"][name])
        except (FileNotFoundError, ProcessLookupError):
            return False
        return started == noted["started"].get(name) and state != "Z"

    def ask(self, path: str) -> Any:
        """What the leader's web interface says, parsed.

        Raises:
            OSError: if it does not answer.
        """
        with urllib.request.urlopen(f"{self.web_page}{path}", timeout=10) as answer:
            return json.load(answer)

    def log_tail(self, name: str, lines: int = 20) -> str:
        text = (self.run / "log" / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def state(self) -> dict[str, Any]:
        """What was noted when it was started: ports, and the process numbers."""
        try:
            state: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{self.folder}: no cluster was started here") from None
        return state

    def begin(self, **noted: Any) -> None:
        """Makes the folders and notes what the processes need to know of one another.

        Raises:
            ValueError: if the cluster is running.
        """
        if any(self.is_alive(name) for name in self.pids_if_any()):
            raise ValueError(f"a cluster of {self.folder} is running; stop it first")
        self.run.mkdir(parents=True, exist_ok=True)
        self.run.chmod(0o700)  # Beam writes the token of the pool into the engine's logs
        for name in ("conf", "log", "tmp"):
            (self.run / name).mkdir(parents=True, exist_ok=True)
        (self.run / "conf" / "log4j.properties").write_text(LOG4J, encoding="utf-8")
        self._write({**noted, "pids": {}, "started": {}})

    def start_java(
        self, name: str, jvm: Sequence[str], main: str, arguments: Sequence[str], *,
        class_path: str, opens: Sequence[str], env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """A Java process that logs to FOLDER/run/log/NAME.log.

        Args:
            opens: packages of java.base that the engine looks into.
        """
        flags = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opens]
        logs = f"-Dlog4j.configurationFile=file:{self.run}/conf/log4j.properties"
        self._start_process(name, ["java", *jvm, *flags, logs, "-cp", class_path, main, *arguments], env)

    def start_pool(self, port: int) -> None:
        """The worker pool, with a token of its own."""
        self.token_file.unlink(missing_ok=True)
        with open(os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{new_token()}\n")
        pool = [sys.executable, "-P", "-c", "from roibeam.pipelines.cli.main import main; main()", "--debug", POOL]
        self._start_process(POOL, [*pool, "--port", str(port), "--pool-token-file", str(self.token_file)])

    def wait(self, is_up: Callable[[], bool]) -> None:
        """Until it is up; an interface that does not answer yet is waited for.

        Raises:
            RuntimeError: if one of the processes ends, or it does not come up.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for name in self.pids:
                if not self.is_alive(name):
                    raise RuntimeError(f"{name} ended while the cluster was started:\n{self.log_tail(name)}")
            with contextlib.suppress(OSError):
                if is_up():
                    return
            time.sleep(0.2)
        raise RuntimeError(f"the cluster did not come up in {START_SECONDS:g} s; see {self.run / 'log'}")

    def _start_process(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        with (self.run / "log" / f"{name}.log").open("wb") as out:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                    env={**os.environ, **(env or {})},
                )  # fmt: skip
            except FileNotFoundError:
                raise RuntimeError(f"{command[0]} is needed and not installed") from None
        state = self.state()
        state["pids"][name] = process.pid
        state["started"][name] = _state_and_start(process.pid)[1]
        self._write(state)

    def _write(self, state: dict[str, Any]) -> None:
        self._state.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")


def _state_and_start(pid: int) -> tuple[str, int]:
    """Its letter of state, and its start in clock ticks since the machine's.

    The start tells it from a later process of the same number. The command line would not: Linux shows none for a
    moment after the start.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port
