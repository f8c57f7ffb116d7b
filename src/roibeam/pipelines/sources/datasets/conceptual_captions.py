"""Conceptual Captions TSV: caption TAB image, no header, no quoting, UTF-8 with or without a byte order mark.

The image is a local path (`read_caption_tsv`), or the URL to download it from (`read_caption_urls`). Conceptual 12M,
whose columns stand the other way round, is read too: URL TAB caption.

Id rule: the path as written, without its extension ("images/a.jpg" -> "images/a"). Several captions may name one image.
"""

from __future__ import annotations

from collections.abc import Iterator

from roibeam.pipelines.sources.datasets.rows import BadRow, CaptionRow, UrlRow, caption_row, is_web_url, read_lines


def read_caption_tsv(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows in file order; blank lines are passed over, URLs are bad rows: an image must be local."""
    for row in read_caption_rows(path, id_rule=id_rule):
        yield BadRow(row.line, "URL: download it and give the local path") if isinstance(row, UrlRow) else row


def read_caption_rows(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | UrlRow | BadRow]:
    """Rows in file order, of local images and of those at URLs; blank lines are passed over."""
    for row in _read_columns(path):
        if isinstance(row, BadRow):
            yield row
            continue
        line, caption, name = row
        if is_web_url(name):
            yield UrlRow(line, caption, name)
        else:
            yield caption_row(line, caption, name, id_rule=id_rule)


def read_caption_urls(path: str) -> Iterator[UrlRow | BadRow]:
    """Rows in file order; blank lines are passed over, local paths are bad rows: here an image must have a URL."""
    for row in _read_columns(path):
        if isinstance(row, BadRow):
            yield row
            continue
        line, caption, url = row
        yield UrlRow(line, caption, url) if is_web_url(url) else BadRow(line, "no http or https URL")


def _read_columns(path: str) -> Iterator[tuple[int, str, str] | BadRow]:
    """Line, caption and image of each row."""
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
        caption, image = columns[0].strip(), columns[1].strip()
        if not caption or not image:
            yield BadRow(line, "empty caption" if not caption else "empty path")
            continue
        if is_web_url(caption) and not is_web_url(image):  # Conceptual 12M
            caption, image = image, caption
        yield line, caption, image
