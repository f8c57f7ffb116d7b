"""`--runner flink` and `spark` on real ones: a leader, two that compute, a worker pool; processes are killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from clusters.flink_cluster import FlinkCluster
from clusters.small_cluster import POOL, SmallCluster
from clusters.spark_cluster import SparkCluster
from soak_share import many
from tiny_commands import Cli

from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.store import FeatureStore
from roibeam.pipelines.toyworld.rendering import draw_samples

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
ROIBEAM = [sys.executable, "-c", "from roibeam.pipelines.cli.main import main; main()"]
ENGINES = {"flink": FlinkCluster, "spark": SparkCluster}
MORE_OPTIONS = {
    # On 2 x 2 slots: a task on each TaskManager, and slots left for when one dies.
    "flink": ["--parallelism=2"],
    # Tasks of four shards in place of one: a task starts a worker, which takes longer than these small shards.
    "spark": ["--job_server_jvm_properties=-Dspark.default.parallelism=16"],
}
SHARD_SIZE, NUM_SHARDS = 20, 64
NUM_IMAGES = SHARD_SIZE * NUM_SHARDS
RUN_SECONDS = 600
FIRST, GAP = 4, 3  # finished shards before a kill, and between two


@pytest.fixture(scope="module", params=ENGINES)
def cluster(request: pytest.FixtureRequest) -> Iterator[SmallCluster]:
    """Started once for all tests of an engine."""
    engine = request.param
    variable = f"ROIBEAM_{engine.upper()}"
    if not os.environ.get(variable):
        pytest.skip(f"needs {engine.capitalize()}: make test-cluster")
    started = ENGINES[engine](Path(os.environ[variable]))
    started.stop()
    started.start(num_managers=2, port=0, pool_port=0)
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


@pytest.mark.parametrize("num_kills", [3, many(12)])
def test_a_job_with_kills_in_it_writes_what_the_local_runner_writes(
    cluster: SmallCluster, num_kills: int, photos: Path, options: tuple[str, ...], local_digest: str, roibeam: Cli,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Python workers, and a TaskManager or an executor: what was in work is done again, what was finished stays."""
    out = tmp_path / "store"
    flags = [*cluster.options, *MORE_OPTIONS[cluster.engine]]
    command = [*ROIBEAM, "extract", str(photos), str(out), *options, "--runner", cluster.engine]
    command += ["--pool-token-file", str(cluster.token_file), "--", *flags]
    kills = seeded_kills(num_kills, NUM_SHARDS, f"{cluster.engine} {num_kills}")
    done = run_with_kills(command, out, cluster, kills)
    kills_told = "; ".join(f"{name} at {finished}" for _, name, finished in done.kills)
    told = f"{cluster.engine}: {kills_told}; of {NUM_SHARDS} shards {len(done.repeated)} were done again"
    print(told)
    if isinstance(cluster, FlinkCluster):
        start_task_managers(cluster)  # for the next test
    assert done.code == 0, f"{told}\n{done.errors}"
    assert "Traceback" not in done.errors
    assert done.num_workers == 2  # one beside each TaskManager or executor
    assert [kind for kind, _, _ in done.kills] == [kind for _, kind in kills]

    assert done.repeated, "no shard in work was tried again"
    for shard, names in done.repeated.items():
        assert ShardManifest.read(out / f"part-{shard:05d}.json").attempt in names
    assert all(path.read_bytes() == content for path, content in done.before.items())  # what was done stayed
    assert checked_digest(out) == local_digest
    assert roibeam("store", "verify", out, "--deep").code == 0


# A run in which processes are killed at given numbers of finished shards


@dataclass
class KilledRun:
    code: int = -1
    errors: str = ""
    attempts: dict[int, set[str]] = field(default_factory=dict)  # names of those that were seen, by shard
    kills: list[tuple[str, str, int]] = field(default_factory=list)  # kind, name, how many shards were finished
    before: dict[Path, bytes] = field(default_factory=dict)  # files of the shards finished at the first kill
    num_workers: int = 0  # most Python workers at once, before the first kill

    @property
    def repeated(self) -> dict[int, set[str]]:
        return {shard: names for shard, names in self.attempts.items() if len(names) > 1}


