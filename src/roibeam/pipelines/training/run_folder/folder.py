"""Run folder and configuration: checks to start or resume there, and its best checkpoint.

The best is by `train.best_by`. Settings that change no number of the training may change on resume. No torch.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roibeam.features.folders.folder_protocol import LOCK_NAME, store_lock
from roibeam.pipelines.common.compute import is_main_process
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.training.run_folder.files import (
    CHECKPOINTS,
    STAGES_NAME,
    SUMS_NAME,
    WRITING,
    check_run_config,
    checkpoint_folder,
    latest_checkpoint,
    other_checkpoints,
)
from roibeam.pipelines.training.run_folder.run_summary import DETECTOR_NAME, ENCODER_NAME
from roibeam.pipelines.training.run_folder.stages import furthest_stage
from roibeam.pipelines.training.run_folder.train_log import LOG_NAME, read_evaluations
from roibeam.pipelines.training.train_config import BY_NAME, DRY_RUN, Resume, TrainConfig, idle_fields

_FREE = ("checkpoint_every", "keep", "evaluate_every", "best_by", "best_is", "patience", "tensorboard")
_SAME_NUMBERS = ("activation_checkpointing",)
_GONE = ("log_every",)  # that configurations of older runs hold
FREE_ON_RESUME = frozenset(f"train.{name}" for name in (*_FREE, *_SAME_NUMBERS, *_GONE)) | {"task.data.workers"}


def is_free_on_resume(setting: str) -> bool:
    """Whether "section.field" of a command line changes no number, so that a resumed run may have another value."""
    return setting in FREE_ON_RESUME or f"task.{setting}" in FREE_ON_RESUME


BEST_NAME = "best"  # in place of a step: RUN/checkpoints/best


def best_evaluation(
    run_dir: Path, evaluations: Iterable[Mapping[str, Any]], config: TrainConfig
) -> Mapping[str, Any] | None:
    """The line of evaluation.jsonl that is best by `config.best_by`, among those with a checkpoint; the first of equal
    ones. None without `best_by`, or without such a line."""
    known = (line for line in evaluations if line.get(config.best_by) is not None)
    judged = [line for line in known if checkpoint_folder(run_dir, line["step"]).exists()]
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

    The evaluation before the first step does not count: it has no checkpoint. Missing numbers are no better.
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
    """The best checkpoint of a run with `train.best_by`, of its last stage that has one."""
    run_dir = furthest_stage(run_dir)
    found, config = _best(run_dir)
    if found is None:
        names = ", ".join(sorted(each.name for each in (run_dir / CHECKPOINTS).glob("step-*"))) or "none"
        why = f"has no evaluation by {config.best_by}" if config.best_by else "was trained without train.best_by"
        raise ValueError(f"{run_dir / CHECKPOINTS / BEST_NAME}: the run {why}; name one of its checkpoints: {names}")
    return checkpoint_folder(run_dir, found["step"])


def best_checkpoint_or_folder(run_dir: Path) -> tuple[Path, str]:
    """The best checkpoint of a run with `train.best_by`, and a line that names it; for any other folder, the folder
    itself and ""."""
    newest, (found, config) = latest_checkpoint(run_dir), _best(run_dir)
    if newest is None or found is None:
        return run_dir, ""
    best = checkpoint_folder(run_dir, found["step"])
    line = f"{run_dir}: takes step {found['step']:,}, the best by {config.best_by}"
    return best, line if best == newest else f"{line}; {newest} is the newest"


@cache
def note_best_detector(folder: str) -> None:
    """Logs which checkpoint stands for a run of `detector train`, the newest, where another was evaluated as better;
    nothing for any other folder or name."""
    run = Path(folder).expanduser()
    if not (run / CHECKPOINTS).is_dir():
        return
    (best, line), newest = best_checkpoint_or_folder(run), latest_checkpoint(run)
    if line and newest is not None and best != newest:
        logger.info("%s: takes %s, the newest; %s is the best by its evaluations, to be named itself", run, newest.name,
                    best / "model")  # fmt: skip


def _best(run_dir: Path) -> tuple[Mapping[str, Any] | None, TrainConfig]:
    """A run's best evaluation, and the configuration with its `best_by`; all other settings are arbitrary."""
    path = run_dir / "config.json"
    check_run_config(run_dir)
    train = read_json_object(path).get("train", {}) if path.is_file() else {}
    settings = {name: train[name] for name in ("best_by", "best_is") if name in train}
    config = TrainConfig(steps=1, evaluate_every=1, **settings)
    return best_evaluation(run_dir, read_evaluations(run_dir), config), config


def named_checkpoint(name: str) -> str:
    """A user's path, with the step in place of the end of RUN/checkpoints/best. ValueError as `best_checkpoint`."""
    path = Path(name).expanduser()
    is_best = path.name == BEST_NAME and path.parent.name == CHECKPOINTS and not path.exists()
    return str(best_checkpoint(path.parent.parent)) if is_best else name


logger = logging.getLogger(__name__)

