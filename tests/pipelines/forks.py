"""Work done in a fork of the test's process, which counts its file operations and can end it at any of them."""

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import roibeam

EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
KILLED = 9


def in_a_fork(
    work: Callable[[], object], folder: Path, kill_at: int | None = None, *, reads: bool = False
) -> tuple[int, list[str]]:
    """Does `work` in a fork, whose imports cost nothing; an audit hook ends it, as kill -9 would, at its `kill_at`-th
    file operation.

    Args:
        folder: operations on paths that begin like this count: what is created, renamed, cut or removed there.
        reads: files that are opened to be read count too.
    Returns:
        `KILLED`, or 0, 1 for an exception, or the number that `work` exits with; and the operations, such as
        "os.rename /part-00000.json".
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with os.fdopen(reading, errors="backslashreplace") as pipe:
            steps = pipe.read().splitlines()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), steps
    status = 1
    try:
        logging.disable()  # its stream belongs to the parent
        sys.addaudithook(_KillPoint(folder, kill_at, writing, reads=reads))
        work()
        status = 0
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def run_script(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a script of this folder, which finds its neighbours, the helpers and the package that the test has, also
    where PYTHONSAFEPATH is set."""
    folders = (script.parent, script.parents[1] / "helpers", Path(roibeam.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.fspath, folders))}
    command = [sys.executable, os.fspath(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


class _KillPoint:
    def __init__(self, folder: Path, kill_at: int | None, log: int, *, reads: bool) -> None:
        self._folder, self._kill_at, self._log, self._reads = os.fspath(folder), kill_at, log, reads
        self._count = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        path = os.fspath(arguments[0])
        writes = event != "open" or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not path.startswith(self._folder) or not (writes or self._reads):
            return
        self._count += 1
        os.write(self._log, f"{event} {path.removeprefix(self._folder)}\n".encode())
        if self._count == self._kill_at:
            os._exit(KILLED)
