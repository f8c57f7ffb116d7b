"""Weight files as named tensors, whatever container they are in; nothing in a file is executed.

What a file is, its first bytes say where they can; the suffix only decides for `.caffemodel`, which has no signature.

| container | recognised by | read by |
|---|---|---|
| safetensors | a length, then `{` | safetensors |
| torch | a zip archive, or torch's older signature | `torch.load(weights_only=True)` |
| pickle | a pickle's first opcodes | roibeam.features.safe_pickle.read, which runs nothing |
| Caffe | `.caffemodel` | caffemodel.py |
"""

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
from roibeam.extraction.weights.sources import first_line
from roibeam.features.printable import printable
from roibeam.features.safe_pickle.read import UnsafePickleError, load_pickle

SUFFIXES = (".safetensors", ".pth", ".pt", ".th", ".bin", ".model", ".pkl", ".caffemodel")
# torch/serialization.py MAGIC_NUMBER as pickle writes it: the files of torch before 1.6.
_OLD_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
# Keys under which training programs keep the weights: detectron2 and MILVLG, most others, Detectron 1, the multi-task
# ViLBERT's files to resume from.
_INNER_DICTS = ("model", "state_dict", "blobs", "model_state_dict")


def read_tensors(path: Path) -> dict[str, object]:
    """The named values of a weight file.

    Returns:
        name -> tensor on the CPU (or whatever else the file holds there: `check_state` judges).
    Raises:
        ValueError: one line, when the file is of no known kind, is cut off, or wants to run code.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"weights {path}: unknown suffix {path.suffix!r}; readable are {', '.join(SUFFIXES)}")
    if suffix == ".caffemodel":
        return dict(read_caffemodel(path))
    with path.open("rb") as file:
        head = file.read(16)
    if suffix == ".safetensors" or head[8:9] == b"{":
        return _read_safetensors(path)
    if head.startswith(b"PK\x03\x04") or head.startswith(_OLD_TORCH):
        return _named(_read_torch(path), path)
    if suffix == ".pkl" or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 1):
        return _named(_read_pickle(path), path)
    raise ValueError(
        f"weights {path}: not a complete torch file, safetensors file or pickle; it starts with {head[:12]!r}"
    )


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
    return {name: _as_tensor(value) for name, value in tensors.items()}


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
