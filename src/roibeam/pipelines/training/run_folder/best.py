"""Which evaluation of a run is the best by `train.best_by`, and its checkpoint. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from roibeam.pipelines.common.files.json_files import read_json_object
from roibeam.pipelines.training.run_folder.checkpoint_sums import check_run_config
from roibeam.pipelines.training.run_folder.files import CHECKPOINTS, checkpoint_folder, latest_checkpoint
from roibeam.pipelines.training.run_folder.stages import furthest_stage
from roibeam.pipelines.training.run_folder.train_log import read_evaluations
from roibeam.pipelines.training.train_config import TrainConfig

BEST = "best"  # in place of a step: RUN/checkpoints/best


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
    choose = max if config.highest_is_best else min
    return choose(judged, key=lambda line: line[config.best_by]) if config.best_by and judged else None


def beats(value: float | None, best: Mapping[str, Any] | None, config: TrainConfig) -> bool:
    """Whether a new evaluation's number is better than that of the line `best`; None and NaN never are."""
    if value is None or not math.isfinite(value):
        return False
    if best is None:
        return True
    return bool(value > best[config.best_by] if config.highest_is_best else value < best[config.best_by])


def is_out_of_patience(evaluations: Iterable[Mapping[str, Any]], config: TrainConfig) -> bool:
    """Whether the last `config.patience` evaluations of these lines are no better than the best before them.

    That before the first step does not count: it judges no checkpoint. Numbers that are missing are no better.
    """
    best: Mapping[str, Any] | None = None
    worse = 0
    for line in evaluations:
        if line["step"] and beats(line.get(config.best_by), best, config):
            best, worse = line, 0
        elif line["step"]:
            worse += 1
    return 0 < config.patience <= worse


def best_checkpoint(run_dir: Path) -> Path:
    """The best checkpoint of a run, of its last stage that has one.

    Raises:
        ValueError: for a run that tells none apart.
    """
    run_dir = furthest_stage(run_dir)
    config = _judged_by(run_dir)
    found = best_evaluation(run_dir, read_evaluations(run_dir), config)
    if found is None:
        names = ", ".join(sorted(each.name for each in (run_dir / CHECKPOINTS).glob("step-*"))) or "none"
        why = f"has no evaluation by {config.best_by}" if config.best_by else "was trained without train.best_by"
        raise ValueError(f"{run_dir / CHECKPOINTS / BEST}: the run {why}; name one of its checkpoints: {names}")
    return checkpoint_folder(run_dir, found["step"])


def asked_checkpoint(run_dir: Path) -> tuple[Path, str]:
    """The best checkpoint of a run that was judged by `train.best_by`, and a line that says so; of any other run, and
    of what is none, the folder itself and "".
    """
    newest = latest_checkpoint(run_dir)
    config = _judged_by(run_dir)
    found = best_evaluation(run_dir, read_evaluations(run_dir), config)
    if newest is None or found is None:
        return run_dir, ""
    best = checkpoint_folder(run_dir, found["step"])
    line = f"{run_dir}: asks step {found['step']:,}, the best by {config.best_by}"
    return best, line if best == newest else f"{line}; {newest} is the newest"


def _judged_by(run_dir: Path) -> TrainConfig:
    """What a run's configuration says of `best_by`, all else being anything."""
    path = run_dir / "config.json"
    check_run_config(run_dir)
    train = read_json_object(path).get("train", {}) if path.is_file() else {}
    settings = {name: train[name] for name in ("best_by", "best_is") if name in train}
    return TrainConfig(steps=1, evaluate_every=1, **settings)


def named_checkpoint(name: str) -> str:
    """What a user names, with the step in place of the end of RUN/checkpoints/best. ValueError as `best_checkpoint`."""
    path = Path(name).expanduser()
    is_best = path.name == BEST and path.parent.name == CHECKPOINTS and not path.exists()
    return str(best_checkpoint(path.parent.parent)) if is_best else name
