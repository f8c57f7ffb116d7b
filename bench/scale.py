"""How many images a shard should hold: a simulation of 3.3 million images over a cluster that fails.

    python bench/scale.py [--images N] [--workers N] [--seconds-per-image S] [--machines own|preemptible|hourly] ...
    python bench/scale.py --range       the plan's rule beside the best size, over all that is not known

Workers take shards from one queue. A machine that fails loses what it did of its shard; the shard goes back into the
queue and is begun anew after a while, and another machine comes in its place. On Flink all shards in work begin anew
then (`--flink`). A worker's pace changes in time, and some machines are slow for good. Seeded: the same command prints
the same table, after a list of what is measured, what was published, and what is assumed (bench/scale_inputs.py).

- 10.6 seconds per image: BENCHMARKS.md, "The detector at true size": 0.094 images/s from file to record in exact mode
  on two CPU cores. The second table stands for an H200 in exact mode, 15.8 images/s from file to record (same section).
- pace, restart, what a kill costs, how long machines live: drawn from the values of bench/measured/scale.json.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from scale_inputs import HOUR, OWN_MACHINE_HOURS, Exponential, Inputs, Pace, Spread, read_inputs, steady, told
from store_rounds import table

from roibeam.pipelines.data.shard_plan import MAX_SHARD_IMAGES, shard_size_for

SIZES = (100, 250, 500, 1000, 2000, 4000, 8000, 16000, 50000)
RANGE_SIZES = (25, 100, 250, 1000, 4000)
MINUTE = 60.0
NEVER = 5.0  # a run that takes so many times as long as it should is given up
BUCKET_SECONDS = 1.0
IMAGE_SECONDS = (60.0, 300.0)  # a new machine starts and pulls the image of 7 GB, at 1 Gbit/s and less
Lives = Spread | Exponential


@dataclass(frozen=True)
class Cluster:
    """What is to be done, and by whom.

    Attributes:
        images: in all.
        workers: each takes one shard at a time, on a machine of its own.
        seconds_per_image: of a machine of common speed, on average.
        image_spread: standard deviation of the seconds of an image, as a share of their mean.
        shard_seconds: what a shard costs beside its images.
        lives: seconds until a machine fails; None: never.
        restart: seconds from a failure until another machine takes a shard, the sum of these.
        again: seconds from a failure until a lost shard can be taken again.
        flink: whether a failure stops all workers until then, and all shards in work are lost.
        pace: of the workers; each begins at a place of its own.
        slow_share, slow_factor: share of machines that take so many times as long, always.
    """

    images: int = 3_300_000
    workers: int = 500
    seconds_per_image: float = 10.6
    image_spread: float = 0.0
    shard_seconds: float = BUCKET_SECONDS
    lives: Lives | None = None
    restart: tuple[Spread, ...] = ()
    again: Spread = field(default_factory=lambda: Spread.of([0.0]))
    flink: bool = False
    pace: Pace = field(default_factory=steady)
    slow_share: float = 0.02
    slow_factor: float = 3.0

    def slowness(self) -> np.ndarray:
        """(workers,) float64: how many times the common seconds each takes."""
        slowness = np.ones(self.workers)
        slowness[: round(self.slow_share * self.workers)] = self.slow_factor
        return slowness


@dataclass(frozen=True)
class Outcome:
    """How a run went; seconds.

    Attributes:
        wall: from the first shard to the last; infinite when it was given up.
        ideal: the same if nothing failed, shards cost nothing and could be cut at will.
        wasted: of all workers, work that failures lost.
        overhead: of all workers, what shards cost beside their images, attempts that failed included.
        tail: from the first worker that found no shard to the end.
        largest_loss: of one worker, by one failure.
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


