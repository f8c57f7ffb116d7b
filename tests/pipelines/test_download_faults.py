"""Downloads that are killed, interrupted, or meet a full disk: a rerun completes them. And the long run."""

import functools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import pytest
from disturbed_runs import Run
from extraction_memory import peak_until_end
from faulty_server import EXPECTED, OK, SLOW, FaultyServer, serve, write_list
from forks import in_a_fork
from killed_download import content, tell_after_kills
from soak_share import SHARE

from roibeam.features.folders.folder_protocol import store_lock
from roibeam.pipelines.cli.main import main
from roibeam.pipelines.data.download.download_run import DownloadOptions, run_download
from roibeam.pipelines.data.download.limits import DownloadLimits
from roibeam.pipelines.data.download.response import LocalFaultError

pytestmark = pytest.mark.faults
COMMAND = [sys.executable, "-c", "from roibeam.pipelines.cli.main import main; main()", "download"]
ALLOWED = ("--allow-private", "127.0.0.1")


def start(*arguments: object, log: int | IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=log, stderr=log, text=True)


def kill_after_requests(run: subprocess.Popen[str], server: FaultyServer, count: int) -> None:
    """On a machine full of other work a process takes minutes to begin."""
    deadline = time.monotonic() + 600
    try:
        while server.requests.total() < count:
            assert run.poll() is None, "the download ended by itself"
            assert time.monotonic() < deadline, "the download asks for nothing"
            time.sleep(0.005)
    finally:
        run.kill()
        run.wait()


@pytest.mark.parametrize(
    "steps", [pytest.param((3, 13, 29), marks=pytest.mark.slow), pytest.param((), marks=pytest.mark.soak)]
)
def test_a_kill_at_a_file_operation_is_mended_by_a_rerun(tmp_path: Path, steps: tuple[int, ...]) -> None:
    done = Run(functools.partial(tell_after_kills, tmp_path, steps), tmp_path).wait(600)
    assert done.code == 0, done.said
    lines = done.said.splitlines()
    assert lines and all(line.endswith(" equal") for line in lines), "\n".join(lines)
    assert sum("not killed" not in line for line in lines) > len(lines) // 2, "\n".join(lines)


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        urls = [server.url("good", row) for row in range(20)] + [server.url("mute")]
        rows = write_list(tmp_path / "list.tsv", urls)
        command = ["roibeam", "download", rows, str(tmp_path / "out"), *ALLOWED, "--attempts", "1"]

        def interrupt_when_the_good_are_done() -> None:
            journal = tmp_path / "out" / "journal.jsonl"
            while not journal.exists() or journal.read_bytes().count(b"\n") < 1 + 20:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        def interrupted() -> None:
            threading.Thread(target=interrupt_when_the_good_are_done, daemon=True).start()
            monkeypatch.setattr(sys, "argv", [*command, "--stall-timeout", "3600", "--timeout", "3600"])
            main()

        assert in_a_fork(interrupted, tmp_path)[0] == 130
        assert not (tmp_path / "out" / "download.json").exists()
        asked = server.requests.copy()
        assert asked.total() == 21
        limits = DownloadLimits(attempts=1, stall_seconds=0.3)
        coverage = run_download(rows, tmp_path / "out", DownloadOptions(limits, ("127.0.0.1",)))
        assert (coverage.images, coverage.failures) == (20, {"timeout": 1})
        assert sum((server.requests - asked).values()) == 1  # the one that was not done, and no other


def test_a_full_disk_stops_the_run_and_blames_no_url(tmp_path: Path) -> None:
    with serve() as server:
        rows = write_list(tmp_path / "list.tsv", [server.url(kind, 1) for kind in ("404", "good", "png", "html")])
        options = DownloadOptions(DownloadLimits(), ("127.0.0.1",))

        def with_small_files() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # bytes; an image has more
            with pytest.raises(LocalFaultError, match=r"\.tmp/0000000\d: File too large; nothing is lost"):
                run_download(rows, tmp_path / "out", options)

        assert in_a_fork(with_small_files, tmp_path / "out")[0] == 0
        assert not (tmp_path / "out" / "download.json").exists()
        run_download(rows, tmp_path / "out", options)
        run_download(rows, tmp_path / "undisturbed", options)
        assert content(tmp_path / "out") == content(tmp_path / "undisturbed")


