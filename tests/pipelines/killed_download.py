"""Kills a small download at its file operations in turn, runs it again, and compares what both leave: see `forks`.

For a process of its own, see `disturbed_runs.Run`: a fork of a test's process, which other tests left threads in, may
inherit a lock that one of them holds, and waits for it for ever.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from faulty_server import serve
from forks import KILLED, in_a_fork
from soak_share import share_of

from roibeam.pipelines.data.download.download_run import DownloadOptions, run_download
from roibeam.pipelines.data.download.limits import DownloadLimits

KINDS = ["good", "404", "png", "html", "moved", "good", "gzip", "opted-out"]
LIMITS = DownloadLimits(connections=2, per_host=2, attempts=1)


def content(out: Path) -> dict[str, Any]:
    """All that is in the folder, but for the journal, whose lines are in the order in which servers answered."""
    files = {str(path.relative_to(out)): path for path in sorted(out.rglob("*")) if path.is_file()}
    readers = {
        ".parquet": lambda path: pq.read_table(path).to_pylist(),
        ".json": lambda path: json.loads(path.read_text()),
    }
    del files["journal.jsonl"]
    return {name: readers.get(path.suffix, Path.read_bytes)(path) for name, path in files.items()}


def download(rows: Path, out: Path, kill_at: int | None = None) -> tuple[int, list[str]]:
    """One run in a fork of this process."""

    def work() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        run_download(str(rows), out, DownloadOptions(LIMITS, ("127.0.0.1",)))

    return in_a_fork(work, out, kill_at)


def start_server() -> tuple[int, int]:
    """Process id and port. A process of its own: a fork of one with a thread may inherit a lock that it holds."""
    reading, writing = os.pipe()
    if child := os.fork():
        with os.fdopen(reading) as pipe:
            os.close(writing)
            return child, int(pipe.readline())
    with serve() as server:
        os.write(writing, f"{server.port}\n".encode())
        while True:
            signal.pause()


def tell_after_kills(folder: Path, steps: Iterable[int]) -> None:
    """Kills at these operations; where none is named at all of them, or as many as the share of a soak says. Prints a
    line on each, with "equal" at its end if its rerun mended it."""
    server, port = start_server()
    try:
        rows = folder / "list.tsv"
        urls = [f"http://127.0.0.1:{port}/{kind}/{number}.jpg" for number, kind in enumerate(KINDS)]
        rows.write_text("".join(f"a caption\t{url}\n" for url in urls))
        code, operations = download(rows, folder / "undisturbed")
        assert code == 0
        wanted = content(folder / "undisturbed")
        assert sum(name.startswith("images/") for name in wanted) == 5
        for step in steps or share_of(range(1, len(operations) + 1), "download"):
            out = folder / "killed"
            shutil.rmtree(out, ignore_errors=True)
            killed, _ = download(rows, out, step)
            rerun, _ = download(rows, out)
            verdict = "equal" if rerun == 0 and content(out) == wanted else f"differs, the rerun ended with {rerun}"
            # Threads that count at the same time may miss the step.
            verdict = verdict if killed == KILLED else f"(not killed, ended with {killed}) {verdict}"
            print(f"{step} of {len(operations)}: {operations[step - 1]}: {verdict}", flush=True)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