CONFIG_NAME = "config.json"
BATCH_PAGE = "batch.html"
# Files that a run that failed early may leave.
_WRITTEN_FIRST = frozenset(
    {
        "tokenizer", "trained_images.npy", "own_images.npy", "hard_negatives.npz", BATCH_PAGE, DETECTOR_NAME,
        ENCODER_NAME, LOCK_NAME, SUMS_NAME, f".{STAGES_NAME}.writing",
    }
)  # fmt: skip
# Length and falls of the rate may be chosen while a run is on its way, and a warm-up may follow from the length.
_SCHEDULE = frozenset({"train.steps", "train.decay_steps", "train.warmup_steps"})
# Settings that share out a batch: the position in the data is a number of samples, for any shares of a step.
_BATCH = ("train.accumulation", ".batch_size", ".max_tokens")
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b")
# Number of changed settings named in the refusal.
_NAMED = 6


def check_run_folder(run_dir: Path, *, resume: Resume) -> None:
    """Raises ValueError if `run_dir` is a file, holds other things, a run that is not to be resumed, or one that is
    being trained; and for a pipe or a device in it, which would block."""
    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"{run_dir} is a file; give a folder for the run")
    for path in run_dir.iterdir() if run_dir.is_dir() else ():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path}: is not a regular file; take it away, or choose another folder")
    if run_dir.is_dir() and not (run_dir / CONFIG_NAME).exists():
        names = (path.name for path in run_dir.iterdir() if not path.name.startswith((WRITING, f".{SUMS_NAME}.")))
        others = sorted(name for name in names if name not in _WRITTEN_FIRST)
        if others:
            raise ValueError(f"{run_dir} is not empty and no run of ours ({others[0]!r} is in it); choose a new folder")
    if (run_dir / "manifest.json").exists():
        raise ValueError(f"{run_dir} is a feature store; choose another folder for the run")
    if (not resume or resume == DRY_RUN) and ((run_dir / LOG_NAME).exists() or latest_checkpoint(run_dir) is not None):
        raise ValueError(f"{run_dir} already holds a run; resume it, or choose another folder")
    checkpoint_to_resume(run_dir, resume)
    if is_main_process() and (run_dir / LOCK_NAME).exists():
        with run_folder_lock(run_dir):  # a killed run left a lock that no process holds
            pass


def checkpoint_to_resume(run_dir: Path, resume: Resume) -> Path | None:
    """The checkpoint that `resume` names, else the newest, or None."""
    if not isinstance(resume, str) or resume in ("auto", DRY_RUN):
        return latest_checkpoint(run_dir)
    if resume == BEST_NAME:
        return best_checkpoint(run_dir)
    there = {path.name: path for path in sorted((run_dir / CHECKPOINTS).glob("step-*"))}
    number = re.fullmatch(r"(?:step-)?(\d{1,18})", resume)
    found = there.get(f"step-{int(number[1]):08d}") if number else None
    if found is None:
        names = ", ".join(there) or "none"
        raise ValueError(f"--resume-from {resume}: {run_dir} has no such checkpoint; it has {names}")
    return found


@contextmanager
def run_folder_lock(run_dir: Path) -> Iterator[None]:
    """Lock of the main process while a training writes to the folder. A new folder is removed if it stays empty."""
    if not is_main_process():
        yield
        return
    is_new = not run_dir.exists()
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        with store_lock(run_dir, held="another training is writing this folder"):
            yield
    finally:
        if is_new and run_dir.is_dir() and not any(run_dir.iterdir()):
            run_dir.rmdir()


def defaults_of(config: object) -> dict[str, Any]:
    """The fields of a dataclass, or of its instance, that have a default, with values as in a configuration file."""
    found = {
        each.name: each.default
        for each in dataclasses.fields(config)  # type: ignore[arg-type]
        if each.default is not dataclasses.MISSING
    }
    return {name: list(default) if isinstance(default, tuple) else default for name, default in found.items()}


def with_saved(section: Any, saved: Mapping[str, Any]) -> Any:
    """A section of settings with the values of a configuration file; missing ones had their default then, which
    stays."""
    values = {**defaults_of(section), **saved}
    return dataclasses.replace(
        section, **{name: tuple(each) if isinstance(each, list) else each for name, each in values.items()}
    )


