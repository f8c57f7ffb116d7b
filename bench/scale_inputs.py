"""What the simulation bench/scale.py draws from: measured here, measured and published by others, or assumed.

bench/measured/scale.json holds the measurements, made by bench/scale_measure.py of commit 24243c50. `told` says which
input is which.
"""

from __future__ import annotations

import bisect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MEASURED = Path(__file__).parent / "measured" / "scale.json"
HOUR = 3600.0
# 16,384 GPUs in machines of 8: a failure every 1.8 hours (arXiv:2410.21680, projected from 11 months of two clusters).
# Another run on as many counted 419 unexpected interruptions in 54 days, one in 3.1 hours (arXiv:2407.21783, table 5).
OWN_MACHINE_HOURS = 1.8 * 16384 / 8


@dataclass(frozen=True)
class Spread:
    """A distribution as measured: a value between two quantiles is taken from the line between them.

    Attributes:
        quantiles: (Q,) float, ascending, equally far apart from 0 to 1.
    """

    quantiles: np.ndarray

    @classmethod
    def of(cls, values: Any) -> Spread:
        return cls(np.sort(np.asarray(values, np.float64)))

    def draw(self, draw: np.random.Generator, count: int) -> np.ndarray:
        """(count,) float64."""
        return np.interp(draw.random(count), np.linspace(0, 1, len(self.quantiles)), self.quantiles)

    def __str__(self) -> str:
        low, middle, high = np.quantile(self.quantiles, (0.0, 0.5, 1.0))
        return f"{low:.3g} to {high:.3g}, median {middle:.3g}"


@dataclass(frozen=True)
class Exponential:
    """Equally likely at any time."""

    mean: float

    def draw(self, draw: np.random.Generator, count: int) -> np.ndarray:
        """(count,) float64."""
        return draw.exponential(self.mean, count)


class Pace:
    """How fast a process is as time goes, replayed from a trace over and over; 1 second of work takes 1 on average.

    Args:
        seconds_per_image: (T,) float, of shards that one process did one after the other.
    """

    def __init__(self, seconds_per_image: Any, shard_images: int) -> None:
        took = np.asarray(seconds_per_image, np.float64) * shard_images
        self.relative = took / took.mean()
        self._time: list[float] = [0.0, *np.cumsum(took).tolist()]
        self._step = self._time[-1] / len(took)  # of work, between one time and the next

    @property
    def seconds(self) -> float:
        """Length of the trace."""
        return self._time[-1]

    def end(self, start: float, work: float) -> float:
        """When so many seconds of work end that begin at `start` (seconds on the trace; it begins anew at its end)."""
        time, step = self._time, self._step
        rounds, rest = divmod(start, time[-1])
        place = bisect.bisect_right(time, rest) - 1
        done = step * (place + (rest - time[place]) / (time[place + 1] - time[place])) + work
        more, left = divmod(done, time[-1])
        at = min(int(left / step), len(time) - 2)
        return (rounds + more) * time[-1] + time[at] + (left / step - at) * (time[at + 1] - time[at])


def steady() -> Pace:
    """The same at all times."""
    return Pace([1.0], 1)


@dataclass(frozen=True)
class Inputs:
    """All that is measured.

    Attributes:
        pace: of worker processes on a machine that does other work too.
        again: seconds from a kill until a lost shard is in work again, on Flink.
        lost_share: of the shards in work, on Flink, when one of the workers was killed.
        start_up: seconds from the start of a worker process, or of a command, until it has images in work.
        image_spread: standard deviation of the seconds of an image, as a share of their mean.
        shard_seconds: what a shard costs beside its images on a local disk.
        lives: hours that preemptible machines lived.
        made: seconds it took to make one.
    """

    pace: Pace
    again: Spread
    lost_share: float
    start_up: Spread
    image_spread: float
    shard_seconds: Spread
    lives: Spread
    made: Spread


def read_inputs(path: Path = MEASURED) -> tuple[Inputs, dict[str, Any]]:
    """The inputs, and the content of the file.

    Raises:
        ValueError: if a part is missing.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    missing = {"kills", "pace", "lifetimes", "photos"} - content.keys()
    if missing:
        raise ValueError(f"{path}: no part {sorted(missing)[0]!r}")
    kills, pace, lives, photos = (content[part] for part in ("kills", "pace", "lifetimes", "photos"))
    in_work = sum(kill["in_work"] for kill in kills["kills"])
    again = [seconds for kill in kills["kills"] for seconds in kill["begun_anew_after"]]
    rows = [row for process in pace["shards"].values() for row in process]
    inputs = Inputs(
        pace=Pace([seconds for _, seconds in rows], pace["shard_images"]),
        again=Spread.of(again),
        lost_share=len(again) / in_work,
        start_up=Spread.of([*kills["start_up_seconds"], *pace["start_seconds"]]),
        image_spread=photos["image_spread"],
        shard_seconds=Spread.of(photos["shard_seconds"]),
        lives=Spread.of(np.array(lives["hours"]) * HOUR),
        made=Spread.of(lives["made_in_seconds"]),
    )
    return inputs, content


def told(inputs: Inputs, content: dict[str, Any]) -> str:
    """Where each input comes from, in lines."""
    kills, pace, lives = content["kills"], content["pace"], content["lifetimes"]
    slow = np.quantile(inputs.pace.relative, (0.05, 0.5, 0.95, 1))
    lived = np.quantile(inputs.lives.quantiles, (0, 0.125, 0.25, 0.5, 1)) / HOUR
    return "\n".join(
        [
            f"measured here ({MEASURED.name}; {kills['cores']} cores of {kills['processor']} beside other work):",
            f"  pace of a process: {len(inputs.pace.relative)} shards in {pace['minutes']:g} minutes took "
            f"{slow[0]:.2f} (5 %), {slow[1]:.2f}, {slow[2]:.2f} (95 %), at most {slow[3]:.2f} of their mean",
            f"  a shard whose worker was killed on Flink begins anew after {inputs.again} s "
            f"({len(kills['kills'])} kills);",
            f"  so did {100 * inputs.lost_share:.0f} % of all shards in work then, of both workers",
            f"  a worker process or command that was started has images in work after {inputs.start_up} s",
            f"  seconds of an image: standard deviation {inputs.image_spread:.3f} of the mean (pixels of COCO photos)",
            f"  a shard costs {inputs.shard_seconds} s beside its images on a local disk",
            "measured by others, and published:",
            f"  preemptible machines: {lives['machines']:,} lived {lived[0]:.2f} to {lived[4]:.1f} hours, "
            f"an eighth less than {lived[1]:.1f}, a quarter less than {lived[2]:.1f}, half less than {lived[3]:.1f};",
            f"  each was made in {inputs.made} s ({lives['source']})",
            f"  own machines: a failure in {OWN_MACHINE_HOURS:,.0f} hours of a machine (arXiv:2410.21680, 2407.21783)",
            "assumed:",
            "  how many machines are slow for good, and how slow; the seconds until a new machine has the image;",
            "  10 requests of 100 ms for each shard in a bucket; machines that fail hourly, to be on the safe side",
        ]
    )