def seeded_kills(count: int, num_shards: int, seed: str) -> list[tuple[int, str]]:
    """After how many finished shards a Python "worker" or a "manager" (a TaskManager or an executor) is killed; a third
    of them, one at least, are managers. All in the first three quarters: at the end of a job there may be nothing in
    work to be killed.
    """
    rng = random.Random(seed)
    places = sorted(rng.sample(range(FIRST, num_shards * 3 // 4, GAP), count))
    kinds = ["manager"] * max(1, count // 3)
    kinds += ["worker"] * (count - len(kinds))
    rng.shuffle(kinds)
    return list(zip(places, kinds, strict=True))


def run_with_kills(
    command: Sequence[str], out: Path, cluster: SmallCluster, kills: Sequence[tuple[int, str]]
) -> KilledRun:
    """Runs the command to its end; each kill waits until a shard is in work, and takes one process or the other."""
    found, left, rng = KilledRun(), list(kills), random.Random(len(kills))
    errors = out.with_suffix(".errors")
    with errors.open("w") as file:
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
        deadline = time.monotonic() + 2 * RUN_SECONDS
        try:
            while run.poll() is None:
                assert time.monotonic() < deadline, f"{found.kills}\n{errors.read_text()}"
                in_work = shards_in_work(out)
                for attempt, shard in in_work.items():
                    found.attempts.setdefault(shard, set()).add(attempt)
                finished = sorted(out.glob("part-*.json"))
                if not found.kills:
                    found.num_workers = max(found.num_workers, len(python_workers(cluster)))
                if left and in_work and len(finished) >= left[0][0]:
                    if not found.kills:
                        found.before = {path: path.read_bytes() for path in finished}
                    if name := _kill_one(cluster, left[0][1], rng, out):
                        found.kills.append((left.pop(0)[1], name, len(finished)))
                time.sleep(0.02)
        finally:
            run.kill()
    found.code, found.errors = run.wait(), errors.read_text()
    for manifest in map(ShardManifest.read, out.glob("part-*.json")):  # an attempt may be shorter than two looks
        found.attempts.setdefault(manifest.shard, set()).add(manifest.attempt)
    return found


def _kill_one(cluster: SmallCluster, kind: str, rng: random.Random, out: Path) -> str | None:
    """Kills a process that takes part in the job and returns its name; None where none is there just now.

    A worker is killed in the middle of a shard: one that waits for work would leave nothing to be done again.
    """
    processes = python_workers(cluster) if kind == "worker" else managers(cluster)
    for name in rng.sample(sorted(processes), len(processes)):
        pid = processes[name]
        with suppress(ProcessLookupError, FileNotFoundError):  # it ended, or its file was closed just now
            os.kill(pid, signal.SIGSTOP)
            if kind == "manager" or has_shard_in_work(pid, out):
                os.kill(pid, signal.SIGKILL)
                return name
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return None


def has_shard_in_work(pid: int, store: Path) -> bool:
    """Whether a process has a file open in the folder of an attempt, next to its heartbeat."""
    files = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return any(file.match(f"{store}/.tmp-*/*") and file.with_name("heartbeat.json").exists() for file in files)


def managers(cluster: SmallCluster) -> dict[str, int]:
    """TaskManagers or executors by name. Of Flink all: those that were killed before are started again, for the job
    may need their slots; Spark starts executors by itself.
    """
    if isinstance(cluster, SparkCluster):
        return {f"executor of {name}": pid for name, pid in cluster.executors().items()}
    assert isinstance(cluster, FlinkCluster)
    start_task_managers(cluster)
    return {name: pid for name, pid in cluster.pids.items() if name.startswith("taskmanager-")}


def start_task_managers(cluster: FlinkCluster) -> None:
    """Those that have ended; waits until all have registered."""
    names = [name for name in cluster.pids if name.startswith("taskmanager-")]
    for name in names:
        if not cluster.is_alive(name):
            cluster.start_task_manager(int(name.partition("-")[2]))
    cluster.wait(lambda: cluster.ask("/overview")["taskmanagers"] >= len(names))


def python_workers(cluster: SmallCluster) -> dict[str, int]:
    """The processes that the worker pool has started, by name."""
    pool = cluster.pids[POOL]
    found = {}
    for path in Path(f"/proc/{pool}/task").glob("*/children"):  # of the thread that started it
        for pid in path.read_text().split():
            found[f"worker {pid}"] = int(pid)
    return found


def shards_in_work(store: Path) -> dict[str, int]:
    """Shard number by attempt, as the heartbeats tell."""
    found = {}
    for path in store.glob(".tmp-*/heartbeat.json"):
        try:
            found[path.parent.name.removeprefix(".tmp-")] = json.loads(path.read_text())["shard"]
        except FileNotFoundError:
            continue  # its shard finished just now
    return found
