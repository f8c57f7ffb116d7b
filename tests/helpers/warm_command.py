"""`roibeam` for shells of a test, without its imports: a process that has made them forks for each command.

An import of torch and transformers takes seconds, most commands of a page less. A command runs as it always does, with
the arguments, folder, environment and streams of its caller. What a first import decides, it does not see: such tests
start a process of their own.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).with_name("roibeam")
_WANTED = (
    "roibeam.pipelines.cli.commands",
    "roibeam.pipelines.extract.beam_extraction",
    "roibeam.pipelines.finetuning.run.finetune_run",
    "roibeam.pipelines.pretraining.requested_run",
)
# What a shell finds as `roibeam`: sends what it was called with, its streams too, and ends as the command does.
_CALLER = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as to:
    to.connect({address!r})
    call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(to, [len(call).to_bytes(8, "little")], [0, 1, 2])
    to.sendall(call)
    sys.exit(int(to.makefile().read() or 1))
"""


@contextmanager
def warm_command(folder: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """A folder for PATH, in which `roibeam` is warm; the process behind it ends with the block.

    Args:
        folder: new; its path is short enough for a socket (100 bytes).
        variables: the environment of the imports, some of which read it; a command has that of its caller.
    """
    folder.mkdir()
    address = folder / "socket"
    caller = folder / "roibeam"
    caller.write_text(_CALLER.format(python=sys.executable, address=str(address)))
    caller.chmod(0o755)
    log = folder / "log"
    reading, writing = os.pipe()
    with log.open("w") as said, subprocess.Popen(
        [sys.executable, __file__, str(address), str(writing)],
        pass_fds=[writing], env=variables, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
    ) as process:  # fmt: skip
        os.close(writing)
        try:
            with os.fdopen(reading) as ready:
                assert ready.readline() == "ready\n", log.read_text()
            yield folder
        finally:
            process.kill()


def _serve(address: str, ready: int) -> list[str]:
    """The words of a call, in a process of its own for each; the first process never returns."""
    for name in _WANTED:
        importlib.import_module(name)
    gc.freeze()  # or each command's first collection copies all of its memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the keepers
    with socket.socket(socket.AF_UNIX) as calls:
        calls.bind(address)
        calls.listen()
        os.write(ready, b"ready\n")
        os.close(ready)
        while True:
            call, _ = calls.accept()
            if not os.fork():
                break
            call.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return _kept(call)


def _kept(call: socket.socket) -> list[str]:
    """Of two processes, one returns the words of the call and the other tells the caller how that one ended."""
    size, streams, _, _ = socket.recv_fds(call, 8, 3)
    words, folder, variables = json.loads(call.makefile("rb").read(int.from_bytes(size, "little")))
    command = os.fork()
    if command:
        watch = os.pidfd_open(command)
        ended, _, _ = select.select([watch, call], [], [])
        if watch not in ended:  # the caller was killed
            os.killpg(command, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        try:
            call.sendall(str(code if code >= 0 else 128 - code).encode())
        finally:
            os._exit(0)
    os.setpgid(0, 0)
    call.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    return words


def _run(words: list[str]) -> Any:
    from roibeam.pipelines.cli.main import main

    sys.argv = [str(COMMAND), *words]
    try:
        main()
    except SystemExit as end:
        # As a process ends, except that its hundred thousands of objects are not taken down one by one.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    _run(_serve(sys.argv[1], int(sys.argv[2])))
