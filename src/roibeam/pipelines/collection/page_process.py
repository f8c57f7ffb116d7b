"""A process of its own for steps 1 to 4: a parser that dies or hangs costs one page, not the run.

It speaks over its pipes, a batch of pages at a time; nothing in its answers is executed.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from selectolax.lexbor import SelectolaxError

from roibeam.features.folders.durable_files import with_place
from roibeam.messages import on_a_line
from roibeam.pipelines.collection.page_steps import PageOutcome, look_into, outcome_from_json
from roibeam.pipelines.collection.pairs import Page, Reason
from roibeam.pipelines.collection.thresholds import Thresholds
from roibeam.pipelines.common.console.termination import failure_of

_LENGTH = struct.Struct("<Q")
_BATCH_PAGES, _BATCH_BYTES = 32, 4_000_000
_START_SECONDS = 60.0  # imports and the language model, on a busy machine


_FIRST = Page(
    "http://first.invalid/",
    b"<main><p>A page is looked into before the first one comes, so that all is ready.</p>"
    b"<img src=a.jpg alt='a white dog on the beach'>",
)


class PageProcess:
    """Context manager of the process, which is started anew after it died."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PageProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def outcomes(self, pages: Iterable[Page]) -> Iterator[PageOutcome]:
        """Yields one for each page, in order; a few pages are read ahead."""
        batch: list[Page] = []
        num_bytes = 0
        for page in pages:
            batch.append(page)
            num_bytes += len(page.body)
            if len(batch) == _BATCH_PAGES or num_bytes >= _BATCH_BYTES:
                yield from self._batch(batch)
                batch, num_bytes = [], 0
        if batch:
            yield from self._batch(batch)

    def _batch(self, pages: list[Page]) -> Iterator[PageOutcome]:
        found = self._process_pages(pages)
        if not isinstance(found, str):
            yield from found
        elif len(pages) == 1:
            yield PageOutcome(pages[0].url, None, Reason.PARSE_FAILED, found)
        else:  # one of them is to blame
            for page in pages:
                yield from self._batch([page])

    def _process_pages(self, pages: list[Page]) -> list[PageOutcome] | str:
        """Returns the outcomes, or the reason why there are none."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            _write(process.stdin, pickle.dumps(pages))
            data = _read_within(process.stdout, self._thresholds.page.max_seconds)
        except (BrokenPipeError, EOFError):
            self._end(within=1.0)
            return f"the parser died (code {process.returncode})"
        except TimeoutError:
            self._end()
            return f"took over {self._thresholds.page.max_seconds:g} s"
        return [outcome_from_json(each) for each in json.loads(data)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the run's to handle; the end of its input ends it
            env={**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        _write(self._process.stdin, pickle.dumps(self._thresholds))
        try:
            _read_within(self._process.stdout, _START_SECONDS)
        except (EOFError, TimeoutError):
            self._end()
            raise RuntimeError("the process that looks into pages does not start; its own error is above") from None
        return self._process

    def _end(self, within: float = 0.0) -> None:
        """Ends the process; one that is about to end by itself gets so many seconds, so that its code is its own."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(within)
            process.kill()
            process.communicate()


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def _read_within(file: IO[bytes], seconds: float) -> bytes:
    """Reads one message. Raises TimeoutError if it is not there in time, EOFError if the other side has gone."""
    ends = time.monotonic() + seconds
    data = bytearray()
    wanted = _LENGTH.size
    while len(data) < wanted:
        if not select.select([file], [], [], max(ends - time.monotonic(), 0.0))[0]:
            raise TimeoutError
        piece = os.read(file.fileno(), 2**20)
        if not piece:
            raise EOFError
        data += piece
        if wanted == _LENGTH.size and len(data) >= wanted:
            wanted += _LENGTH.unpack_from(data)[0]
    return bytes(data[_LENGTH.size :])


def _read(file: IO[bytes]) -> bytes | None:
    head = file.read(_LENGTH.size)
    return file.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None


def _limit_memory(num_bytes: int) -> None:
    """Limits the process to so much more memory than it has now, where Linux provides that number."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            has = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
    except FileNotFoundError:
        return  # another system: the time limit alone
    resource.setrlimit(resource.RLIMIT_DATA, (has + num_bytes,) * 2)


def main() -> None:
    """Runs the process: thresholds first, then batches of pages until its input ends."""
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not stand among the answers
    settings = _read(source)
    assert settings is not None
    thresholds: Thresholds = pickle.loads(settings)
    try:
        look_into(_FIRST, thresholds)  # reads the language model and the word list, which counts for no page
    except Exception as error:  # such as no room in TMPDIR, where the model is unpacked
        named = with_place(error, [Path(tempfile.gettempdir())]) or error
        sys.exit(f"roibeam: {on_a_line(failure_of(named).line)}")
    for stream in (1, 2):  # from here on, messages of the parser about a page are discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    _limit_memory(thresholds.page.max_memory_mb * 1_000_000)
    _write(answers, b"ready")
    while (data := _read(source)) is not None:
        outcomes = [asdict(_outcome(page, thresholds)) for page in pickle.loads(data)]
        _write(answers, json.dumps(outcomes).encode())


def _outcome(page: Page, thresholds: Thresholds) -> PageOutcome:
    try:
        return look_into(page, thresholds)
    except (ValueError, LookupError, RecursionError, MemoryError, SelectolaxError) as error:  # an unforeseen fault
        return PageOutcome(page.url, None, Reason.PARSE_FAILED, f"{type(error).__name__}: {error}"[:200])


if __name__ == "__main__":
    main()