def _filled(saved: Mapping[str, Any], defaults: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The saved settings, with the defaults of newer ones."""
    filled = {name: defaults[name] for name in defaults.keys() & now.keys()} | dict(saved)
    for name in defaults.keys() & saved.keys() & now.keys():
        if isinstance(defaults[name], Mapping) and isinstance(saved[name], Mapping) and isinstance(now[name], Mapping):
            filled[name] = _filled(saved[name], defaults[name], now[name])
    return filled


def _short(value: object) -> str:
    """A setting's value for a message of one line. Long values, paths above all, often differ at their end."""
    text = _DIGEST.sub(r"\1", repr(value))
    return text if len(text) <= 80 else f"{text[:30]} ... {text[-45:]}"


def check_same_run(
    folder: Path,
    now: Mapping[str, Any],
    defaults: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    *,
    goes_on: bool = True,
) -> None:
    """Checks that the run whose configuration `folder` holds may resume as `now`.

    Another number of processes, micro-batches or samples in one, or budget of each, may share out the same global
    batch, or make another one, which is logged.

    Args:
        defaults: by section of the task's configuration: values of settings in runs from before they existed. A
            section may have sections.
        goes_on: whether a step is left. Without one, allowed differences are not logged: they have no effect.
    """
    saved = saved_config(folder)
    read_already = {"average_start": now["train"].get("average_start")}  # by `with_recorded_rules`, where it is missing
    saved["train"] = defaults_of(TrainConfig) | read_already | saved["train"]
    for section in defaults.keys() & saved["task"].keys():
        saved["task"][section] = _filled(saved["task"][section], defaults[section], now["task"][section])
    # A run may have a recorded value that nothing reads, and that a command line now refuses.
    idle = {f"train.{name}" for name in idle_fields(saved["train"]).keys() & idle_fields(now["train"]).keys()}
    before, after = _flatten(saved), _flatten(now)
    changed = {
        name: f"{name}: {_short(before.get(name))} -> {_short(after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
        and name not in FREE_ON_RESUME | idle
        and not name.startswith("recorded.")
        and not name.endswith(_BATCH)
    }
    another_batch = changed.pop("global_batch", None)
    refused = changed.keys() - _SCHEDULE
    if refused:
        # The outermost first: differences inside a part often follow from it.
        named = [changed[name] for name in sorted(refused, key=lambda name: (name.count("."), name))]
        rest = [f"and {len(named) - _NAMED} more"] if len(named) > _NAMED else []
        fits = all(name.startswith("train.") for name in refused)
        option = "finetune --from" if saved["task"].get("kind") == "finetuning" else "pretrain --from-run"
        begin = f"; {option} {folder} begins it with these weights" if fits else ""
        raise ValueError(
            f"{folder} belongs to another configuration ({'; '.join(named[:_NAMED] + rest)}); start a new run folder"
            f"{begin}"
        )
    if changed and goes_on:
        bends = "; ".join(changed.values())
        logger.warning("resuming with another schedule (%s): the learning rate bends here", bends)
    if another_batch is not None and goes_on:
        logger.warning("resuming with another %s; the learning rate is not scaled", another_batch)


def with_recorded_rules(folder: Path, config: TrainConfig) -> TrainConfig:
    """The settings of a resumed older run, with the rules that it, or its checkpoint, was started with.

    Before `average_start` existed, averages were from the initial weights on, and a warm-up was whole steps. A recorded
    `best_is` stays by default: it was "highest" for losses too.
    """
    saved = saved_config(folder)["train"]
    from_initial = saved.get("average_start", "initial") == "initial"
    if config.average_rate and from_initial and config.average_start != "initial":
        logger.warning("%s: its average goes on from the initial weights, as it began (train.average_start)", folder)
        config = dataclasses.replace(config, average_start="initial")
    if saved.get("warmup_steps") == round(config.warmup_steps):
        config = dataclasses.replace(config, warmup_steps=saved["warmup_steps"])
    is_judged_alike = bool(config.best_by) and saved.get("best_by") == config.best_by
    if is_judged_alike and config.best_is == BY_NAME and saved.get("best_is", BY_NAME) != BY_NAME:
        kept = dataclasses.replace(config, best_is=saved["best_is"])
        if kept.highest_is_best != config.highest_is_best:
            logger.warning(
                "%s: the %s %s stays the best, as the run began; --set train.best_is=%s changes that",
                folder, kept.best_is, kept.best_by, "highest" if config.highest_is_best else "lowest",
            )  # fmt: skip
        config = kept
    return config


def recorded_steps(folder: Path) -> int | None:
    """The recorded steps of the run in the folder, for a command without `--steps`. None without a run."""
    if not (folder / CONFIG_NAME).is_file():
        return None
    steps = saved_config(folder)["train"].get("steps")
    return steps if isinstance(steps, int) else None


def saved_config(folder: Path) -> dict[str, Any]:
    """The configuration that a run's folder, or one of its checkpoints, holds; ValueError if it is damaged."""
    check_run_config(folder)
    try:
        saved = read_json_object(folder / CONFIG_NAME)
        if not all(isinstance(saved.get(name), dict) for name in ("train", "task", "recorded")):
            raise ValueError(f"{folder / CONFIG_NAME}: is no configuration of a run")
    except ValueError as error:
        newest = latest_checkpoint(folder)
        if folder.parent.name == CHECKPOINTS and folder.name.startswith("step-"):
            remedy = f"the checkpoint is damaged: {other_checkpoints(folder)}"
        elif newest is not None:
            remedy = f"put that of {newest} in its place"
        else:
            remedy = f"the run has no checkpoint to go on from: remove {folder} and start it again"
        raise ValueError(f"{error}; {remedy}") from None
    return saved


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