class Run:
    """One run with shards of so many images; `simulate` is how to get one."""

    def __init__(self, cluster: Cluster, shard_images: int, seed: int) -> None:
        self.cluster, self.draw = cluster, np.random.default_rng(seed)
        sizes = np.full(-(-cluster.images // shard_images), shard_images, np.int64)
        sizes[-1] = cluster.images - shard_images * (len(sizes) - 1)
        spread = cluster.image_spread * np.sqrt(sizes) * self.draw.standard_normal(len(sizes))
        self.work = cluster.shard_seconds + cluster.seconds_per_image * np.maximum(sizes + spread, 0)
        self.slowness = cluster.slowness()
        self.place = (self.draw.random(cluster.workers) * cluster.pace.seconds).tolist()
        self.dies = self._lives(cluster.workers)
        self.waiting, self.idle = deque(range(len(sizes))), deque(range(cluster.workers))
        self.in_work: dict[int, tuple[int, float, int]] = {}  # worker: shard, when begun, number of the attempt
        self.order = itertools.count()  # of events, and of attempts; ties end in the order they began
        self.events: list[tuple[float, int, str, int]] = []  # time, order, kind, worker or shard
        self.now = self.wall = self.wasted = self.largest_loss = 0.0
        self.tail_begins = np.inf
        self.failures = self.attempts = 0
        self.left = len(sizes)

    def _lives(self, count: int) -> np.ndarray:
        lives = self.cluster.lives
        return np.full(count, np.inf) if lives is None else lives.draw(self.draw, count)

    def _at(self, time: float, kind: str, what: int) -> int:
        number = next(self.order)
        heapq.heappush(self.events, (time, number, kind, what))
        return number

    def _hand_out(self) -> None:
        while self.waiting and self.idle:
            worker, shard = self.idle.popleft(), self.waiting.popleft()
            self.attempts += 1
            if self.dies[worker] <= self.now:  # while it had nothing to do
                self.dies[worker] = self.now + self._lives(1)[0]
            start = self.place[worker] + self.now
            took = self.cluster.pace.end(start, float(self.work[shard] * self.slowness[worker])) - start
            ends, dies = self.now + took, self.dies[worker] < self.now + took
            number = self._at(float(self.dies[worker]) if dies else ends, "dies" if dies else "done", worker)
            self.in_work[worker] = (shard, self.now, number)
        if self.idle and not self.waiting:
            self.tail_begins = min(self.tail_begins, self.now)

    def _lose(self, worker: int, again: float) -> None:
        shard, begun, _ = self.in_work.pop(worker)
        self.wasted += self.now - begun
        self.largest_loss = max(self.largest_loss, self.now - begun)
        self._at(self.now + again, "again", shard)

    def _die(self, worker: int) -> None:
        again = float(self.cluster.again.draw(self.draw, 1)[0])
        restart = max(again, float(sum(part.draw(self.draw, 1)[0] for part in self.cluster.restart)))
        self.failures += 1
        self._lose(worker, again)
        self.dies[worker] = self.now + restart + self._lives(1)[0]
        self._at(self.now + restart, "back", worker)
        if self.cluster.flink:
            for other in list(self.in_work):
                self._lose(other, again)
                self._at(self.now + again, "back", other)

    def outcome(self) -> Outcome:
        """Works until no shard is left, or it takes too long."""
        ideal = self.cluster.images * self.cluster.seconds_per_image / float((1 / self.slowness).sum())
        while self.left:
            self._hand_out()
            self.now, number, kind, what = heapq.heappop(self.events)
            if self.now > NEVER * ideal:
                self.wall = np.inf
                break
            if kind == "again":
                self.waiting.appendleft(what)
            elif kind == "back":
                self.idle.append(what)
            elif what in self.in_work and self.in_work[what][2] == number:  # not lost by another's failure
                if kind == "dies":
                    self._die(what)
                else:
                    del self.in_work[what]
                    self.left, self.wall = self.left - 1, self.now
                    self.idle.append(what)
        overhead = self.attempts * self.cluster.shard_seconds
        tail = max(0.0, self.wall - self.tail_begins) if np.isfinite(self.tail_begins) else 0.0
        return Outcome(
            self.wall, ideal, self.wasted, overhead, tail, self.largest_loss, self.failures, len(self.work)
        )  # fmt: skip


def simulate(cluster: Cluster, shard_images: int, seed: int = 0) -> Outcome:
    """One run with shards of so many images."""
    return Run(cluster, shard_images, seed).outcome()


def mean_outcome(cluster: Cluster, shard_images: int, seeds: int) -> dict[str, float]:
    """Each field of `Outcome`, mean over seeds 0, 1, ..."""
    runs = [simulate(cluster, shard_images, seed) for seed in range(seeds)]
    return {name: float(np.mean([getattr(run, name) for run in runs])) for name in Outcome.__dataclass_fields__}


def share(value: float) -> str:
    if not np.isfinite(value):
        return "never ends"
    return f"{100 * value:.1f} %" if value < 10 else f"{value:,.0f} x"


def print_sizes(cluster: Cluster, machines: str, seeds: int) -> None:
    """One row for each shard size; the size that the plan's rule gives is among them."""
    ruled = shard_size_for(cluster.seconds_per_image)
    print(
        f"\n{cluster.images:,} images, {cluster.workers} workers, {cluster.seconds_per_image:g} s an image, {machines} "
        f"machines{' on Flink' if cluster.flink else ''}; mean of {seeds} runs\n"
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
                f"{mean['wall'] / HOUR:,.2f}" if np.isfinite(mean["wall"]) else "given up",
                share(mean["wall"] / mean["ideal"] - 1),
                share(mean["wasted"] / busy),
                share(mean["overhead"] / busy),
                f"{mean['tail'] / MINUTE:,.1f}" if np.isfinite(mean["wall"]) else "",
                f"{mean['largest_loss'] / MINUTE:,.1f}",
            )
        )
    header = (
        "images a shard", "minutes a shard", "shards", "hours", "over ideal", "wasted by failures", "cost of shards",
        "tail, minutes", "largest loss, minutes",
    )  # fmt: skip
    print(table(header, rows))


def print_range(clusters: list[Cluster], lives: dict[str, Lives], seeds: int) -> None:
    """The plan's rule beside the best of some sizes, over how machines fail, how many are slow, and the engine."""
    rows = []
    cases = [(False, name, slow) for name in lives for slow in (0.0, 0.02, 0.1)]
    cases += [(True, name, 0.02) for name in ("own", "preemptible")]
    for cluster, (flink, name, slow) in itertools.product(clusters, cases):
        case = replace(cluster, flink=flink, lives=lives[name], slow_share=slow)
        ruled = shard_size_for(case.seconds_per_image)
        over = {}
        for size in {*RANGE_SIZES, ruled}:
            mean = mean_outcome(case, size, seeds)
            over[size] = mean["wall"] / mean["ideal"] - 1
        best = min(over, key=lambda size: over[size])
        rows.append(
            (
                f"{case.workers} x {case.seconds_per_image:g} s", "Flink" if flink else "others", name,
                f"{100 * slow:g} %", f"{ruled:,}: {share(over[ruled])}", f"{best:,}: {share(over[best])}",
            )
        )  # fmt: skip
    header = ("workers", "engine", "machines", "slow ones", "the rule: over ideal", "best size: over ideal")
    print(f"\nThe rule over what is not known; slow machines take {clusters[0].slow_factor:g} times as long\n")
    print(table(header, rows))


def machine_lives(inputs: Inputs) -> dict[str, Lives]:
    return {"own": Exponential(OWN_MACHINE_HOURS * HOUR), "preemptible": inputs.lives, "hourly": Exponential(HOUR)}


def main() -> None:
    inputs, content = read_inputs()
    lives = machine_lives(inputs)
    measured = Cluster(
        image_spread=inputs.image_spread, restart=(inputs.made, Spread.of(IMAGE_SECONDS), inputs.start_up),
        again=inputs.again, pace=inputs.pace,
    )  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("images", "workers", "seconds_per_image", "shard_seconds", "slow_share", "slow_factor"):
        value = getattr(measured, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=None, help=f"default {value:g}")
    parser.add_argument("--machines", choices=tuple(lives), help="default: CPUs preemptible, GPUs own")
    parser.add_argument("--flink", action="store_true", help="a failure stops all workers")
    parser.add_argument("--range", action="store_true", help="the rule over all that is not known")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    asked = {name: getattr(arguments, name, None) for name in Cluster.__dataclass_fields__}
    given = {name: value for name, value in asked.items() if value is not None}
    print(f"The plan's rule: ten minutes of work by one timed image, at most {MAX_SHARD_IMAGES:,} images.\n")
    print(told(inputs, content))
    clusters = {"preemptible": measured, "own": replace(measured, workers=64, seconds_per_image=0.063)}
    if {"seconds_per_image", "workers"} & given.keys():
        clusters.pop("own")
    if arguments.range:
        print_range([replace(cluster, **given) for cluster in clusters.values()], lives, arguments.seeds)
        return
    for usual, cluster in clusters.items():
        machines = arguments.machines or usual
        print_sizes(replace(cluster, lives=lives[machines], **given), machines, arguments.seeds)


if __name__ == "__main__":
    main()
