"""How many images a shard should hold: a simulation of 3.3 million images over a cluster that fails.

    python bench/scale.py [--images N] [--workers N] [--seconds-per-image S] [--failures-per-hour F] ...
    python bench/scale.py --measure PHOTOS     the seconds per image and per shard that the simulation starts from

Workers take shards from one queue. A worker that fails loses what it did of its shard; the shard goes back into the
queue, the worker comes back after a while. Some workers are slow. Seeded: the same command prints the same table.

Where the defaults come from:

- 10.6 seconds per image: BENCHMARKS.md, "The detector at true size": 0.094 images/s from file to record in exact mode
  on two CPU cores. The second table stands for an H200 in exact mode, 15.8 images/s from file to record (same section).
- spread between images: --measure over the COCO photos of ../shared. Only backbone and RPN take longer for more pixels.
- seconds a shard costs beside its images: --measure gives it for a local disk; the default is 1 s, for the ten or so
  requests of a bucket at 100 ms each (assumed).
- a failure of each worker in 20 hours: assumed. 5 minutes until it is there again: a machine starts, pulls the image
  (7 GB) and loads; assumed.
- slow workers: 2 % at a third of the speed, the others within some 10 % of one another; the factor was seen on one
  machine beside other work, the shares are assumed.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import tempfile
import time
from collections import deque
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from store_rounds import table

from pipelines.plan import MAX_SHARD_IMAGES, shard_size_for

SIZES = (100, 250, 500, 1000, 2000, 4000, 8000, 16000, 50000)
MINUTE, HOUR = 60.0, 3600.0
PIXEL_SHARE = (1432 + 248) / 10035  # ms of backbone and RPN, of all: BENCHMARKS.md, "The detector at true size", exact


@dataclass(frozen=True)
class Cluster:
    """What is to be done, and by whom.

    Attributes:
        images: in all.
        workers: each takes one shard at a time.
        seconds_per_image: of a worker of common speed.
        image_spread: standard deviation of the seconds of an image, as a share of their mean.
        shard_seconds: what a shard costs beside its images.
        failures_per_hour: of one worker.
        restart_seconds: from a failure until the worker takes a shard again.
        speed_spread: standard deviation of the logarithm of a worker's speed.
        slow_share, slow_factor: share of workers that take so many times as long.
    """

    images: int = 3_300_000
    workers: int = 500
    seconds_per_image: float = 10.6
    image_spread: float = 0.02
    shard_seconds: float = 1.0
    failures_per_hour: float = 0.05
    restart_seconds: float = 300.0
    speed_spread: float = 0.1
    slow_share: float = 0.02
    slow_factor: float = 3.0

    def slowness(self, draw: np.random.Generator) -> np.ndarray:
        """(workers,) float64: how many times the common seconds each takes."""
        slowness = np.exp(self.speed_spread * draw.standard_normal(self.workers))
        slowness[: round(self.slow_share * self.workers)] *= self.slow_factor
        return slowness


@dataclass(frozen=True)
class Outcome:
    """How a run went; seconds.

    Attributes:
        wall: from the first shard to the last.
        ideal: the same if nothing failed, shards cost nothing and could be cut at will.
        wasted: of all workers, work that a failure lost.
        overhead: of all workers, what shards cost beside their images, attempts that failed included.
        tail: from the first worker that found no shard to the end.
        largest_loss: by one failure.
        failures: that hit a shard in work.
        shards: in all.
    """

    wall: float
    ideal: float
    wasted: float
    overhead: float
    tail: float
    largest_loss: float
    failures: int
    shards: int


def simulate(cluster: Cluster, shard_images: int, seed: int = 0) -> Outcome:
    """One run with shards of so many images."""
    draw = np.random.default_rng(seed)
    slowness = cluster.slowness(draw)
    sizes = np.full(-(-cluster.images // shard_images), shard_images, np.int64)
    sizes[-1] = cluster.images - shard_images * (len(sizes) - 1)
    spread = cluster.image_spread * np.sqrt(sizes) * draw.standard_normal(len(sizes))
    work = cluster.shard_seconds + cluster.seconds_per_image * np.maximum(sizes + spread, 0)
    mean_gap = HOUR / cluster.failures_per_hour if cluster.failures_per_hour else np.inf
    next_failure = np.full(cluster.workers, np.inf)
    if cluster.failures_per_hour:
        next_failure = draw.exponential(mean_gap, cluster.workers)

    waiting, idle = deque(range(len(sizes))), deque(range(cluster.workers))
    order = itertools.count()  # ties end in the order they began
    events: list[tuple[float, int, int, int | None]] = []  # time, order, worker, its shard or None: it is back
    now = wall = wasted = largest_loss = 0.0
    tail_begins = np.inf
    failures = attempts = 0
    left = len(sizes)
    begun: dict[int, float] = {}
    broken: set[int] = set()
    while left:
        while waiting and idle:
            worker, shard = idle.popleft(), waiting.popleft()
            attempts += 1
            begun[worker] = now
            while next_failure[worker] <= now:  # while it was idle or away
                next_failure[worker] += draw.exponential(mean_gap)
            ends = now + work[shard] * slowness[worker]
            if next_failure[worker] < ends:
                ends = next_failure[worker]
                broken.add(worker)
            heapq.heappush(events, (ends, next(order), worker, shard))
        if idle and not waiting:
            tail_begins = min(tail_begins, now)
        now, _, worker, ended = heapq.heappop(events)
        if ended is None:
            idle.append(worker)
        elif worker in broken:
            broken.discard(worker)
            loss = now - begun[worker]
            wasted, largest_loss, failures = wasted + loss, max(largest_loss, loss), failures + 1
            waiting.appendleft(ended)
            heapq.heappush(events, (now + cluster.restart_seconds, next(order), worker, None))
        else:
            left, wall = left - 1, now
            idle.append(worker)
    ideal = cluster.images * cluster.seconds_per_image / float((1 / slowness).sum())
    overhead = attempts * cluster.shard_seconds
    tail = max(0.0, wall - tail_begins)
    return Outcome(wall, ideal, wasted, overhead, tail, largest_loss, failures, len(sizes))


def mean_outcome(cluster: Cluster, shard_images: int, seeds: int) -> dict[str, float]:
    """Each field of `Outcome`, mean over seeds 0, 1, ..."""
    runs = [simulate(cluster, shard_images, seed) for seed in range(seeds)]
    return {name: float(np.mean([getattr(run, name) for run in runs])) for name in Outcome.__dataclass_fields__}


def share(value: float) -> str:
    return f"{100 * value:.2f} %" if value < 10 else f"{value:,.0f} x"


def print_table(cluster: Cluster, seeds: int) -> None:
    """One row for each shard size; the size that the plan's rule gives is among them."""
    ruled = shard_size_for(cluster.seconds_per_image)
    print(
        f"\n{cluster.images:,} images, {cluster.workers} workers, {cluster.seconds_per_image:g} s an image, "
        f"{cluster.failures_per_hour:g} failures an hour and worker; mean of {seeds} runs\n"
    )
    rows = []
    for size in sorted({*SIZES, ruled}):
        mean = mean_outcome(cluster, size, seeds)
        busy = cluster.images * cluster.seconds_per_image
        rows.append(
            (
                f"{size:,}{' (the rule)' if size == ruled else ''}",
                f"{size * cluster.seconds_per_image / MINUTE:,.1f}",
                f"{mean['shards']:,.0f}",
                f"{mean['wall'] / HOUR:,.2f}",
                share(mean["wall"] / mean["ideal"] - 1),
                share(mean["wasted"] / busy),
                share(mean["overhead"] / busy),
                f"{mean['tail'] / MINUTE:,.1f}",
                f"{mean['largest_loss'] / MINUTE:,.1f}",
            )
        )
    header = (
        "images a shard", "minutes a shard", "shards", "hours", "over ideal", "wasted by failures", "cost of shards",
        "tail, minutes", "largest loss, minutes",
    )  # fmt: skip
    print(table(header, rows))


