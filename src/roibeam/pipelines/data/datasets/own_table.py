"""A table of one's own: train, val and test as .jsonl, .csv or .parquet, with the columns image, text and label.

Of questions that people answered the column is "answers": a list of texts, or of objects with an "answer", or one text
with "|" between them. The columns may be called "question" and "answer" too, as in most tables of VQA.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.features.folders.durable_files import check_regular_file
from roibeam.features.printable import printable
from roibeam.pipelines.data.datasets.csv_rows import read_strict_csv, refuse_same_names

KINDS = (".jsonl", ".csv", ".parquet")
_ALSO_CALLED = {"question": "text", "answer": "answers"}
_BETWEEN = "|"  # of answers in one text


@dataclass(frozen=True)
class TableRow:
    """
    Attributes:
        where: file and row, for errors.
        id: of the column "id", else the number of the row, from 0.
        image: id or file of its image.
        label: None where the table has no such column, or nothing in it.
    """

    where: str
    id: str
    image: str
    text: str
    label: str | None


@dataclass(frozen=True)
class AnswerRow:
    """A question: as `TableRow`, but for its answers, of one or more people; () where nobody tells."""

    where: str
    id: str
    image: str
    text: str
    answers: tuple[str, ...]


def tables_in(folder: Path, splits: Sequence[str] = ("train", "val", "test")) -> list[Path]:
    """The tables of these splits that there are."""
    return [path for split in splits for kind in KINDS if (path := folder / f"{split}{kind}").is_file()]


def table_of(folder: Path, split: str) -> Path:
    """The file of a split.

    Raises:
        ValueError: when there is none, or several.
    """
    found = tables_in(folder, (split,))
    if len(found) != 1:
        names = ", ".join(f"{split}{kind}" for kind in KINDS)
        what = "no" if not found else "more than one"
        raise ValueError(f"--data {str(folder)!r} holds {what} table of the split {split}: expected one of {names}")
    return found[0]


def read_table(path: Path) -> Iterator[TableRow]:
    """The rows of a table in its order.

    Raises:
        ValueError: naming the row that lacks an image or a text, or is not as its kind of file writes it.
    """
    for where, number, row in _rows(path):
        image, text, name = _asked(row, where, number, "label")
        label = _text(row, "label", where)
        yield TableRow(where, name, image, text, None if label is None else label.strip())


def read_answer_table(path: Path) -> Iterator[AnswerRow]:
    """As `read_table`, of questions with the column "answers".

    Raises:
        ValueError: also naming a row whose answers are no texts.
    """
    for where, number, row in _rows(path):
        image, text, name = _asked(row, where, number, "answers")
        told = row.get("answers")
        if isinstance(told, list):  # VQA's own files have objects
            told = [each.get("answer") if isinstance(each, dict) else each for each in told]
        given = told if isinstance(told, list) else (_text(row, "answers", where) or "").split(_BETWEEN)
        if not all(isinstance(each, str) for each in given):
            raise ValueError(f"{where}: answers must be texts, got {printable(repr(told), 60)}")
        yield AnswerRow(where, name, image, text, tuple(each.strip() for each in given if each.strip()))


def _rows(path: Path) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    for number, row in enumerate(_READERS[path.suffix](path)):
        for name, usual in _ALSO_CALLED.items():
            if name in row and usual not in row:
                row = {**row, usual: row[name]}
        yield f"{str(path)!r}, row {number}", number, row


def _asked(row: Mapping[str, Any], where: str, number: int, last: str) -> tuple[str, str, str]:
    """Image, text and id of a row; `last` is the table's third column."""
    image, text = _text(row, "image", where), _text(row, "text", where)
    if image is None or text is None:
        lacks = "image" if image is None else "text"
        if lacks in row:
            raise ValueError(f"{where}: its {lacks} is empty; fill it, or take the row out")
        has = printable(", ".join(map(str, row)), 200) or "none"
        hint = (
            "; is it separated by semicolons or tabs? commas are expected" if len(row) == 1 and "," not in has else ""
        )
        raise ValueError(f"{where}: no {lacks}; a table has the columns image, text and {last}, this one {has}{hint}")
    return image, text, _text(row, "id", where) or str(number)


def _text(row: Mapping[str, Any], name: str, where: str) -> str | None:
    value = row.get(name)
    if isinstance(value, bool | int | float):
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where}: {name} must be a text, got {printable(repr(value), 60)}")
    return value if value and value.strip() else None


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    return read_strict_csv(str(path))


def _jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{str(path)!r}, line {number + 1}: no JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{str(path)!r}, line {number + 1}: expected an object with image, text and label")
            yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    check_regular_file(path)
    try:
        file = parquet.ParquetFile(path)
        refuse_same_names(str(path), file.schema_arrow.names)
        for batch in file.iter_batches():
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{str(path)!r}: no parquet table: {' '.join(str(error).split())}") from None


_READERS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
