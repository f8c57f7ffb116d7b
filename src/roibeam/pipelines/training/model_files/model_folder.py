"""Where in a folder a model is that a user names: a run, one of its checkpoints, or the model itself. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roibeam.extraction.weights.file_container import check_weight_file
from roibeam.pipelines.training.run_folder.checkpoint_sums import check_sums
from roibeam.pipelines.training.run_folder.files import latest_checkpoint
from roibeam.pipelines.training.run_folder.stages import furthest_stage

CONFIG = "config.json"
MAX_CONFIG_BYTES = 16 * 2**20  # with names of classes
TASK_MODEL = "roibeam-task-model"  # `model_type` of a pre-trained model with the head of a task


def model_folder(folder: Path) -> tuple[Path, Path | None]:
    """The folder of a model's weights and that of its tokenizer, None where there is none.

    Args:
        folder: a run's (then its newest checkpoint's, of its last stage that has one), a checkpoint's, a model's own.
    Raises:
        ValueError: for a run without a checkpoint, or a folder that is none of these.
    """
    folder = furthest_stage(folder)
    if (folder / "checkpoints").is_dir():
        newest = latest_checkpoint(folder)
        if newest is None:
            raise ValueError(f"{folder}: this run has no checkpoint yet")
        tokenizer, found = _tokenizer_of(folder), newest / "model"
    elif (folder / "model" / CONFIG).is_file():
        tokenizer, found = _tokenizer_of(folder.parent.parent), folder / "model"
    else:
        tokenizer, found = _tokenizer_of(folder), folder
    if not (found / CONFIG).is_file():
        raise ValueError(f"{found}: no {CONFIG}; expected a model's folder, a run of roibeam pretrain or a checkpoint")
    return found, tokenizer


def check_model_sums(found: Path) -> None:
    """Compares a model inside a checkpoint, and what its run wrote down there, with the checkpoint's sums; see
    `check_sums`."""
    if (found.parent / "state.json").is_file():
        check_sums(found.parent, model_only=True)


@dataclass(frozen=True)
class FoundModel:
    """A model that is there and not read yet: `source` is the folder of its weights."""

    source: Path


def found_model(spec: str) -> FoundModel | None:
    """None for all that is no folder here. ValueError as `model_folder`."""
    path = Path(spec).expanduser()
    return FoundModel(model_folder(path)[0]) if path.is_dir() else None


def check_model_files(spec: str) -> None:
    """Raises ValueError for a folder without a model, and a local file that cannot be weights; OSError likewise."""
    path = Path(spec).expanduser()
    if path.is_dir():
        model_folder(path)
    else:
        check_weight_file(spec)


def _tokenizer_of(folder: Path) -> Path | None:
    return folder / "tokenizer" if (folder / "tokenizer").is_dir() else None
