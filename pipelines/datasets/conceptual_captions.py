"""Conceptual Captions TSV: caption TAB image, no header, no quoting, UTF-8 with or without a byte order mark.

Here the image is a local path.

Id rule: the path as written, without its extension ("images/a.jpg" -> "images/a"). Several captions may name one image.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.datasets.image_ids import image_id_of, path_below
from pipelines.datasets.rows import BadRow, CaptionRow, read_lines


def read_caption_tsv(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows in file order; blank lines are passed over, URLs are bad rows: an image must be local."""
    for row in read_lines(path):
        if isinstance(row, BadRow):
            yield row
            continue
        line, text = row
        if not text.strip():
            continue
        columns = text.split("\t")
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