def test_too_few_open_files_are_said_before_the_start(tmp_path: Path) -> None:
    rows = write_list(tmp_path / "list.tsv", ["http://127.0.0.1/a.jpg"])

    def with_few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        with pytest.raises(ValueError, match="--connections 64 takes 384 open files, the system allows 300"):
            run_download(rows, tmp_path / "out", DownloadOptions())

    assert in_a_fork(with_few_files, tmp_path)[0] == 0


def test_two_downloads_into_one_folder(tmp_path: Path) -> None:
    rows = write_list(tmp_path / "list.tsv", ["http://127.0.0.1/a.jpg"])
    (tmp_path / "out").mkdir()
    with store_lock(tmp_path / "out"), pytest.raises(ValueError, match="another run is writing"):
        run_download(rows, tmp_path / "out", DownloadOptions())


@pytest.mark.soak
def test_thousands_of_urls_with_kills_in_between(tmp_path: Path) -> None:
    """5,000 URLs of all kinds of faults, killed five times: every good image once, every fault with its reason."""
    count = round(5000 * SHARE)
    draw = random.Random(0)
    weights = [40 if kind == "good" else 0.3 if kind in SLOW else 1 for kind in EXPECTED]
    kinds = draw.choices(list(EXPECTED), weights, k=count)
    with serve() as server:
        rows = write_list(tmp_path / "list.tsv", [server.url(kind, row) for row, kind in enumerate(kinds)])
        patience = ["--stall-timeout", "2", "--timeout", "4", "--max-redirects", "3", "--max-bytes", "1000000"]
        options = [*ALLOWED, "--backoff", "0.01", "--per-host", "64", "--attempts", "3", *patience]
        for kill in range(1, 6):
            run = start(rows, tmp_path / "out", *options, log=subprocess.DEVNULL)
            kill_after_requests(run, server, kill * count // 8)
        command = [*COMMAND, rows, str(tmp_path / "out"), *options, "--json"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        summary = json.loads(output.splitlines()[-1])
        print(f"{count} URLs, killed five times: {summary['images']} stored, dead {summary['failures']}")
        found = content(tmp_path / "out")
        letters = {int(row["image_id"][-8:]): (row["stage"], row["reason"]) for row in found["dead_letters.parquet"]}
        assert [letters.get(row, OK) for row in range(count)] == [EXPECTED[kind] for kind in kinds]
        good = [row for row, kind in enumerate(kinds) if EXPECTED[kind] == OK]
        assert [int(name[-12:-4]) for name in found if name.startswith("images/")] == good
        assert summary["images"] == len(found["local.tsv"].splitlines()) == len(good)
        kept = {"images", "local.tsv", "dead_letters.parquet", "download.json", "journal.jsonl"}
        assert {path.name for path in (tmp_path / "out").iterdir()} == kept


@pytest.mark.soak
def test_peak_memory_does_not_grow_with_the_number_of_urls(tmp_path: Path) -> None:
    peaks = []
    with serve() as server:
        for count in (round(1500 * SHARE), round(6000 * SHARE)):
            kinds = random.Random(1).choices([kind for kind in EXPECTED if kind not in SLOW], k=count)
            rows = write_list(tmp_path / f"{count}.tsv", [server.url(kind, row) for row, kind in enumerate(kinds)])
            options = [*ALLOWED, "--backoff", "0.01", "--per-host", "64", "--stall-timeout", "5"]
            with (tmp_path / "log").open("w+") as log:
                run = start(rows, tmp_path / str(count), *options, log=log)
                peaks.append(peak_until_end(run))
                log.seek(0)
                assert run.returncode == 0, log.read()
            print(f"{count} URLs: {peaks[-1]:.0f} MB of anonymous memory at most")
    # Of a process of some 60 MB; what a few hundred requests leave in the allocator's arenas is up to 15.
    assert peaks[1] < peaks[0] + 20, peaks
