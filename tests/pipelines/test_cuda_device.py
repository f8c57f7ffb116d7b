"""Processes spread over the CUDA devices of a machine. No device is needed: the seats are files."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from roibeam.pipelines.common.compute import DeviceChoice, choose_device, workers_device
from roibeam.pipelines.extract.shard.shard_job import claim_device, own_device

SIT = """
import sys
from pathlib import Path
from typing import Any
from roibeam.pipelines.extract.shard.shard_job import claim_device
names = sys.argv[2:]
print(claim_device(names, Path(sys.argv[1])), claim_device(names, Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def sit(folder: Path, *names: str) -> tuple[subprocess.Popen[str], int]:
    """A process that takes a seat and stays, and the device it got."""
    command = [sys.executable, "-c", SIT, str(folder), *names]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first, second = process.stdout.readline().split()
    assert first == second  # a process keeps its seat
    return process, int(first)


@pytest.mark.slow
def test_processes_spread_evenly_and_a_killed_one_leaves_its_seat(tmp_path: Path) -> None:
    processes = []
    try:
        for expected in (0, 1, 0):
            process, device = sit(tmp_path, "GPU-a", "GPU-b")
            processes.append(process)
            assert device == expected
        # Devices are known by name: this process sees one of them alone, as its number 0.
        process, device = sit(tmp_path, "GPU-b", "GPU-c")
        processes.append(process)
        assert device == 1
        processes[1].kill()
        processes[1].wait()
        process, device = sit(tmp_path, "GPU-a", "GPU-b")
        processes.append(process)
        assert device == 1
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(("device", "count"), [("cpu", 4), ("cuda:3", 4), ("cuda", 1)])
def test_a_device_that_is_named_or_alone_needs_no_seat(
    device: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert own_device(device) == device


def test_auto_is_a_device_that_is_there_and_is_told() -> None:
    count = torch.cuda.device_count()
    chosen = choose_device("auto", threads=3)
    if not count:
        assert (chosen.name, chosen.words) == ("cpu", "on the CPU, 3 threads")
    else:
        assert chosen.name == "cuda" and torch.cuda.get_device_name(0) in chosen.words
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
