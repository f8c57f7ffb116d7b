"""Checkpoints of a training run: safetensors and JSON, written aside and renamed, so that a folder there is complete.

checkpoints/step-00000100/     config.json, state.json, optimizer.safetensors, rng-0.safetensors (one per process),
                               model/config.json, model/model.safetensors
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """How far a run is: optimizer steps done, and the number of the first sample not yet used."""

    step: int = 0
    next_sample: int = 0


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint folder with the highest step, or None. Every folder of that name is complete."""
    found = sorted((Path(run_dir) / "checkpoints").glob("step-*"))
    return found[-1] if found else None


def save_checkpoint(
    run_dir: Path,
    model: nn.Module,
    model_config: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    position: Position,
    resolved: Mapping[str, Any],
    accelerator: Accelerator,
) -> Path:
    """Writes aside, syncs to disk, renames: a folder called step-* is complete. safetensors and JSON only."""
    final = run_dir / "checkpoints" / f"step-{position.step:08d}"
    aside = final.with_name(f".writing-{final.name}")
    if accelerator.is_main_process:
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "model").mkdir(parents=True)
    accelerator.wait_for_everyone()
    save_file(_random_state(), aside / f"rng-{accelerator.process_index}.safetensors")
    if accelerator.is_main_process:
        save_model(model, str(aside / "model" / "model.safetensors"), metadata={"format": "pt"})
        write_json(aside / "model" / "config.json", model_config)
        save_file(_optimizer_state(model, optimizer), aside / "optimizer.safetensors")
        write_json(aside / "config.json", resolved)
        write_json(aside / "state.json", {"format": 1, **dataclasses.asdict(position)})
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        put_in_place(aside, final)
    accelerator.wait_for_everyone()
    return final


def put_in_place(aside: Path, final: Path) -> None:
    """Makes a folder durable, then renames it; one that is there already gives way."""
    for path in sorted(aside.rglob("*"), reverse=True):
        sync_to_disk(path)
    sync_to_disk(aside)
    if final.exists():  # a run that went back to an older checkpoint comes by again
        replaced = final.with_name(f".replaced-{final.name}")
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
        aside.rename(final)
        shutil.rmtree(replaced)
    else:
        aside.rename(final)
    sync_to_disk(final.parent)


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, rank: int) -> Position:
    """Restores model, optimizer and the random state of process `rank`; returns where the run stood.

    Raises:
        ValueError: if a file of the checkpoint is missing or damaged.
    """
    try:
        return _load(folder, model, optimizer, rank)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"checkpoint {folder} is damaged or incomplete ({reason}); remove it to resume from the one before"
        ) from None


def _load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> Position:
    state = json.loads((folder / "state.json").read_text("utf-8"))
    if state.pop("format") != 1:
        raise ValueError(f"{folder}/state.json was written by another version of roibeam")
    load_model(model, folder / "model" / "model.safetensors")
    names = _optimizer_names(model, optimizer)
    saved: dict[int, dict[str, Tensor]] = {}
    for key, tensor in load_file(folder / "optimizer.safetensors").items():
        name, _, field = key.rpartition("/")
        saved.setdefault(names.index(name), {})[field] = tensor
    optimizer.load_state_dict({"state": saved, "param_groups": optimizer.state_dict()["param_groups"]})
    own = folder / f"rng-{rank}.safetensors"
    if own.exists():
        _restore_random_state(load_file(own))
    else:
        logger.warning("%s has no random state for process %d: its dropout starts afresh", folder, rank)
    return Position(**state)


def _optimizer_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Parameter names in the optimizer's own numbering."""
    by_identity = {id(parameter): name for name, parameter in model.named_parameters()}
    return [by_identity[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def _optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State tensors by "parameter name/field", so that a file does not depend on the order of parameters."""
    names = _optimizer_names(model, optimizer)
    return {
        f"{names[index]}/{field}": tensor.contiguous()
        for index, fields in optimizer.state_dict()["state"].items()
        for field, tensor in fields.items()
    }


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random_state(state: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def remove_old_checkpoints(run_dir: Path, keep: int) -> None:
    if keep:
        for folder in sorted((run_dir / "checkpoints").glob("step-*"))[:-keep]:
            shutil.rmtree(folder)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def sync_to_disk(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
