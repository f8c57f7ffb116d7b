"""Checkpoints of a training run: safetensors and JSON, written aside and renamed, so that a folder there is complete.

checkpoints/step-00000100/     config.json, state.json, optimizer.safetensors, rng-0.safetensors (one per process),
                               model/config.json, model/model.safetensors: what to use;
                               trained.safetensors: with an average, which `model` then holds, the weights it is of;
                               SHA256SUMS: of all these files, compared before a run goes on from them

The newest stay, and the one whose evaluation was best.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

from roibeam.messages import first_line
from roibeam.model.common.exponential_average import FIRST_UPDATE, ExponentialAverage
from roibeam.pipelines.common.compute import OF_THIS_PROCESS
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.training.run_folder.files import (
    CHECKPOINTS,
    checkpoint_folder,
    checkpoint_step,
    other_checkpoints,
    sync_to_disk,
    write_json,
    write_sums,
)
from roibeam.pipelines.training.train_config import TrainConfig

logger = logging.getLogger(__name__)

_TRAINED = "trained.safetensors"
_REMOVING = ".removing-"


@dataclass(frozen=True)
class Position:
    """Position in a run: optimizer steps done, and the number of the first sample not yet used."""

    step: int = 0
    next_sample: int = 0


@dataclass(frozen=True, eq=False)
class TrainingState:
    """State of a run that changes from step to step: the unwrapped model, the average of its weights, if any, and the
    scaler of an fp16 loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: ExponentialAverage | None = None
    scaler: torch.amp.GradScaler | None = None

    def model_to_use(self) -> AbstractContextManager[None]:
        """Context in which the model has the weights to evaluate and to use: the average, if there is one."""
        return nullcontext() if self.average is None else self.average.applied(self.model)


def save_checkpoint(
    run_dir: Path,
    state: TrainingState,
    model_config: Mapping[str, Any],
    position: Position,
    resolved: Mapping[str, Any],
    accelerator: Accelerator,
) -> Path:
    """Writes aside, syncs to disk, renames: a folder called step-* is complete. safetensors and JSON only.

    An OSError, as on a full disk, names the folder; the partial folder is removed.
    """
    final = checkpoint_folder(run_dir, position.step)
    aside = final.with_name(f".writing-{final.name}")
    try:
        _write(aside, final, state, model_config, position, resolved, accelerator)
    except (SafetensorError, OSError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise _cannot_write(final, error) from None
    return final


def _cannot_write(final: Path, error: Exception) -> OSError:
    """An error of writing with the number that its text contains: safetensors passes on the text alone."""
    match = re.search(r"os error (\d+)", str(error))
    number = error.errno if isinstance(error, OSError) else int(match[1]) if match else None
    if number is None:
        return OSError(f"cannot write the checkpoint {final}: {error}")
    return OSError(number, f"{os.strerror(number)}: cannot write the checkpoint", str(final))


def _write(
    aside: Path,
    final: Path,
    state: TrainingState,
    model_config: Mapping[str, Any],
    position: Position,
    resolved: Mapping[str, Any],
    accelerator: Accelerator,
) -> None:
    if accelerator.is_main_process:
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "model").mkdir(parents=True)
    accelerator.wait_for_everyone()
    random_state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random_state["cuda"] = torch.cuda.get_rng_state()
    save_file(random_state, aside / f"rng-{accelerator.process_index}.safetensors")
    if accelerator.is_main_process:
        with state.model_to_use():
            save_model(state.model, str(aside / "model" / "model.safetensors"), metadata={"format": "pt"})
        write_json(aside / "model" / "config.json", model_config)
        if state.average is not None:
            save_model(state.model, str(aside / _TRAINED), metadata={"format": "pt"})
        # By "parameter name/field", so that the file does not depend on the order of parameters.
        names, fields = _optimizer_names(state.model, state.optimizer), state.optimizer.state_dict()["state"]
        tensors = {f"{names[at]}/{field}": each.contiguous() for at, of in fields.items() for field, each in of.items()}
        save_file(tensors, aside / "optimizer.safetensors")
        write_json(aside / "config.json", resolved)
        write_json(aside / "state.json", {"format": 1, **dataclasses.asdict(position), **_described(state)})
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        write_sums(aside)
        put_in_place(aside, final)
    accelerator.wait_for_everyone()


def _described(state: TrainingState) -> dict[str, Any]:
    average, scaler = state.average, state.scaler
    facts = {"loss_scale": None if scaler is None else scaler.state_dict()}
    if average is None:
        return {"model": "as trained", **facts}
    from_words = "the first update on" if average.start == FIRST_UPDATE else "the initial weights on"
    words = f"exponential average of the weights, rate {average.rate}, from {from_words}"
    return {"model": words, "averaged_updates": average.updates, **facts}


