"""Paths of model files that a user names: run, checkpoint, model, tokenizer, BERT, output. Checked without torch.

Resolves a user's path (run, checkpoint or model folder) to a model folder; checks the output path of a conversion.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roibeam.extraction.weights.sources import check_weight_file
from roibeam.pipelines.training.run_folder.files import check_sums, latest_checkpoint
from roibeam.pipelines.training.run_folder.stages import furthest_stage

CONFIG = "config.json"
MAX_CONFIG_BYTES = 16 * 2**20  # with names of classes
TASK_MODEL = "roibeam-task-model"  # `model_type` of a pre-trained model with the head of a task


def model_folder(folder: Path) -> tuple[Path, Path | None]:
    """The folder of a model's weights and that of its tokenizer, None if there is none. A run stands for its newest
    checkpoint, of its last stage that has one."""
    run = found = furthest_stage(folder)
    if (run / "checkpoints").is_dir():
        newest = latest_checkpoint(run)
        if newest is None:
            raise ValueError(f"{run}: this run has no checkpoint yet")
        found = newest / "model"
    elif (run / "model" / CONFIG).is_file():
        run, found = run.parent.parent, run / "model"
    if not (found / CONFIG).is_file():
        raise ValueError(f"{found}: no {CONFIG}; expected a model's folder, a run of roibeam pretrain or a checkpoint")
    return found, run / "tokenizer" if (run / "tokenizer").is_dir() else None


def check_model_sums(found: Path) -> None:
    """Compares a model inside a checkpoint, and its run's files there, with the checkpoint's sums; see `check_sums`."""
    if (found.parent / "state.json").is_file():
        check_sums(found.parent, model_only=True)


@dataclass(frozen=True)
class FoundModel:
    """A model on disk, not read yet: `source` is the folder of its weights."""

    source: Path


def found_model(spec: str) -> FoundModel | None:
    """The model of a local folder; None for anything else. ValueError as `model_folder`."""
    path = Path(spec).expanduser()
    return FoundModel(model_folder(path)[0]) if path.is_dir() else None


def check_model_files(spec: str) -> None:
    """Raises ValueError for a folder without a model, and a local file that cannot be weights; OSError likewise."""
    path = Path(spec).expanduser()
    if path.is_dir():
        model_folder(path)
    else:
        check_weight_file(spec)


BERT_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def tokenizer_file(spec: str) -> Path:
    """Path of tokenizer.json or vocab.txt; `spec` is such a file, or a folder with one of them."""
    path = Path(spec)
    for name in ("tokenizer.json", "vocab.txt"):
        if path.is_dir() and (path / name).is_file():
            return path / name
    if path.is_file():
        return path
    raise ValueError(
        f"tokenizer {spec!r} is neither a vocab.txt, nor a folder with tokenizer.json or vocab.txt, nor "
        f"'hf:<repository>', nor 'captions'"
    )


def check_tokenizer_file(spec: str | None) -> None:
    """Raises ValueError for an existing file or folder that is no tokenizer."""
    if spec is not None and Path(spec).exists():
        tokenizer_file(spec)


def bert_files(spec: str) -> tuple[Path, Path]:
    """Paths of the configuration and the weights in a folder."""
    folder = Path(spec).expanduser()
    config = folder / CONFIG
    found = [folder / name for name in BERT_WEIGHTS if (folder / name).is_file()]
    if not config.is_file() or not found:
        raise ValueError(
            f"BERT {spec}: expected a folder with {CONFIG} and {' or '.join(BERT_WEIGHTS)}, or hf:<repository>"
        )
    return config, found[0]


DIRECTIONS = ("roibeam", "official", "detector")
OF_VLBERT = ".model"
OFFICIAL_SUFFIXES = (".bin", ".th", ".pth", OF_VLBERT, ".safetensors")


def settings_beside(weights: Path) -> Path:
    """Path of the JSON beside an official file with the settings that the file lacks: x.bin.json of x.bin."""
    return weights.with_name(f"{weights.name}.json")


def check_converted_output(out: Path, to: str) -> None:
    """Checks that OUT can be written: for "roibeam" and "detector" a folder, for "official" a file."""
    if to not in DIRECTIONS:
        raise ValueError(f"a model is not written as {to!r}; there are {', '.join(DIRECTIONS)}")
    for path in (out, settings_beside(out)) if to == "official" else (out,):
        if path.exists():
            raise ValueError(f"{path} is there already; name another one")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: there is no folder {out.parent}")
    if to == "official" and out.suffix not in OFFICIAL_SUFFIXES:
        raise ValueError(f"{out}: official checkpoints end in {', '.join(OFFICIAL_SUFFIXES)}; rename it")
