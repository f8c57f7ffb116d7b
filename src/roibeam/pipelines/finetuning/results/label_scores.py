"""Scores of every label for every row, what `roibeam predict --scores FILE.npz` writes.

    ids       (N,) texts, of the rows, in the order of the result file
    labels    (L,) texts
    scores    (N, L) float32, as the model gives them and the task judges them: the label of the highest one is said
    about     a text, JSON: format, task, split, model, and by which function a score is a probability

`numpy.load` reads it. It is written part by part, so that memory never holds all of it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SUFFIX, FORMAT = ".npz", 1
_MEMBERS = {f"{name}.npy" for name in ("about", "ids", "labels", "scores")}


def check_scores_file(file: Path) -> None:
    """Raises ValueError for a file of another kind: such a one is not written over, and numpy looks at the name."""
    if file.suffix != SUFFIX:
        raise ValueError(f"--scores {str(file)!r}: call it {file.stem}{SUFFIX}, which numpy reads")
    if file.is_dir():
        raise ValueError(f"--scores {str(file)!r} is a folder; name a file to write")
    if file.exists() and not _is_ours(file):
        raise ValueError(f"--scores {str(file)!r} is there already, and roibeam did not write it; name another file")


def write_label_scores(
    file: Path, ids: Sequence[str], labels: Sequence[str], parts: Sequence[Path], about: Mapping[str, Any]
) -> None:
    """Writes the file, whole or not at all.

    Args:
        parts: .npy files of (n, L) float32, the rows of each behind those of the one before.
        about: of the model, plain data.
    """
    aside = file.with_name(f".writing-{file.name}")
    described = json.dumps({"format": FORMAT, **about})
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED, allowZip64=True) as packed:
        for name, texts in (("about", described), ("ids", list(ids)), ("labels", list(labels))):
            array = io.BytesIO()
            np.save(array, np.array(texts, np.str_), allow_pickle=False)
            packed.writestr(f"{name}.npy", array.getvalue())
        with packed.open("scores.npy", "w", force_zip64=True) as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), len(labels))}
            np.lib.format.write_array_header_1_0(member, header)
            for part in parts:
                member.write(np.load(part, allow_pickle=False).astype("<f4").tobytes())
    aside.replace(file)


def _is_ours(file: Path) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as packed:
        return set(packed.namelist()) == _MEMBERS
