"""Measures what the simulation bench/scale.py draws from, into bench/measured/scale.json: one part for each command.

    python bench/scale_measure.py kills FLINK [--rounds N]    FLINK is what `make flink-packages` fetched, build/flink
    python bench/scale_measure.py pace [--minutes M]
    python bench/scale_measure.py photos PHOTOS               a folder of photos
    python bench/scale_measure.py lifetimes FILE              data/data.json of kadupitiya/goog-preemption-data

`kills`: a run on a real Flink of two TaskManagers, on this machine, with the small network of random weights. In turn a
TaskManager and a worker process of Beam's is killed (SIGKILL) while shards are in work. Of each kill: how many shards
were in work, how many of those some attempt had to begin anew (the heartbeats tell), and how many seconds after the
kill that attempt began. Of each worker process: seconds from its start to its first image.

`pace`: the toy detector in two processes, over and over, as `roibeam extract --workers 2`. The manifests tell how long
each shard took, so how the pace of a process changes in time, by whatever else the machine does. The seconds from the
start of a command to its first image are kept too.

`photos`: how much the seconds of photos differ at true size, by their pixels after resizing, since only backbone and
RPN take longer for more; and what a shard costs beside its images on the disk of this machine.

`lifetimes`: how long preemptible machines lived, as others measured and published it (arXiv:1911.05160: 1,442 machines
of Google Compute Engine, 2019). Half of them were stopped by their users, so they say only that they lived so long;
Kaplan and Meier's estimate takes that into account. Of the same machines: seconds that it took to make each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scale_inputs import MEASURED

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.photos.preprocessing import input_size
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.shard.manifest import ShardManifest
from roibeam.pipelines.cli.commands import app
from roibeam.pipelines.extract.shard.run_progress import read_heartbeats
from roibeam.pipelines.toyworld.rendering import draw_samples

QUANTILES = np.linspace(0, 1, 201)
ROIBEAM = [sys.executable, "-P", "-c", "from roibeam.pipelines.cli.main import main; main()"]
SMALL = (
    "--detector", "small", "--weights", "random:1", "--device", "cpu", "--threads", "1",
    "--set", "detector.short_edge=48",
    "--set", "detector.long_edge=80", "--set", "detector.proposals_after_nms=16", "--set", "detector.base_channels=4",
    "--set", "selection.max_regions=12",
)  # fmt: skip
PIXEL_SHARE = (1432 + 248) / 10035  # ms of backbone and RPN, of all: BENCHMARKS.md, "The detector at true size", exact
KILL_SHARD_IMAGES = 20
IMAGES_A_KILL = 800
IN_WORK_SECONDS = 2.0  # since the last beat of an attempt that is alive; a killed one leaves its last beat behind
SETTLED_SECONDS = 12.0
PACE_IMAGES, PACE_SHARD_IMAGES = 300, 10


def keep(part: str, command: str, content: dict[str, Any]) -> None:
    """Puts one part into the data file, with where it comes from."""
    MEASURED.parent.mkdir(exist_ok=True)
    everything = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    date = datetime.now(UTC).date().isoformat()
    everything[part] = {"command": f"python bench/scale_measure.py {command}", "date": date, **content}
    lines = ",\n".join(f' "{name}": {_one_line_each(everything[name])}' for name in sorted(everything))
    MEASURED.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    print(f"{part}: written to {MEASURED}")


def _one_line_each(part: dict[str, Any]) -> str:
    """A field on each line: long lists stay readable and their changes small."""
    return "{\n" + ",\n".join(f'  "{name}": {json.dumps(value)}' for name, value in part.items()) + "\n }"


# Kills on a real Flink


class Watch:
    """What can be seen of a run on the cluster: attempts by their heartbeats, worker processes by /proc.

    Attributes:
        begun: shard and Unix time of beginning, by attempt.
        first_image: when an attempt had its first image, by attempt.
        started: when a worker process was started, by process number.
    """

    def __init__(self, store: Path, pool: int) -> None:
        self._folder, self._pool = output_folder(str(store)), pool
        self._boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self.begun: dict[str, tuple[int, float]] = {}
        self.first_image: dict[str, float] = {}
        self.started: dict[int, float] = {}

    def look(self) -> dict[str, int]:
        """Shard by attempt, of those in work now."""
        beats = read_heartbeats(self._folder, [])
        for beat in beats:
            self.begun.setdefault(beat.attempt, (beat.shard, beat.started_at))
            self.first_image.setdefault(beat.attempt, beat.beaten_at)
        for pid in self.workers():
            self.started.setdefault(pid, self._start_of(pid))
        return {beat.attempt: beat.shard for beat in beats if beat.beaten_at > time.time() - IN_WORK_SECONDS}

    def workers(self) -> list[int]:
        """The worker processes that the pool has now."""
        lists = Path(f"/proc/{self._pool}/task").glob("*/children")
        return [int(pid) for path in lists for pid in path.read_text(encoding="ascii").split()]

    def _start_of(self, pid: int) -> float:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it ended just now
            return float("nan")
        return self._boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")

    def begun_anew(self, shard: int, after: float) -> float | None:
        """Seconds from `after` until an attempt at this shard began; None when none did."""
        later = [begun - after for number, begun in self.begun.values() if number == shard and begun > after]
        return round(min(later), 3) if later else None

    def start_ups(self, store: Path) -> list[float]:
        """Seconds from the start of a worker process to its first image, of those that finished a shard."""
        first: dict[int, float] = {}
        for path in store.glob("part-*.json"):
            manifest = ShardManifest.read(path)
            if manifest.attempt in self.first_image:
                pid = manifest.stats["process"]
                first[pid] = min(first.get(pid, np.inf), self.first_image[manifest.attempt])
        return sorted(round(at - self.started[pid], 3) for pid, at in first.items() if pid in self.started)


def measure_kills(flink: Path, rounds: int) -> None:
    """Kills a TaskManager and a worker process in turn, `rounds` times each, during one run."""
    sys.path.append(str(Path(__file__).parents[1] / "tools"))
    from clusters.flink_cluster import FlinkCluster

    cluster = FlinkCluster(flink)
    cluster.start(num_managers=2, port=0, pool_port=0)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            draw_samples(folder, count=2 * rounds * IMAGES_A_KILL)
            kills, start_ups = _kill_in_a_run(cluster, folder, rounds)
    finally:
        cluster.stop()
    keep("kills", f"kills FLINK --rounds {rounds}", {"kills": kills, "start_up_seconds": start_ups, **machine()})


def _kill_in_a_run(cluster: Any, folder: Path, rounds: int) -> tuple[list[dict[str, Any]], list[float]]:
    store = folder / "store"
    flags = ["--shard-size", str(KILL_SHARD_IMAGES), "--runner", "flink", "--", *cluster.options, "--parallelism=2"]
    command = [*ROIBEAM, "extract", str(folder / "images"), str(store), *SMALL, *flags]
    watch = Watch(store, cluster.pids["worker-pool"])
    killed: list[tuple[str, float, dict[str, int]]] = []
    with (folder / "errors").open("w") as errors:
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        settled = time.monotonic() + SETTLED_SECONDS
        while run.poll() is None:
            in_work = watch.look()
            if len(killed) < 2 * rounds and len(in_work) == 2 and time.monotonic() > settled:
                what, number = ("TaskManager", "worker process")[len(killed) % 2], 1 + len(killed) // 2 % 2
                victim = cluster.pids[f"taskmanager-{number}"] if len(killed) % 2 == 0 else watch.workers()[-1]
                killed.append((what, time.time(), in_work))
                os.kill(victim, signal.SIGKILL)
                if len(killed) % 2 == 1:
                    cluster.start_task_manager(number)
                settled = time.monotonic() + SETTLED_SECONDS
                print(f"{what} killed, {len(list(store.glob('part-*.json')))} shards done", flush=True)
            time.sleep(0.005)
    if run.returncode != 0 or len(killed) < 2 * rounds:
        said = (folder / "errors").read_text(encoding="utf-8")[-2000:]
        raise RuntimeError(f"code {run.returncode} after {len(killed)} of {2 * rounds} kills: {said}")
    kills = [
        {
            "what": what,
            "in_work": len(in_work),
            "begun_anew_after": [
                seconds for shard in in_work.values() if (seconds := watch.begun_anew(shard, at)) is not None
            ],
        }
        for what, at, in_work in killed
    ]
    return kills, watch.start_ups(store)


# The pace of processes


def measure_pace(minutes: float) -> None:
    """Runs `extract --workers 2` again and again, and keeps what the manifests say of each shard."""
    begin, starts = time.time(), list[float]()
    shards: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_samples(folder, count=PACE_IMAGES)
        while time.time() < begin + 60 * minutes:
            store = folder / f"store{len(starts)}"
            flags = ["--detector", "toy", "--device", "cpu", "--threads", "1", "--workers", "2", "--shard-size"]
            command = [*ROIBEAM, "extract", str(folder / "images"), str(store), *flags, str(PACE_SHARD_IMAGES)]
            at = time.time()
            subprocess.run(command, check=True, capture_output=True)
            found = []
            for path in store.glob("part-*.json"):
                manifest = ShardManifest.read(path)
                seconds = manifest.stats["seconds"]
                found.append(
                    (path.stat().st_mtime - seconds, seconds / manifest.num_records, manifest.stats["process"])
                )
            starts.append(round(min(found)[0] - at, 3))
            names = dict(zip(sorted({process for *_, process in found}), "ab", strict=False))
            for start, seconds, process in sorted(found):
                shards.setdefault(names[process], []).append([round(start - begin, 1), round(seconds, 4)])
    content = {"minutes": minutes, "shard_images": PACE_SHARD_IMAGES, "start_seconds": sorted(starts), "shards": shards}
    keep("pace", f"pace --minutes {minutes:g}", {**content, **machine()})


# Photos and shards


def measure_photos(photos: Path) -> None:
    """How much the seconds of photos differ, and what a shard costs beside its images."""
    config, pixels = DetectorConfig(), []
    for path in sorted(photos.glob("*.jpg")):
        height, width = decode_image(path.read_bytes()).shape[:2]
        resized, _ = input_size((height, width), config.short_edge, config.long_edge, CONVENTIONS["hf"])
        pixels.append(resized[0] * resized[1])
    differ = float(np.std(pixels) / np.mean(pixels))
    with tempfile.TemporaryDirectory() as folder:
        costs = sorted(round(_shard_cost(Path(folder) / str(turn), 12), 3) for turn in range(3))
    spread = {"photos": len(pixels), "pixel_spread": round(differ, 4), "image_spread": round(differ * PIXEL_SHARE, 4)}
    keep("photos", "photos PHOTOS", {**spread, "shard_seconds": costs, **machine()})


def _shard_cost(folder: Path, count: int) -> float:
    """Seconds by which `count` shards of one image take longer than one shard of all of them, per shard."""
    draw_samples(folder, count=count)
    took = {}
    for size in (count, 1, count):  # the first is to load everything
        store = folder / f"store{len(took)}-{size}"
        start = time.perf_counter()
        toy = ("--detector", "toy", "--device", "cpu")
        command = ["extract", str(folder / "images"), str(store), *toy, "--shard-size", str(size)]
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            app(command, standalone_mode=False)
        took[size] = time.perf_counter() - start
    return (took[1] - took[count]) / (count - 1)


# How long preemptible machines lived


def measure_lifetimes(path: Path) -> None:
    """Quantiles of lifetimes, and of the seconds that it took to make a machine, from the published file."""
    machines = json.loads(path.read_text(encoding="utf-8")).values()
    hours = np.array([one["time_in_sec"] / 3600 for one in machines])
    preempted = np.array(["compute.instances.preempted" in one for one in machines])
    made = [_seconds_between(one["insert"]) for one in machines if {"insertTime", "endTime"} <= one["insert"].keys()]
    keep(
        "lifetimes",
        "lifetimes FILE",
        {
            "source": "arXiv:1911.05160; github.com/kadupitiya/goog-preemption-data, data/data.json",
            "machines": len(hours),
            "preempted": int(preempted.sum()),
            "hours": np.round(lifetime_quantiles(hours, preempted), 4).tolist(),
            "made_in_seconds": np.round(np.quantile(made, QUANTILES), 2).tolist(),
        },
    )


def lifetime_quantiles(hours: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Kaplan and Meier's estimate of how long machines live.

    Args:
        hours: (N,) float, how long each was seen.
        ended: (N,) bool, whether it ended by itself then; the others were taken from sight.
    Returns:
        (201,) float, hours: quantiles 0, 0.005, ..., 1; past the last end that was seen, the longest time seen.
    """
    order = np.lexsort((~ended, hours))  # of equal times, ends come first
    hours, ended = hours[order], ended[order]
    at_risk = np.arange(len(hours), 0, -1)
    dead = 1 - np.cumprod(np.where(ended, 1 - 1 / at_risk, 1.0))
    place = np.searchsorted(dead, QUANTILES - 1e-12)
    quantiles: np.ndarray = hours[np.minimum(place, len(hours) - 1)]
    return quantiles


def _seconds_between(operation: dict[str, str]) -> float:
    times = [datetime.fromisoformat(operation[name]) for name in ("insertTime", "endTime")]
    return (times[1] - times[0]).total_seconds()


def machine() -> dict[str, Any]:
    """Where a part was measured."""
    model = next(
        line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line
    )
    return {"cores": os.cpu_count(), "processor": model.split(":")[1].strip(), "load": round(os.getloadavg()[2], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    kills = parts.add_parser("kills")
    kills.add_argument("flink", type=Path)
    kills.add_argument("--rounds", type=int, default=8)
    kills.set_defaults(run=lambda given: measure_kills(given.flink, given.rounds))
    pace = parts.add_parser("pace")
    pace.add_argument("--minutes", type=float, default=30)
    pace.set_defaults(run=lambda given: measure_pace(given.minutes))
    photos = parts.add_parser("photos")
    photos.add_argument("photos", type=Path)
    photos.set_defaults(run=lambda given: measure_photos(given.photos))
    lifetimes = parts.add_parser("lifetimes")
    lifetimes.add_argument("file", type=Path)
    lifetimes.set_defaults(run=lambda given: measure_lifetimes(given.file))
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
