"""Scores of every label for every row, what `roibeam predict --scores FILE.npz` writes.

    ids       (N,) texts, of the rows, in the order of the result file
    labels    (L,) texts
    scores    (N, L) float32, as the model gives them and the task judges them: the label of the highest one is said
    about     a text, JSON: format, task, split, model, and by which function a score is a probability

`numpy.load` reads it. It is written part by part, so that memory never holds all of it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.exchange.aside import written_aside
from roibeam.features.folders.full_disk import naming_file
from roibeam.features.printable import printable

SUFFIX, FORMAT = ".npz", 1
_PADDED_BYTES, _MOST_PADDING = 64 * 2**20, 32  # padded texts of more take at most so many bytes for each letter
_TEXTS_AT_ONCE = 4096
_MEMBERS = {f"{name}.npy" for name in ("about", "ids", "labels", "scores")}


def check_scores_file(file: Path) -> None:
    """Raises ValueError for a file of another kind: such a one is not written over, and numpy looks at the name."""
    if file.suffix != SUFFIX:
        raise ValueError(f"--scores {str(file)!r}: call it {file.stem}{SUFFIX}, which numpy reads")
    if file.is_dir():
        raise ValueError(f"--scores {str(file)!r} is a folder; name a file to write")
    if file.exists() and not _is_ours(file):
        raise ValueError(f"--scores {str(file)!r} is there already, and roibeam did not write it; name another file")


def check_texts(ids: Sequence[str], labels: Sequence[str]) -> None:
    """Raises ValueError for texts that numpy would cut, or that take many times their memory there: each takes that of
    the longest."""
    for name, texts in (("id", ids), ("label", labels)):
        cut = next((text for text in texts if text.endswith("\0")), None)
        if cut is not None:
            raise ValueError(f"--scores: numpy cuts the NUL at the end of the {name} {printable(cut, 40)}; remove it")
        longest = max(map(len, texts), default=0)
        if 4 * longest * len(texts) > max(_PADDED_BYTES, _MOST_PADDING * sum(map(len, texts))):
            raise ValueError(
                f"--scores: numpy would take {longest:,} letters for each of {counted(len(texts), name)}, as many as "
                f"the longest has; shorten it, or leave --scores out: {printable(max(texts, key=len), 40)}"
            )


def write_label_scores(
    file: Path, ids: Sequence[str], labels: Sequence[str], parts: Sequence[Path], about: Mapping[str, Any]
) -> None:
    """Writes the file, whole or not at all.

    Args:
        parts: .npy files of (n, L) float32, the rows of each behind those of the one before.
        about: of the model, plain data.
    """
    described = json.dumps({"format": FORMAT, **about})
    with (
        written_aside(file, replaces=True) as aside,
        naming_file(file),
        zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED, allowZip64=True) as packed,
    ):
        for name, texts in (("about", described), ("ids", ids), ("labels", labels)):
            _write_texts(packed, f"{name}.npy", texts)
        with packed.open("scores.npy", "w", force_zip64=True) as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), len(labels))}
            np.lib.format.write_array_header_1_0(member, header)
            for part in parts:
                member.write(np.load(part, allow_pickle=False).astype("<f4").tobytes())


def _write_texts(packed: zipfile.ZipFile, name: str, texts: str | Sequence[str]) -> None:
    """A text, or a row of them, as numpy saves it; some thousand are in memory at a time."""
    rows = [texts] if isinstance(texts, str) else texts
    descr = f"<U{max(1, max(map(len, rows), default=0))}"
    with packed.open(name, "w", force_zip64=True) as member:
        shape = () if isinstance(texts, str) else (len(texts),)
        np.lib.format.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": shape})
        for start in range(0, len(rows), _TEXTS_AT_ONCE):
            member.write(np.array(rows[start : start + _TEXTS_AT_ONCE], descr).tobytes())


def _is_ours(file: Path) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as packed:
        return set(packed.namelist()) == _MEMBERS
