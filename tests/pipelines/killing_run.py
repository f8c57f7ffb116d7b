"""A run on a small cluster in which processes are killed at given numbers of finished shards."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusters.flink_cluster import FlinkCluster
from clusters.small_cluster import POOL, SmallCluster
from clusters.spark_cluster import SparkCluster

RUN_SECONDS = 1200
FIRST, GAP = 4, 3  # finished shards before a kill, and between two


@dataclass(frozen=True)
class Kill:
    """Once so many shards are finished: a Python "worker", or a "manager", which is a TaskManager or an executor."""

    at: int
    kind: str


@dataclass
class KilledRun:
    """
    Attributes:
        attempts: names of the attempts seen, by shard.
        kills: kind and name of what was killed, and how many shards were finished then.
        before: files of shards that were finished at the first kill.
        num_workers: most Python workers at once, before the first kill.
    """

    code: int = -1
    errors: str = ""
    attempts: dict[int, set[str]] = field(default_factory=dict)
    kills: list[tuple[str, str, int]] = field(default_factory=list)
    before: dict[Path, bytes] = field(default_factory=dict)
    num_workers: int = 0

    @property
    def repeated(self) -> dict[int, set[str]]:
        return {shard: names for shard, names in self.attempts.items() if len(names) > 1}


def seeded_kills(count: int, num_shards: int, seed: str) -> list[Kill]:
    """A third of them, one at least, of managers, the others of workers; at seeded numbers of finished shards, all in
    the first three quarters: at the end of a job there may be nothing in work to be killed.
    """
    rng = random.Random(seed)
    places = sorted(rng.sample(range(FIRST, num_shards * 3 // 4, GAP), count))
    kinds = ["manager"] * max(1, count // 3)
    kinds += ["worker"] * (count - len(kinds))
    rng.shuffle(kinds)
    return [Kill(place, kind) for place, kind in zip(places, kinds, strict=True)]


def run_with_kills(command: Sequence[str], out: Path, cluster: SmallCluster, kills: Sequence[Kill]) -> KilledRun:
    """Runs the command to its end; each kill waits until a shard is in work, and takes one process or the other."""
    found, left, rng = KilledRun(), list(kills), random.Random(len(kills))
    errors = out.with_suffix(".errors")
    with errors.open("w") as file:
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
        deadline = time.monotonic() + RUN_SECONDS
        try:
            while run.poll() is None:
                assert time.monotonic() < deadline, errors.read_text()
                in_work = shards_in_work(out)
                for attempt, shard in in_work.items():
                    found.attempts.setdefault(shard, set()).add(attempt)
                finished = sorted(out.glob("part-*.json"))
                if not found.kills:
                    found.num_workers = max(found.num_workers, len(python_workers(cluster)))
                if left and in_work and len(finished) >= left[0].at:
                    if not found.kills:
                        found.before = {path: path.read_bytes() for path in finished}
                    if name := _kill_one(cluster, left[0].kind, rng):
                        found.kills.append((left.pop(0).kind, name, len(finished)))
                time.sleep(0.02)
        finally:
            run.kill()
    found.code, found.errors = run.wait(), errors.read_text()
    return found


def _kill_one(cluster: SmallCluster, kind: str, rng: random.Random) -> str | None:
    """Kills a process that takes part in the job and returns its name; None where none is there just now."""
    processes = python_workers(cluster) if kind == "worker" else managers(cluster)
    if not processes:
        return None
    name = rng.choice(sorted(processes))
    os.kill(processes[name], signal.SIGKILL)
    return name


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
