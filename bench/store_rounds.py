"""What the store benchmarks share: the harness they are handed, arms that take turns, and ratios with an interval.

Machines drift, threefold inside one process was seen. So no two arms are compared by figures of different minutes: in
every round each arm runs once, in an order that moves on by one each round, and a ratio is taken inside its round. What
is printed is the median of these ratios and an interval: 95 % of the medians of resampled rounds. A bar is met when the
interval reaches it, unless the interval is so wide that this says nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MIN_ROUNDS = 5
MAX_SPREAD = 1.5  # of an interval; a wider one would reach nearly every bar


def load_harness(path: Path) -> Any:
    """The module `bench_store.py`, whose docstring says how a store is plugged in; it is never committed here.

    Raises:
        FileNotFoundError: when it is not there.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the harness bench_store.py is not there; name it as the first argument")
    spec = importlib.util.spec_from_file_location("bench_store", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_store"] = module
    spec.loader.exec_module(module)
    return module


def take_turns(arms: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Runs every arm once to warm up, then `rounds` times in turn.

    Args:
        arms: name -> what measures once and returns a figure (seconds, a rate, bytes).
    Returns:
        name -> `rounds` figures; figure i of all arms belongs together.
    """
    names = list(arms)
    for name in names:
        arms[name]()
    figures: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            figures[name].append(arms[name]())
    return figures


class Ratio:
    """Figures of one arm over those of another, round by round.

    Attributes:
        median: of the rounds' ratios.
        low, high: 95 % of the medians of 2,000 resamples of the rounds.
    """

    def __init__(self, over: list[float], under: list[float]) -> None:
        ratios = np.array(over) / np.array(under)
        resampled = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
        self.median = float(np.median(ratios))
        self.low, self.high = (float(value) for value in np.quantile(np.median(resampled, axis=1), (0.025, 0.975)))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}..{self.high:.2f}]"

    def at_least(self, bar: float) -> str:
        """How a bar is met that the ratio should reach."""
        return self._verdict(self.median >= bar, self.high >= bar)

    def at_most(self, bar: float) -> str:
        """How a bar is met that the ratio should not pass."""
        return self._verdict(self.median <= bar, self.low <= bar)

    def _verdict(self, by_median: bool, by_interval: bool) -> str:
        if self.high > MAX_SPREAD * self.low:
            return "too noisy to say: measure on a quiet machine"
        if by_median:
            return "met"
        return "met by its interval" if by_interval else "missed"


def status_mb(field: str) -> float:
    """A field of this process's /proc/self/status that counts memory, in MB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}; these measurements need Linux")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
