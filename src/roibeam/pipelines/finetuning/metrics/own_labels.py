"""Labels of a user's own table: accuracy of all rows, of each label and their mean; result file and file of scores.

OUT          one JSON object a line, {"id": "17", "label": "cat"}; of a table with "image" and "text", also as .csv
SCORES.npz   of `roibeam predict --scores`, written part by part, so that memory never holds all of it:
  ids       (N,) texts, of the rows, in the order of the result file
  labels    (L,) texts
  scores    (N, L) float32, of the model; the label of the highest one is predicted
  about     a text, JSON: format, task, split, model, and the function that makes a score a probability
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.exchange.export_output import atomic_path
from roibeam.features.folders.durable_files import naming_file, write_bytes_atomically
from roibeam.messages import plural, printable
from roibeam.pipelines.data.datasets.tables import read_strict_csv
from roibeam.pipelines.finetuning.metrics.measure import Measure, Whole, drawn_balanced, is_csv

ACCURACY, BALANCED = "accuracy", "balanced accuracy"
LISTED = 20  # labels; of more no figure of each is listed


def own_label_measures(predicted: Sequence[str], right: Sequence[str], images: Sequence[str]) -> dict[str, Measure]:
    """The accuracy of all rows, the headline. Where several labels are right, also the mean of their own accuracies, in
    which a rare label counts as much as a common one; and, of up to `LISTED` labels, that of each label's rows.

    Args:
        predicted, right: (rows,) labels; images: (rows,) of the rows.
    """
    hits = [float(a == b) for a, b in zip(predicted, right, strict=True)]
    measures: dict[str, Measure] = {
        ACCURACY: Measure(ACCURACY, hits, images, guess=lambda: max(Counter(right).values()) / len(right))
    }
    rows_of: dict[str, list[int]] = {}
    for row, label in enumerate(right):
        rows_of.setdefault(label, []).append(row)
    if len(rows_of) < 2:
        return measures
    own = {
        label: Measure(f"label {printable(label, 200)}", [hits[row] for row in rows], [images[row] for row in rows])
        for label, rows in sorted(rows_of.items())
    }
    measures[BALANCED] = Whole(
        BALANCED,
        hits,
        images,
        sum(each.mean for each in own.values()) / len(own),
        guess=lambda: 1 / len(own),  # one label of all is always right
        drawn=drawn_balanced(hits, right),
    )
    if len(own) <= LISTED:
        measures |= {each.name: each for each in own.values()}
    return measures


def read_label_results(path: str) -> Iterator[tuple[str, str]]:
    """Id and label of each line. Raises ValueError naming a line that is no such object, or a .csv without these
    columns."""
    if is_csv(path):
        yield from read_csv_results(path, "id", "label")
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                entry = None
            name, label = (entry.get("id"), entry.get("label")) if isinstance(entry, dict) else (None, None)
            if not (isinstance(name, str) and isinstance(label, str)):
                text = printable(line.decode("utf-8", "replace"), 60)
                raise ValueError(f"{path!r}, line {number}: expected an object with the texts id and label, got {text}")
            yield name, label


def read_csv_results(path: str, *columns: str) -> Iterator[tuple[str, str]]:
    """Two columns of a result file; ValueError for one without them."""
    for number, row in enumerate(read_strict_csv(path)):
        if not row.keys() >= set(columns):
            raise ValueError(
                f"{path!r}, row {number}: expected the columns {' and '.join(columns)}, got {', '.join(row)}"
            )
        yield row[columns[0]], row[columns[1]]


def write_label_results(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    write_label_entries(path, ({"id": name, "label": label} for name, label in rows))


def write_label_entries(path: Path, entries: Iterable[Mapping[str, str]]) -> None:
    lines = (f"{json.dumps(entry)}\n" for entry in entries)
    write_bytes_atomically(path, "".join(lines).encode())


SUFFIX, FORMAT = ".npz", 1
_PADDED_BYTES, _MOST_PADDING = 64 * 2**20, 32  # padded texts of more take at most so many bytes for each letter
_TEXTS_AT_ONCE = 4096
_MEMBERS = {f"{name}.npy" for name in ("about", "ids", "labels", "scores")}


def check_scores_file(file: Path) -> None:
    """Raises ValueError for a file of another kind, which is not overwritten, or another suffix than numpy reads."""
    if file.suffix != SUFFIX:
        raise ValueError(f"--scores {str(file)!r}: call it {file.stem}{SUFFIX}, which numpy reads")
    if file.is_dir():
        raise ValueError(f"--scores {str(file)!r} is a folder; name a file to write")
    if file.exists() and not _is_scores_file(file):
        raise ValueError(f"--scores {str(file)!r} is there already, and roibeam did not write it; name another file")


def check_texts(ids: Sequence[str], labels: Sequence[str]) -> None:
    """Raises ValueError for texts that numpy would cut, or pad to many times their memory."""
    for name, texts in (("id", ids), ("label", labels)):
        cut = next((text for text in texts if text.endswith("\0")), None)
        if cut is not None:
            raise ValueError(f"--scores: numpy cuts the NUL at the end of the {name} {printable(cut, 40)}; remove it")
        longest = max(map(len, texts), default=0)
        if 4 * longest * len(texts) > max(_PADDED_BYTES, _MOST_PADDING * sum(map(len, texts))):
            raise ValueError(
                f"--scores: numpy would take {longest:,} letters for each of {plural(len(texts), name)}, as many as "
                f"the longest has; shorten it, or leave --scores out: {printable(max(texts, key=len), 40)}"
            )


def write_label_scores(
    file: Path, ids: Sequence[str], labels: Sequence[str], parts: Sequence[Path], about: Mapping[str, Any]
) -> None:
    """Writes the file, whole or not at all.

    Args:
        parts: .npy files of (n, L) float32, in the order of the rows.
        about: of the model, plain data.
    """
    described = json.dumps({"format": FORMAT, **about})
    with (
        atomic_path(file, replaces=True) as aside,
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
    """Writes a text, or a row of them, as numpy saves it; some thousand are in memory at a time."""
    rows = [texts] if isinstance(texts, str) else texts
    descr = f"<U{max(1, max(map(len, rows), default=0))}"
    with packed.open(name, "w", force_zip64=True) as member:
        shape = () if isinstance(texts, str) else (len(texts),)
        np.lib.format.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": shape})
        for start in range(0, len(rows), _TEXTS_AT_ONCE):
            member.write(np.array(rows[start : start + _TEXTS_AT_ONCE], descr).tobytes())


def _is_scores_file(file: Path) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as packed:
        return set(packed.namelist()) == _MEMBERS
