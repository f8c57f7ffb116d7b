"""Conceptual Captions TSV: caption TAB image, no quoting, UTF-8 with or without a byte order mark, mostly no header.

The image is a local path (`read_caption_tsv`), or the URL to download it from (`read_caption_urls`). Conceptual 12M,
whose columns stand the other way round, is read too: URL TAB caption. Which way round they stand is decided once for a
file (`columns_of`): a caption may look like anything.

Id rule: the path as written, without its extension ("images/a.jpg" -> "images/a"). Several captions may name one image.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from roibeam.extraction.photos.photo_file import IMAGE_EXTENSIONS
from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.pipelines.common.files.image_ids import MAX_PATH_LETTERS
from roibeam.pipelines.data.datasets.image_list import CAPTION_COLUMNS, ID_COLUMNS, IMAGE_COLUMNS
from roibeam.pipelines.data.datasets.rows import (
    EMPTY_CAPTION,
    LONG_CAPTION,
    MAX_CAPTION_LETTERS,
    BadRow,
    CaptionRow,
    UrlRow,
    caption_row,
    is_web_url,
    read_lines,
)
from roibeam.pipelines.data.datasets.url_table import CAPTION_NAMES, URL_NAMES

log = logging.getLogger(__name__)
_CAPTION_NAMES = frozenset((*CAPTION_COLUMNS, *CAPTION_NAMES))
_IMAGE_NAMES = frozenset((*IMAGE_COLUMNS, *ID_COLUMNS, *URL_NAMES, "id"))
_LINES_LOOKED_AT = 1000
_PATHS_LOOKED_FOR = 100


class TsvColumns(NamedTuple):
    """Which column has what, in all rows of a file.

    Attributes:
        caption: place of the captions, 0 or 1; images stand in the other column.
        header: lines before the first row: 1 where the columns are named, else 0.
    """

    caption: int = 0
    header: int = 0


def columns_of(path: str, given: str = "", *, root: str | None = None) -> TsvColumns:
    """The order of a file's columns, logged in a line.

    Decided by what is given, else by a header, else by which column names files that are there, else by the first
    thousand lines: captions stand second where more lines begin with a URL than end with an image. Else they stand
    first.

    Args:
        given: "1" or "2", the column of the captions, or its name in the header; "" to decide.
        root: folder that local paths are below; None where images must have URLs.
    Raises:
        ValueError: if what is given is no column of the file.
        OSError: if the file cannot be read.
    """
    texts = (row[1] for row in islice(read_lines(path), _LINES_LOOKED_AT) if not isinstance(row, BadRow))
    rows = [[cell.strip() for cell in columns] for text in texts if len(columns := text.split("\t")) == 2]
    names = [cell.lower() for cell in rows[0]] if rows else []
    captions = [name in _CAPTION_NAMES for name in names]
    images = [name in _IMAGE_NAMES for name in names]
    header = int(bool(names) and captions != images and captions == [not each for each in images])
    is_plain = False
    if given:
        known = ["1", "2"]
        if given not in known and (not header or given.lower() not in names):
            raise ValueError(
                f"{path!r}: --caption-column {printable(repr(given), 60)}: expected 1 or 2, the place of the captions "
                f"in each line" + (f", or a name of its first line: {', '.join(names)}" if header else "")
            )
        found, why = (known.index(given) if given in known else names.index(given.lower())), "--caption-column"
    elif header:
        found, why = captions.index(True), "its first line names them"
    else:
        found, why = _likely(rows, root)
        is_plain = not found and not _count(rows, 0, is_web_url)
    other = "" if given else f"; --caption-column {2 - found} reads it the other way round"
    order = f"captions are read from column {found + 1}, images from column {2 - found}"
    level = logging.DEBUG if is_plain else logging.INFO  # the usual order, which nothing speaks against, is no news
    _log(os.path.abspath(path), level, f"{order}: {why}{other}")
    return TsvColumns(found, header)


@lru_cache(maxsize=64)  # a command opens a file several times
def _log(path: str, level: int, line: str) -> None:
    log.log(level, f"{os.path.basename(path)}: {line}")


def _likely(rows: list[list[str]], root: str | None) -> tuple[int, str]:
    """Place of the captions, and what speaks for it."""
    looked = f", of {counted(len(rows), 'line')} looked at"
    if root is not None:
        there = [_count(rows[:_PATHS_LOOKED_FOR], place, lambda name: _is_file(root, name)) for place in (0, 1)]
        if there[0] != there[1]:
            named = f"files that are there: {there[0]:,} in column 1, {there[1]:,} in column 2"
            return int(there[0] > there[1]), named + looked
    urls = _count(rows, 0, _is_url)
    images = _count(rows, 1, _is_url if root is None else _is_image)
    return int(urls > images), f"{counted(urls, 'URL')} in column 1, {counted(images, 'image')} in column 2{looked}"


def _count(rows: list[list[str]], place: int, is_one: Callable[[str], bool]) -> int:
    return sum(is_one(row[place]) for row in rows)


def _is_url(cell: str) -> bool:
    return is_web_url(cell) and len(cell.split(None, 1)) == 1  # a text that begins with a URL has blanks


def _is_image(cell: str) -> bool:
    return _is_url(cell) or (not is_web_url(cell) and os.path.splitext(cell)[1].lower() in IMAGE_EXTENSIONS)


def _is_file(root: str, name: str) -> bool:
    return (
        bool(name) and len(name) <= MAX_PATH_LETTERS and "\0" not in name and os.path.isfile(os.path.join(root, name))
    )


def read_caption_tsv(
    path: str, *, id_rule: str = "no-extension", columns: TsvColumns | None = None
) -> Iterator[CaptionRow | BadRow]:
    """Rows in file order; blank lines are passed over, URLs are bad rows: an image must be local."""
    for row in read_caption_rows(path, id_rule=id_rule, columns=columns):
        yield BadRow(row.line, "URL: download it and give the local path") if isinstance(row, UrlRow) else row


def read_caption_rows(
    path: str, *, id_rule: str = "no-extension", columns: TsvColumns | None = None
) -> Iterator[CaptionRow | UrlRow | BadRow]:
    """Rows in file order, of local images and of those at URLs; blank lines are passed over.

    Args:
        columns: as `columns_of` decides with the folder of the file as root, where it is None.
    """
    columns = columns or columns_of(path, root=os.path.dirname(os.path.abspath(path)))
    for row in _read_columns(path, columns):
        if isinstance(row, BadRow):
            yield row
            continue
        line, caption, name = row
        if is_web_url(name):
            yield UrlRow(line, caption, name)
        else:
            yield caption_row(line, caption, name, id_rule=id_rule)


def read_caption_urls(path: str, columns: TsvColumns | None = None) -> Iterator[UrlRow | BadRow]:
    """Rows in file order; blank lines are passed over, local paths are bad rows: here an image must have a URL."""
    for row in _read_columns(path, columns or columns_of(path)):
        if isinstance(row, BadRow):
            yield row
            continue
        line, caption, url = row
        yield UrlRow(line, caption, url) if is_web_url(url) else BadRow(line, "no http or https URL")


def _read_columns(path: str, columns: TsvColumns) -> Iterator[tuple[int, str, str] | BadRow]:
    """Line, caption and image of each row."""
    place, header = columns
    for row in read_lines(path):
        if isinstance(row, BadRow):
            yield row
            continue
        line, text = row
        if not text.strip():
            continue
        cells = text.split("\t")
        if len(cells) != 2:
            yield BadRow(line, "no tab" if len(cells) == 1 else f"{len(cells)} columns, expected 2")
            continue
        if header:
            header = 0
            continue
        caption, image = cells[place].strip(), cells[1 - place].strip()
        if not caption or not image:
            yield BadRow(line, EMPTY_CAPTION if not caption else "empty path")
        elif len(caption) > MAX_CAPTION_LETTERS:
            yield BadRow(line, LONG_CAPTION)
        else:
            yield line, caption, image
