"""Runners that need nothing but Python: worker processes beside the driver, the portable runner, Beam's metrics."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tiny_commands import Cli, digest, ok

from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.store import FeatureStore
from roibeam.pipelines.toyworld.rendering import draw_samples

ROIBEAM = [sys.executable, "-c", "from roibeam.pipelines.cli.main import main; main()"]
OUR_PROCESSES = "roibeam.pipelines.extract.runners.worker_process"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    draw_samples(folder, count=12)
    (folder / "images" / "bad.jpg").write_bytes(b"<html>")
    (folder / "images" / "empty.jpg").write_bytes(b"")
    return folder / "images"


@pytest.fixture
def options(tiny_network: tuple[str, ...]) -> tuple[str, ...]:
    return (*tiny_network, "--threads", "1", "--shard-size", "3", "--max-failures", "0.2")


def manifests(store: Path) -> list[ShardManifest]:
    return [ShardManifest.read(path) for path in sorted(store.glob("part-*.json"))]


def assert_metrics_are_those_of_the_manifests(metrics: dict[str, Any], store: Path) -> None:
    shards = manifests(store)
    reasons = Counter(letter.reason for shard in shards for letter in shard.dead_letters)
    assert metrics["ok"] == sum(shard.num_records for shard in shards) == 12
    assert metrics["dead"] == reasons.total() == 2
    assert metrics["dead_not_an_image"] == metrics["dead_empty_file"] == 1
    assert metrics["regions"] == sum(shard.num_regions for shard in shards)
    assert metrics["bytes"] == sum(shard.data_bytes for shard in shards)
    for name, count in (("decode_ms", 14), ("net_ms", 12), ("write_ms", 12)):
        stats = [shard.stats[name] for shard in shards]
        assert metrics[name]["count"] == sum(one["count"] for one in stats) == count
        assert metrics[name]["sum"] == sum(one["sum"] for one in stats)
        filled = [one for one in stats if one["count"]]
        assert metrics[name]["min"] == min(one["min"] for one in filled)
        assert metrics[name]["max"] == max(one["max"] for one in filled)
    assert metrics["shard_seconds"]["count"] == len(shards)
    assert metrics["net_ms"]["sum"] <= sum(shard.stats["seconds"] for shard in shards) * 1000


def test_beam_counts_what_manifests_say(roibeam: Cli, photos: Path, options: tuple[str, ...], tmp_path: Path) -> None:
    done = ok(roibeam("extract", photos, tmp_path / "store", *options, "--json"))
    metrics = json.loads(done.out.splitlines()[-1])["metrics"]
    assert_metrics_are_those_of_the_manifests(metrics, tmp_path / "store")
    again = roibeam("extract", photos, tmp_path / "store", *options, "--json")
    assert json.loads(again.out.splitlines()[-1])["metrics"] == {}  # nothing was extracted


@pytest.mark.slow
@pytest.mark.parametrize("runner", [("--workers", "2"), ("--runner", "portable")])
def test_worker_processes_write_what_one_process_writes(
    roibeam: Cli, photos: Path, options: tuple[str, ...], tmp_path: Path, runner: tuple[str, str]
) -> None:
    assert roibeam("extract", photos, tmp_path / "one", *options).code == 0
    decoys = tmp_path / "decoys"
    decoys.mkdir()
    for package in ("extraction", "features", "model", "pipelines"):
        (decoys / f"{package}.py").write_text("raise SystemExit('a decoy was imported')\n")
    out = tmp_path / "store"
    command = [*ROIBEAM, "extract", str(photos), str(out), *options, "--json", *runner]
    done = subprocess.run(command, cwd=decoys, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert digest(out) == digest(tmp_path / "one")
    assert not list(out.glob(".*"))
    assert runner == ("--runner", "portable") or len({one.stats["process"] for one in manifests(out)}) == 2
    # Beam's line when it is imported, and ours when that takes long on a busy machine.
    quiet = ("apitools not found", " s so far")
    noise = [line for line in done.stderr.splitlines() if not any(words in line for words in quiet)]
    assert noise == []
    assert_metrics_are_those_of_the_manifests(json.loads(done.stdout.splitlines()[-1])["metrics"], out)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The worker processes that this run has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            parent = path.with_name("stat").read_text().rpartition(")")[2].split()[1]
            if OUR_PROCESSES.encode() in path.read_bytes() and int(parent) == process.pid:
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", ["interrupt", "kill", "kill a worker"])
def test_no_worker_outlives_a_run_and_none_dies_unnoticed(
    roibeam: Cli, photos: Path, tiny_network: tuple[str, ...], tmp_path: Path, what: str
) -> None:
    many, out = tmp_path / "many", tmp_path / "store"
    many.mkdir()
    for copy in range(15):
        for photo in photos.glob("sample_*.jpg"):
            os.link(photo, many / f"{copy:02d}_{photo.name}")
    arguments = ["extract", str(many), str(out), *tiny_network, "--threads", "1", "--shard-size", "45"]
    run = subprocess.Popen([*ROIBEAM, *arguments, "--workers", "2"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(out.glob(".tmp-*/heartbeat.json")):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    workers = workers_of(run)
    assert len(workers) == 2
    if what == "kill a worker":
        os.kill(workers[0], signal.SIGKILL)
    else:
        run.send_signal(signal.SIGINT if what == "interrupt" else signal.SIGKILL)
    _, errors = run.communicate(timeout=60)
    assert "Traceback" not in errors
    if what == "interrupt":
        assert run.returncode == 130 and "interrupted" in errors.splitlines()[-1]
        assert not list(out.glob(".tmp-*"))
    elif what == "kill a worker":
        assert run.returncode == 1
        assert f"worker process {workers[0]} was ended by SIGKILL (out of memory?); finished" in errors.splitlines()[-1]
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its run"
        time.sleep(0.05)
    assert roibeam(*arguments).code == 0
    with FeatureStore(out) as store:
        assert len(store) == 180