def put_in_place(aside: Path, final: Path) -> None:
    """Makes a folder durable, then renames it; an existing one is replaced."""
    for path in sorted(aside.rglob("*"), reverse=True):
        sync_to_disk(path)
    sync_to_disk(aside)
    if final.exists():  # a run that resumed from an older checkpoint gets here again
        replaced = final.with_name(f".replaced-{final.name}")
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
        aside.rename(final)
        shutil.rmtree(replaced)
    else:
        aside.rename(final)
    sync_to_disk(final.parent)


def load_checkpoint(folder: Path, state: TrainingState, *, rank: int) -> Position:
    """Restores `state` and the random state of process `rank`; returns the run's position. Files are not compared with
    their sums here, see `check_sums`."""
    try:
        return _load(folder, state, rank)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = first_line(error)
        raise ValueError(
            f"checkpoint {folder} is damaged or incomplete ({reason}); {other_checkpoints(folder)}"
        ) from None


def _load(folder: Path, state: TrainingState, rank: int) -> Position:
    written = read_json_object(folder / "state.json")
    if written["format"] != 1:
        raise ValueError(f"{folder}/state.json was written by another version of roibeam")
    load_model(state.model, folder / "model" / "model.safetensors")
    if state.average is not None:
        # Older averages, without a count, are from the initial weights on, see `with_recorded_rules`: they need none.
        updates = written["averaged_updates"] if state.average.start == FIRST_UPDATE else 0
        state.average.load_state_dict(state.model.state_dict(), updates=updates)
        load_model(state.model, folder / _TRAINED)
    if state.scaler is not None:
        state.scaler.load_state_dict(written["loss_scale"])
    names = _optimizer_names(state.model, state.optimizer)
    saved: dict[int, dict[str, Tensor]] = {}
    for key, tensor in load_file(folder / "optimizer.safetensors").items():
        name, _, field = key.rpartition("/")
        saved.setdefault(names.index(name), {})[field] = tensor
    state.optimizer.load_state_dict({"state": saved, "param_groups": state.optimizer.state_dict()["param_groups"]})
    own = folder / f"rng-{rank}.safetensors"
    if own.exists():
        _restore_random_state(load_file(own))
    else:
        words = "%s has no random state for process %d: its dropout starts afresh"
        logger.warning(words, folder, rank, extra=OF_THIS_PROCESS)
    return Position(**{field.name: int(written[field.name]) for field in dataclasses.fields(Position)})


def _optimizer_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Parameter names in the optimizer's own numbering."""
    by_identity = {id(parameter): name for name, parameter in model.named_parameters()}
    return [by_identity[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def _restore_random_state(state: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def way_back(run_dir: Path | None, step: int, config: TrainConfig) -> str:
    """Advice if the weights before `step` are spoiled; "" for the first step, which has the initial weights.

    A checkpoint of the step right before holds the same weights. After an earlier one a step was finite.
    """
    if step == 1:
        return ""
    there = [] if run_dir is None else sorted((run_dir / CHECKPOINTS).glob("step-*"))
    sound = [folder for folder in there if checkpoint_step(folder) < step - 1]
    start = f"; {sound[-1]} is the newest checkpoint to start it from" if sound else ""
    return (
        f"most likely the learning rate of {config.learning_rate:g} is too high: begin a new run with a lower one, or "
        f"with more warm-up{start}"
    )


def set_later_aside(run_dir: Path, step: int) -> None:
    """Renames checkpoints after `step`, where the run resumes, so that `remove_old_checkpoints` removes them."""
    for folder in sorted((run_dir / CHECKPOINTS).glob("step-*"), reverse=True):
        if checkpoint_step(folder) > step:
            _set_aside(folder)


def _set_aside(folder: Path) -> None:
    """Renames a checkpoint, so that `remove_old_checkpoints` removes it; a killed removal may have left that name."""
    aside = folder.with_name(f"{_REMOVING}{folder.name}")
    if aside.exists():
        shutil.rmtree(aside)
    folder.rename(aside)


def remove_old_checkpoints(run_dir: Path, keep: int, best_step: int | None) -> None:
    """Removes all but the `keep` newest (0 = all stay), that of `best_step`, and unfinished ones of a killed run.

    A folder gets another name first: a folder called step-* is complete at any time.
    """
    parent = run_dir / CHECKPOINTS
    old = sorted(parent.glob("step-*"))[:-keep] if keep else []
    best = None if best_step is None else checkpoint_folder(run_dir, best_step)
    for folder in old:
        if folder != best:
            _set_aside(folder)
    for leftover in parent.glob(".*-step-*"):
        shutil.rmtree(leftover)
