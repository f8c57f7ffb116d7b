"""`--runner flink` on a real Flink: a JobManager, two TaskManagers, a worker pool; one TaskManager dies in mid-run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.store import FeatureStore
from roibeam.pipelines.extract.runners.engines.flink_cluster import FlinkCluster
from roibeam.pipelines.toyworld.draw import draw_samples

Cli = Callable[..., Any]
pytestmark = [pytest.mark.slow, pytest.mark.cluster]
ROIBEAM = [sys.executable, "-c", "from roibeam.pipelines.cli.main import main; main()"]
NUM_IMAGES = 2000
SHARD_SIZE = 50
NUM_SHARDS = NUM_IMAGES // SHARD_SIZE
RUN_SECONDS = 600


@pytest.fixture(scope="module")
def cluster() -> Iterator[FlinkCluster]:
    if "ROIBEAM_FLINK" not in os.environ:
        pytest.skip("needs Flink: make test-cluster")
    started = FlinkCluster(Path(os.environ["ROIBEAM_FLINK"]))
    started.stop()
    started.start(num_task_managers=2, port=0, pool_port=0)
    yield started
    started.stop()
    assert not any(started.is_alive(name) for name in started.pids)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    draw_samples(folder, count=NUM_IMAGES)
    return folder / "images"


@pytest.fixture(scope="module")
def options(tiny_network: tuple[str, ...]) -> tuple[str, ...]:
    return (*tiny_network, "--threads", "1", "--distribution", "top-5", "--shard-size", str(SHARD_SIZE))


@pytest.fixture(scope="module")
def local_digest(photos: Path, options: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("local") / "store"
    command = [*ROIBEAM, "extract", str(photos), str(store), *options, "--workers", "2"]
    subprocess.run(command, check=True, capture_output=True, timeout=RUN_SECONDS)
    return checked_digest(store)


def checked_digest(store: Path) -> str:
    """The content digest of a store that holds each image once, and nothing else."""
    manifests = [ShardManifest.read(path) for path in sorted(store.glob("part-*.json"))]
    assert sum(manifest.num_records for manifest in manifests) == NUM_IMAGES and len(manifests) == NUM_SHARDS
    assert {path.name for path in store.glob("*.lmdb")} == {manifest.data_file for manifest in manifests}
    assert not list(store.glob(".*"))
    with FeatureStore(store) as opened:
        assert len(set(opened)) == len(opened) == NUM_IMAGES
        return opened.manifest.content_digest


def test_flink_writes_what_the_local_runner_writes(
    cluster: FlinkCluster, photos: Path, options: tuple[str, ...], local_digest: str, roibeam: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    # Parallelism 2 on 2 x 2 slots: a task on each TaskManager, and slots left for when one dies.
    flags = ["--pool-token-file", str(cluster.token_file), "--", *cluster.options, "--parallelism=2"]
    command = [*ROIBEAM, "extract", str(photos), str(out), *options, "--runner", "flink", *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "2,000 records" in done.stdout and "Traceback" not in done.stderr
    assert checked_digest(out) == local_digest
    assert roibeam("store", "verify", out, "--deep").code == 0
    assert extracting_task_managers(cluster) == {"tm1", "tm2"}


def test_a_task_manager_killed_in_mid_run_costs_its_shard_only(
    cluster: FlinkCluster, photos: Path, options: tuple[str, ...], local_digest: str, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    flags = ["--pool-token-file", str(cluster.token_file), "--", *cluster.options, "--parallelism=2"]
    command = [*ROIBEAM, "extract", str(photos), str(out), *options, "--runner", "flink", *flags]
    attempts: dict[int, set[str]] = {}
    killed_with = None
    with (tmp_path / "errors").open("w") as errors:
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        deadline = time.monotonic() + RUN_SECONDS
        while run.poll() is None:
            assert time.monotonic() < deadline, (tmp_path / "errors").read_text()
            in_work = shards_in_work(out)
            for attempt, shard in in_work.items():
                attempts.setdefault(shard, set()).add(attempt)
            num_done = len(list(out.glob("part-*.json")))
            if killed_with is None and num_done >= 4 and len(in_work) == 2:
                os.kill(cluster.pids["taskmanager-1"], signal.SIGKILL)
                killed_with = num_done
                before = {path: path.read_bytes() for path in out.glob("part-*.json")}
            time.sleep(0.01)
    assert run.returncode == 0, (tmp_path / "errors").read_text()
    assert killed_with is not None and killed_with < NUM_SHARDS / 2
    assert not cluster.is_alive("taskmanager-1")

    repeated = {shard: names for shard, names in attempts.items() if len(names) > 1}
    assert repeated, "the shard in work was not tried again"
    for shard, names in repeated.items():
        assert ShardManifest.read(out / f"part-{shard:05d}.json").attempt in names
    assert all(path.read_bytes() == content for path, content in before.items())  # what was done stayed
    assert checked_digest(out) == local_digest
    print(f"killed with {killed_with} of {NUM_SHARDS} shards done; attempts of repeated shards: {repeated}")


def shards_in_work(store: Path) -> dict[str, int]:
    """Shard number by attempt, as the heartbeats tell."""
    found = {}
    for path in store.glob(".tmp-*/heartbeat.json"):
        try:
            found[path.parent.name.removeprefix(".tmp-")] = json.loads(path.read_text())["shard"]
        except FileNotFoundError:
            continue  # its shard finished just now
    return found


def extracting_task_managers(cluster: FlinkCluster) -> set[str]:
    """Those on which the last job's extracting tasks ran."""
    newest = max(cluster.ask("/jobs/overview")["jobs"], key=lambda job: job["start-time"])
    job = cluster.ask(f"/jobs/{newest['jid']}")
    (vertex,) = (one for one in job["vertices"] if "Extract, " in one["name"])
    tasks = cluster.ask(f"/jobs/{newest['jid']}/vertices/{vertex['id']}")["subtasks"]
    return {task["taskmanager-id"] for task in tasks}
