"""Labelled rows that people write: CSV with a header, read strictly, each fault with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.printable import printable
from roibeam.pipelines.common.files.image_ids import is_utf8
from roibeam.pipelines.data.datasets.csv_rows import read_csv_table
from roibeam.pipelines.data.datasets.rows import NOT_UTF8, OTHER_ENCODING, OTHER_FIELDS, BadRow

IMAGE_LABELS = {"natural": True, "not": False}
PAIR_LABELS = {"1": True, "0": False}


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
    num_rows = 0
    try:
        names, rows = read_csv_table(str(path))
        missing = [column for column in columns if column not in names]
        if missing:
            raise ValueError(f"no column {missing[0]!r}; expected a first line with {', '.join(columns)}")
        for found in rows:
            num_rows += 1
            if isinstance(found, BadRow):
                reason = f"expected {len(names)} fields" if found.reason == OTHER_FIELDS else found.reason
                raise ValueError(f"line {found.line}: {reason}")
            line, fields = found
            row = dict(zip(names, fields, strict=True))
            if not is_utf8("".join(fields)):
                raise ValueError(f"line {line}: {NOT_UTF8}; {OTHER_ENCODING}")
            if row["label"] not in labels:
                got = printable(row["label"], 40)
                raise ValueError(f"line {line}: label {got!r}, expected {' or '.join(labels)}")
            if not row["image"] or "\0" in row["image"]:
                raise ValueError(f"line {line}: no image")
            yield row
        if not num_rows:
            raise ValueError("no rows in it")
    except ValueError as error:
        raise ValueError(f"{path}: {printable(str(error).removeprefix(f'{str(path)!r}: '), 300)}") from None