def measure(photos: Path) -> None:
    """Prints how much the seconds of photos differ at true size, and what a shard costs on this disk."""
    from extraction.config import DetectorConfig
    from extraction.conventions import CONVENTIONS
    from extraction.decode import decode_image
    from extraction.preprocess import input_size

    config, pixels = DetectorConfig(), []
    for path in sorted(photos.glob("*.jpg")):
        height, width = decode_image(path.read_bytes()).shape[:2]
        resized, _ = input_size((height, width), config.short_edge, config.long_edge, CONVENTIONS["hf"])
        pixels.append(resized[0] * resized[1])
    differ = float(np.std(pixels) / np.mean(pixels))
    print(f"{len(pixels)} photos: after resizing, the standard deviation of their pixels is {differ:.3f} of the mean;")
    print(f"of their seconds, of which {PIXEL_SHARE:.3f} grow with pixels, {differ * PIXEL_SHARE:.3f}")
    with tempfile.TemporaryDirectory() as folder:
        costs = [shard_cost(Path(folder) / str(turn), 30) for turn in range(3)]
    print(
        f"a shard costs {np.median(costs):.3f} s beside its images on this disk ({min(costs):.3f} to {max(costs):.3f})"
    )


def shard_cost(folder: Path, count: int) -> float:
    """Seconds by which `count` shards of one image take longer than one shard of all of them, per shard."""
    from pipelines.cli import app
    from pipelines.toyworld.draw import draw_samples

    draw_samples(folder, count=count)
    took = {}
    for size in (count, 1, count):  # the first is to load everything
        store = folder / f"store{len(took)}-{size}"
        start = time.perf_counter()
        command = ["extract", str(folder / "images"), str(store), "--detector", "toy", "--shard-size", str(size)]
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            app(command, standalone_mode=False)
        took[size] = time.perf_counter() - start
    return (took[1] - took[count]) / (count - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Cluster()
    for name in Cluster.__dataclass_fields__:
        value = getattr(default, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=None, help=f"default {value:g}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--measure", type=Path, metavar="PHOTOS")
    arguments = parser.parse_args()
    if arguments.measure is not None:
        measure(arguments.measure)
        return
    asked = {name: getattr(arguments, name) for name in Cluster.__dataclass_fields__}
    given = {name: value for name, value in asked.items() if value is not None}
    print(f"The plan's rule: ten minutes of work by one timed image, at most {MAX_SHARD_IMAGES:,} images.")
    cpu, gpu = default, replace(default, workers=64, seconds_per_image=0.063)
    for cluster in [replace(default, **given)] if {"seconds_per_image", "workers"} & given.keys() else [cpu, gpu]:
        print_table(replace(cluster, **given), arguments.seeds)


if __name__ == "__main__":
    main()
