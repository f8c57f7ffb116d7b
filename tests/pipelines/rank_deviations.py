"""How far training on several processes is from training on one: every objective, the same global batch, no dropout.

    PYTHONPATH=. python tests/pipelines/rank_deviations.py [--steps 50]

Prints the largest relative difference of any number of any step's line in the log; exit code 1 above a bound.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectives import OBJECTIVES
from ranks import run_ranks, said
from small_pretraining import SAMPLES, Training, settings

BOUNDS = {"float64": 1e-10, "float32": 1e-5}
Log = list[dict[str, Any]]


@dataclass(frozen=True)
class InTurn:
    """Some runs, one after the other in the same processes."""

    runs: Sequence[Callable[[], object]]

    def __call__(self) -> None:
        for run in self.runs:
            run()


def trained_on(
    num_ranks: int, objectives: Sequence[str], folder: Path, *, steps: int, double: bool, **task: Any
) -> dict[str, Log]:
    """The log of a run of each objective."""
    runs = [
        Training(
            folder / name,
            settings(steps=steps, checkpoint_every=0),
            SAMPLES * OBJECTIVES[name].group // num_ranks,
            {"objective": name, "double": double, **task},
        )
        for name in objectives
    ]
    logs = folder / "said"
    codes = run_ranks(InTurn(runs), num_ranks, logs, seconds=900)
    assert codes == [0] * num_ranks, said(logs)[-3000:]
    return {name: log_in(folder / name) for name in objectives}


def log_in(folder: Path) -> Log:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def largest_difference(left: Log, right: Log) -> float:
    """Of any number of any step, relative; what is null in one must be in the other."""
    largest = 0.0
    for ours, theirs in zip(left, right, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds"}:
            assert (ours[name] is None) == (theirs[name] is None), name
            if ours[name]:
                largest = max(largest, abs(ours[name] - theirs[name]) / abs(ours[name]))
    return largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args().steps
    worst: dict[tuple[str, int], dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in BOUNDS:
            logs = {
                ranks: trained_on(
                    ranks, list(OBJECTIVES), Path(folder) / f"{kind}-{ranks}", steps=steps, double=kind == "float64"
                )
                for ranks in (1, 2, 4)
            }
            for ranks in (2, 4):
                worst[kind, ranks] = {name: largest_difference(logs[1][name], logs[ranks][name]) for name in OBJECTIVES}
    print(f"| {steps} steps | " + " | ".join(f"{kind}, {ranks} processes" for kind, ranks in worst) + " |")
    print("|---" * (len(worst) + 1) + "|")
    for name in OBJECTIVES:
        print(f"| `{name}` | " + " | ".join(f"{column[name]:.1e}" for column in worst.values()) + " |")
    return int(any(max(column.values()) >= BOUNDS[kind] for (kind, _), column in worst.items()))


if __name__ == "__main__":
    raise SystemExit(main())
