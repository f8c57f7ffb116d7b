"""`--runner flink` and `spark` on real ones: a leader, two that compute, a worker pool; processes are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters.flink_cluster import FlinkCluster
from clusters.small_cluster import SmallCluster
from clusters.spark_cluster import SparkCluster
from killing_run import run_with_kills, seeded_kills, start_task_managers
from soak_share import many

from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.store import FeatureStore
from roibeam.pipelines.toyworld.rendering import draw_samples

Cli = Callable[..., Any]
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
    assert [kind for kind, _, _ in done.kills] == [kill.kind for kill in kills]

    assert done.repeated, "no shard in work was tried again"
    for shard, names in done.repeated.items():
        assert ShardManifest.read(out / f"part-{shard:05d}.json").attempt in names
    assert all(path.read_bytes() == content for path, content in done.before.items())  # what was done stayed
    assert checked_digest(out) == local_digest
    assert roibeam("store", "verify", out, "--deep").code == 0
