"""Conceptual Captions TSV: caption TAB image, no header, no quoting, UTF-8 with or without a byte order mark.

Here the image is a local path.

Id rule: the path as written, without its extension ("images/a.jpg" -> "images/a"). Several captions may name one image.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.datasets.image_ids import image_id_of, path_below


@dataclass(frozen=True)
class CaptionRow:
    """One usable row: its line (from 1), caption, image path below the image root, and image id."""

    line: int
    caption: str
    path: str
    image_id: str


@dataclass(frozen=True)
class BadRow:
    """One row that cannot be used: its line (from 1) and a short reason."""

    line: int
    reason: str


def read_caption_tsv(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows in file order; blank lines are passed over, URLs are bad rows: an image must be local."""
    with open(path, "rb") as file:
        for line, raw in enumerate(file, start=1):
            if line == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            raw = raw.rstrip(b"\r\n")
            if not raw.strip():
                continue
            try:
                columns = raw.decode("utf-8").split("\t")
            except UnicodeDecodeError:
                yield BadRow(line, "not UTF-8")
                continue
            if len(columns) != 2:
                yield BadRow(line, "no tab" if len(columns) == 1 else f"{len(columns)} columns, expected 2")
                continue
            caption, name = columns[0].strip(), columns[1].strip()
            if not caption or not name:
                yield BadRow(line, "empty caption" if not caption else "empty path")
                continue
            if name.lower().startswith(("http://", "https://")):
                yield BadRow(line, "URL: download it and give the local path")
                continue
            try:
                name = path_below(name)
            except ValueError as error:
                yield BadRow(line, str(error))
                continue
            yield CaptionRow(line, caption, name, image_id_of(name, id_rule=id_rule))
