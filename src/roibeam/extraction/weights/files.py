"""Weight files as named tensors, whatever container they are in (file_container.py); nothing in a file is executed."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.network.state import renamed
from roibeam.extraction.weights.caffemodel import read_caffemodel
from roibeam.extraction.weights.file_container import container_of
from roibeam.extraction.weights.sources import first_line
from roibeam.features.printable import printable
from roibeam.features.safe_pickle.read import UnsafePickleError, load_pickle

# Keys under which training programs keep the weights: detectron2 and MILVLG, most others, Detectron 1, the multi-task
# ViLBERT's files to resume from.
_MOST_SHARED = 8  # times that the bytes of a file may be in tensors: some share their numbers
_INNER_DICTS = ("model", "state_dict", "blobs", "model_state_dict")


def read_tensors(path: Path) -> dict[str, object]:
    """The named values of a weight file.

    Returns:
        name -> tensor on the CPU (or whatever else the file holds there: `check_state` judges).
    Raises:
        ValueError: one line, when the file is of no known kind, is cut off, or wants to run code.
    """
    container = container_of(path)
    if container == "caffe":
        return dict(read_caffemodel(path))
    if container == "safetensors":
        return _read_safetensors(path)
    return _named(_read_torch(path) if container == "torch" else _read_pickle(path), path)


def _read_safetensors(path: Path) -> dict[str, object]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path, device="cpu")
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"weights {path}: not a complete safetensors file: {printable(first_line(error), 300)}"
        ) from None
    return dict(tensors)


def _read_torch(path: Path) -> object:
    try:
        _check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"weights {path}: {_refusal(error)}") from None
    except Exception as error:  # a damaged file makes torch's parsers raise almost anything
        raise ValueError(f"weights {path}: not a complete torch file: {printable(first_line(error), 300)}") from None


def _check_archive(path: Path) -> None:
    """Refuses an archive that unpacks to more than it is: torch itself packs nothing."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > path.stat().st_size:
        raise ValueError(f"its entries unpack to {unpacked:,} bytes, more than the file has")


def _read_pickle(path: Path) -> object:
    try:
        return load_pickle(path)
    except UnsafePickleError as error:
        raise ValueError(f"weights {error}") from None


def _named(content: object, path: Path) -> dict[str, object]:
    for name in _INNER_DICTS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping):
        raise ValueError(f"weights {path}: holds a {type(content).__name__}; a dict of name -> tensor is wanted")
    # A key may be anything that a pickle can hold: 1 and "1" are one name here.
    tensors = renamed(content, str, f"weights {path}")
    _check_sizes(tensors, path)
    return {name: _as_tensor(value) for name, value in tensors.items()}


def _check_sizes(tensors: Mapping[str, object], path: Path) -> None:
    """Raises ValueError for tensors that hold more numbers than the file, such as one number that is expanded."""
    total, there = 0, path.stat().st_size
    for value in tensors.values():
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta:
            total += value.numel() * value.element_size()
    if total > _MOST_SHARED * there:
        raise ValueError(
            f"weights {path}: its tensors have {total:,} bytes, the file {there:,}: numbers stand for many; save the "
            f"tensors with all their numbers"
        )


def _as_tensor(value: object) -> object:
    """A numpy array as a tensor of its own memory; everything else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        return value
    return torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=True))


def _refusal(error: Exception) -> str:
    # torch's message is a page of advice to switch the protection off; its one fact is the name it met.
    text = str(error)
    for marker in ("Unsupported global: GLOBAL ", "GLOBAL "):
        if marker in text:
            name = printable(text.partition(marker)[2].split()[0].strip("`,."))
            return f"wants to run {name} when it is read; refused. Save plain tensors (safetensors) instead"
    return "not a torch file of plain tensors, or it is damaged; nothing in it was run"
