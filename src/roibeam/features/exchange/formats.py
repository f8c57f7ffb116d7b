"""The feature files that roibeam reads and writes, by name, and which of them a file or folder is.

The module of a format, and with it h5py or lmdb, is imported when the format is asked for.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import cast

from roibeam.features.exchange.feature_file import FeatureFormat
from roibeam.near_names import name_hint

# Name -> module with `FORMAT`, in the order in which a file is asked whose it is: those whose import is dear come last.
FORMATS: dict[str, str] = {
    "butd-tsv": "roibeam.features.exchange.butd_tsv_format",
    "milvlg-npz": "roibeam.features.exchange.milvlg_npz",
    "mmf-npy": "roibeam.features.exchange.mmf_npy",
    "vlbert-zip": "roibeam.features.exchange.vlbert_zip",
    "vilbert-lmdb": "roibeam.features.exchange.vilbert_lmdb",
    "mmf-lmdb": "roibeam.features.exchange.mmf_lmdb",
    "uniter-lmdb": "roibeam.features.exchange.uniter_lmdb",
    "lxmert-h5": "roibeam.features.exchange.lxmert_h5",
}


def format_named(name: str) -> FeatureFormat:
    """The format of this name.

    Raises:
        ValueError: naming those that are known under this name, such as "lxmert" or "volta", or all.
    """
    if name not in FORMATS:
        known = _known_as(name)
        hint = f"give {'; or '.join(known)}" if known else name_hint(name, FORMATS)
        raise ValueError(f"no feature file format is called {name!r}; {hint}")
    return cast(FeatureFormat, importlib.import_module(FORMATS[name]).FORMAT)


def _known_as(name: str) -> list[str]:
    """Formats that have a layout of this name, or whose title has it as a word."""
    found = []
    for each in map(format_named, FORMATS):
        layout = f" with layout {name.lower()}" if name.lower() in each.layouts else ""
        if layout or name.lower() in re.findall(r"[\w.-]+", each.title.lower()):
            found.append(f"{each.name}{layout}: {each.title}")
    return found


def recognise(path: str | os.PathLike[str]) -> FeatureFormat | None:
    """The format whose signature a file or folder bears, whatever its name; None when it is none of ours.

    Raises:
        FileNotFoundError: when there is nothing at `path`.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder; give a store or a feature file")
    return next((found for found in map(format_named, FORMATS) if found.looks_like(path)), None)


def format_of(path: str | os.PathLike[str], name: str | None = None) -> FeatureFormat:
    """The format called `name`, or the one that the file bears.

    Raises:
        FileNotFoundError, ValueError: saying which formats there are, when it is none of them.
    """
    if name is not None:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path}: no such file or folder; give a feature file")
        return format_named(name)
    found = recognise(path)
    if found is None:
        raise ValueError(
            f"{path}: is no feature file that roibeam knows ({', '.join(FORMATS)}); name the file or folder itself, or "
            f"say what it is with --format"
        )
    return found
