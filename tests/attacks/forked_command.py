"""A command in a fork of the test's process, with a limit of time and memory: how it ended, and what it took."""

import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How a command ended."""

    kind: str  # ok, line (another exit code, and one line), or a defect: bug, traceback, signal, hang
    code: int
    out: str
    err: str
    seconds: float
    megabytes: int  # the most that the process held at once

    @property
    def line(self) -> str:
        """What a command that fails ends with: the last line of standard error, or of a report."""
        return (self.err.strip() or self.out.strip()).rpartition("\n")[2]

    def refused(self, *words: str) -> None:
        """Fails unless the command ended with one line that has all `words`."""
        assert self.kind == "line", self
        for word in words:
            assert word in self.line, (word, self.line)


def run(*words: object, seconds: float = 60, gigabytes: float | None = 6, before: Callable[[], object] = int) -> Ended:
    """`roibeam WORDS` in a fork of this process, killed after `seconds`.

    Args:
        gigabytes: of memory that it may take beyond what this process has.
        before: called in the fork, to hinder the command.
    """
    from roibeam.pipelines.cli.main import main

    said, begin = (tempfile.TemporaryFile(), tempfile.TemporaryFile()), time.monotonic()
    child = os.fork()
    if not child:
        code = 99
        try:
            os.setsid()
            for number, stream in enumerate((open(os.devnull), *said)):
                os.dup2(stream.fileno(), number)
            sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
            sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
            if gigabytes is not None:
                status = Path("/proc/self/status").read_text()
                limit = int(gigabytes * 2**30) + int(status.partition("VmData:")[2].split()[0]) * 1024
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            if "torch" in sys.modules:  # its other threads are not in the fork, and waiting for them never ends
                sys.modules["torch"].set_num_threads(1)
            before()
            sys.argv = ["roibeam", *map(str, words)]
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            with suppress(OSError):  # of a full disk, as a test may have it
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    is_hanging, ended, status, used = False, 0, 0, None
    while not ended:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if not ended and not is_hanging and time.monotonic() - begin > seconds:
            is_hanging = True
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)
    texts = []
    for stream in said:
        stream.seek(0)
        texts.append(stream.read().decode("utf-8", "surrogateescape"))
        stream.close()
    code = os.waitstatus_to_exitcode(status)
    kind = (
        "hang" if is_hanging else "signal" if code < 0 else "traceback" if "Traceback (most recent" in texts[1]
        else "bug" if code in (70, 99) or "fault of roibeam" in texts[1] else "line" if code else "ok"
    )  # fmt: skip
    assert used is not None
    return Ended(kind, code, *texts, time.monotonic() - begin, used.ru_maxrss // 1024)


def done(*words: object) -> Ended:
    """`run` of what must succeed."""
    ended = run(*words, seconds=300, gigabytes=None)
    assert ended.kind == "ok", ended
    return ended
