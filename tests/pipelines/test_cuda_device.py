"""Processes that extract spread over the CUDA devices of a machine (no device is needed: the seats are files), and
their threads share one pool of memory."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from roibeam.pipelines.common.compute import DeviceChoice, choose_device, workers_device
from roibeam.pipelines.extract.shard.shard_job import claim_device, own_device


def test_processes_spread_evenly_and_a_killed_one_leaves_its_seat(tmp_path: Path) -> None:
    forks, processes = multiprocessing.get_context("fork"), list[Any]()

    def sit(*names: str) -> int:
        """The device of a process that takes a seat and stays."""
        here, there = forks.Pipe()

        def work() -> None:
            there.send([claim_device(list(names), tmp_path) for _ in range(2)])
            there.recv()  # nothing comes

        processes.append(forks.Process(target=work))
        processes[-1].start()
        first, second = here.recv()
        assert first == second  # a process keeps its seat
        return int(first)

    try:
        assert [sit("GPU-a", "GPU-b") for _ in range(3)] == [0, 1, 0]
        # Devices are known by name: this process sees one of them alone, as its number 0.
        assert sit("GPU-b", "GPU-c") == 1
        processes[1].kill()
        processes[1].join()
        assert sit("GPU-a", "GPU-b") == 1
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize(("device", "count"), [("cpu", 4), ("cuda:3", 4), ("cuda", 1)])
def test_a_named_or_only_device_needs_no_seat(device: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert own_device(device) == device


def test_auto_is_a_device_that_is_there_and_is_told() -> None:
    count, chosen = torch.cuda.device_count(), choose_device("auto", threads=3)
    name, words = ("cuda", torch.cuda.get_device_name(0)) if count else ("cpu", "on the CPU, 3 threads")
    assert chosen.name == name and (words in chosen.words if count else words == chosen.words)
    # Of other machines nothing is known: their GPUs must be asked for.
    assert workers_device("auto").name == "cpu" and "--device cuda" in workers_device("auto").words
    assert workers_device("cuda:7") == DeviceChoice("cuda:7", "on cuda:7 of the workers", is_here=False)
    assert not choose_device(f"cuda:{count}", to_plan=True).is_here
    sees = "no GPU" if not count else f"{count} GPU"
    for asked, expected in ((f"cuda:{count}", f"torch sees {sees}"), ("tpu", "expected auto, cpu")):
        with pytest.raises(ValueError, match=expected):
            choose_device(asked)


@pytest.mark.parametrize(
    ("asked", "given", "name", "words"),
    [
        ("cpu", {"threads": 1}, "cpu", "on the CPU, 1 thread; --device cuda takes a GPU (Big GPU)"),
        ("cpu", {"threads": 2, "processes": 3}, "cpu", "on the CPU, 3 processes of 2 threads"),
        ("auto", {}, "cuda", "on cuda:0 (Big GPU)"),
        ("cuda:3", {"processes": 4, "spreads": True}, "cuda:3", "on cuda:3 (Big GPU)"),
        ("auto", {"spreads": True}, "cuda", "on 1 of 4 GPUs (Big GPU), each process on one; --workers 4 takes all"),
        ("cuda", {"processes": 8, "spreads": True}, "cuda", "on 4 GPUs (Big GPU), each process on one"),
    ],
)
def test_the_words_name_the_device_and_the_way_to_another(
    asked: str, given: dict[str, Any], name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "Big GPU")
    chosen = choose_device(asked, **given)
    assert chosen.name == name and chosen.words.startswith(words)


def test_a_folder_of_seats_that_others_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seats, target = tmp_path / "seats", tmp_path / "made"
    seats.mkdir(mode=0o700)
    (seats / "GPU-w.0").symlink_to(target)  # no file is made through it
    with pytest.raises(OSError, match="symbolic links"):
        claim_device(["GPU-w", "GPU-v"], seats)
    assert not target.exists()
    (tmp_path / "link").symlink_to(seats)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for folder in (tmp_path / "link", tmp_path / "open"):
        with pytest.raises(ValueError, match="only this user can write"):
            claim_device(["GPU-x", "GPU-y"], folder)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(ValueError, match="only this user can write"):
        claim_device(["GPU-x", "GPU-y"], seats)


# Eight threads at once, each of which allocates; then what glibc says of its heaps.
COUNT_HEAPS = """
import ctypes, sys, threading
from roibeam.pipelines.extract.shard.process_setup import use_one_arena

if sys.argv[1] == "one":
    use_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
together = threading.Barrier(8)
def allocate():
    libc.malloc(1000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fopen.restype, libc.malloc_info.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
file = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
@pytest.mark.parametrize(
    ("called", "users_own", "expected"), [("not", None, range(2, 17)), ("one", None, [1]), ("one", "3", [3])]
)
def test_threads_get_one_heap_or_what_the_user_says(
    tmp_path: Path, called: str, users_own: str | None, expected: range | list[int]
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    if users_own is not None:
        environment["MALLOC_ARENA_MAX"] = users_own
    info = tmp_path / "info.xml"
    subprocess.run([sys.executable, "-c", COUNT_HEAPS, called, str(info)], env=environment, check=True)
    assert info.read_text().count("<heap nr=") in expected
