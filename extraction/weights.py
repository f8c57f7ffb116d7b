"""Weights into a detector: strict, executing nothing; and the one function that builds a detector from names."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from extraction.anchors import cell_anchors
from extraction.config import CONFIGS, DetectorConfig
from extraction.conventions import CONVENTIONS, Conventions
from extraction.detector import Detector
from extraction.random_weights import random_state
from extraction.selection import SELECTIONS, SelectionPolicy
from extraction.state import check_cell_anchors, check_state
from extraction.weight_sources import fetch_weights, first_line

_T = TypeVar("_T")


def build_detector(
    config: str | DetectorConfig = "vg-r101-c4",
    *,
    weights: str,
    selection: str | SelectionPolicy = "butd-10-100",
    conventions: str | Conventions = "hf",
    device: str | torch.device = "cpu",
) -> Detector:
    """A detector ready to run.

    Args:
        config, selection, conventions: a preset's name (`CONFIGS`, `SELECTIONS`, `CONVENTIONS`) or one's own.
        weights: see `load_weights`.
        device: where it computes, such as "cpu" or "cuda:0".
    Raises:
        ValueError: for an unknown preset or weights that do not fit.
    """
    detector = Detector(
        _preset(config, CONFIGS, "detector config"),
        _preset(conventions, CONVENTIONS, "conventions"),
        _preset(selection, SELECTIONS, "selection"),
    )
    load_weights(weights, detector)
    return detector.to(device)


def load_weights(spec: str, detector: Detector, *, cache_dir: Path | None = None) -> None:
    """Loads every weight of `detector`, or none.

    Args:
        spec: `random:<seed>` (the reproducible recipe of random_weights.py), or a file as `fetch_weights` takes it:
            .safetensors, or .pth .pt .bin with a dict of tensors, at the top or under "model" or "state_dict".
            Half-precision files are widened to float32.
        cache_dir: where fetched files are kept; None means `default_cache_dir()`.
    Raises:
        ValueError: when the file cannot be read as tensors, or its tensors are not exactly the detector's.
        OSError: when it cannot be fetched.
    """
    expected: dict[str, Tensor] = detector.state_dict()
    if spec.startswith("random:"):
        seed = spec.removeprefix("random:")
        if not seed.isdecimal() or not seed.isascii():
            raise ValueError(f"weights {spec}: the seed must be a whole number, such as random:1")
        state = random_state({name: tuple(tensor.shape) for name, tensor in expected.items()}, int(seed))
    else:
        source = f"weights {spec}"
        found = read_tensors(fetch_weights(spec, cache_dir=cache_dir))
        check_cell_anchors(found, cell_anchors(detector.config.anchor_sizes, detector.config.anchor_ratios), source)
        state = check_state(found, expected, source)
    detector.load_state_dict(state, strict=True)


def read_tensors(path: Path) -> dict[str, object]:
    """The named values of a weight file; nothing in the file is executed.

    Returns:
        name -> tensor on the CPU (or whatever else the file holds there: `check_state` judges).
    Raises:
        ValueError: one line, when the file is not what its suffix says, is cut off, or wants to run code.
    """
    reader = {".safetensors": _read_safetensors, ".pth": _read_torch, ".pt": _read_torch, ".bin": _read_torch}
    if path.suffix.lower() not in reader:
        raise ValueError(f"weights {path}: unknown suffix {path.suffix!r}; readable are {', '.join(reader)}")
    return reader[path.suffix.lower()](path)


def _read_safetensors(path: Path) -> dict[str, object]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path, device="cpu")
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ValueError(f"weights {path}: not a complete safetensors file: {first_line(error)}") from None
    return dict(tensors)


def _read_torch(path: Path) -> dict[str, object]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"weights {path}: {_refusal(error)}") from None
    except Exception as error:  # a damaged file makes torch's parsers raise almost anything
        raise ValueError(f"weights {path}: not a complete torch file: {first_line(error)}") from None
    for name in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict):
        raise ValueError(f"weights {path}: holds a {type(content).__name__}; a dict of name -> tensor is wanted")
    return {str(name): value for name, value in content.items()}


def _refusal(error: Exception) -> str:
    # torch's message is a page of advice to switch the protection off; its one fact is the name it met.
    text = str(error)
    for marker in ("Unsupported global: GLOBAL ", "GLOBAL "):
        if marker in text:
            name = text.partition(marker)[2].split()[0].strip("`,.")
            return f"wants to run {name} when it is read; refused. Save plain tensors (safetensors) instead"
    return "neither a torch file nor a pickle of plain tensors, or it is damaged; nothing in it was run"


def _preset(value: str | _T, presets: Mapping[str, _T], what: str) -> _T:
    if not isinstance(value, str):
        return value
    if value not in presets:
        raise ValueError(f"{what} {value!r} is unknown; there are {', '.join(presets)}")
    return presets[value]
