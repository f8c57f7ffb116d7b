"""Which checkpoints of a run stay: the newest, and the one whose evaluation was best."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from roibeam.pipelines.training.checkpoint import checkpoint_folder
from roibeam.pipelines.training.train_config import TrainConfig

_REMOVING = ".removing-"


def best_evaluation(
    run_dir: Path, evaluations: Iterable[Mapping[str, Any]], config: TrainConfig
) -> Mapping[str, Any] | None:
    """The line of evaluation.jsonl that is best by `config.best_by`, of those that have a checkpoint; of equal ones the
    first. None without `best_by`, and where there is no such line.
    """
    judged = [
        line
        for line in evaluations
        if line.get(config.best_by) is not None and checkpoint_folder(run_dir, line["step"]).exists()
    ]
    choose = max if config.best_is == "highest" else min
    return choose(judged, key=lambda line: line[config.best_by]) if config.best_by and judged else None


def beats(value: float | None, best: Mapping[str, Any] | None, config: TrainConfig) -> bool:
    """Whether a new evaluation's number is better than that of the line `best`; None and NaN never are."""
    if value is None or not math.isfinite(value):
        return False
    if best is None:
        return True
    return bool(value > best[config.best_by] if config.best_is == "highest" else value < best[config.best_by])


def remove_old_checkpoints(run_dir: Path, keep: int, best_step: int | None) -> None:
    """Removes all but the `keep` newest (0 = all stay) and that of `best_step`, and what a killed run left half done.

    A folder gets another name first: one called step-* is complete at any time.
    """
    parent = run_dir / "checkpoints"
    old = sorted(parent.glob("step-*"))[:-keep] if keep else []
    best = None if best_step is None else checkpoint_folder(run_dir, best_step)
    for folder in old:
        if folder != best:
            folder.rename(parent / f"{_REMOVING}{folder.name}")
    for leftover in parent.glob(".*-step-*"):
        shutil.rmtree(leftover)
