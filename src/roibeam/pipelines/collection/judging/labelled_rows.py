"""Labelled rows that people write: CSV with a header, read strictly, each fault with its line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.printable import printable

IMAGE_LABELS = {"natural": True, "not": False}
PAIR_LABELS = {"1": True, "0": False}
_MAX_FIELD = 100_000


@dataclass(frozen=True)
class LabelledImage:
    """`path` is absolute, or below the folder of the CSV."""

    path: Path
    label: bool


@dataclass(frozen=True)
class LabelledText:
    """`source` and `page` may be "": where the text stood."""

    image: str
    text: str
    label: bool
    source: str
    page: str


def read_labelled_images(path: Path) -> list[LabelledImage]:
    """Columns image and label ("natural" or "not").

    Raises:
        ValueError: for a file that is not so, saying which line.
    """
    rows = _rows(path, ("image", "label"), IMAGE_LABELS)
    return [LabelledImage(path.parent / row["image"], IMAGE_LABELS[row["label"]]) for row in rows]


def read_labelled_texts(path: Path) -> list[LabelledText]:
    """Columns image, text and label (1 where the text describes the image, else 0); source and page may be there.

    Raises:
        ValueError: as `read_labelled_images`.
    """
    rows = _rows(path, ("image", "text", "label"), PAIR_LABELS)
    return [
        LabelledText(row["image"], row["text"], PAIR_LABELS[row["label"]], row.get("source", ""), row.get("page", ""))
        for row in rows
    ]


def _rows(path: Path, columns: Sequence[str], labels: Mapping[str, bool]) -> Iterator[dict[str, str]]:
    csv.field_size_limit(_MAX_FIELD)
    num_rows = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(f"no column {missing[0]!r}; expected a first line with {', '.join(columns)}")
            for row in reader:
                num_rows += 1
                if None in row or None in row.values():
                    raise ValueError(f"line {reader.line_num}: expected {len(reader.fieldnames or ())} fields")
                if row["label"] not in labels:
                    got = printable(row["label"], 40)
                    raise ValueError(f"line {reader.line_num}: label {got!r}, expected {' or '.join(labels)}")
                if not row["image"] or "\0" in row["image"]:
                    raise ValueError(f"line {reader.line_num}: no image")
                yield row
        if not num_rows:
            raise ValueError("no rows in it")
    except (csv.Error, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path}: {printable(str(error), 300)}") from None
