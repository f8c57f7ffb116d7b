"""Lists of images with captions: Conceptual Captions, SBU, Flickr30k and Flickr8k, and a user's own JSON list.

    *.tsv                         Conceptual Captions: caption TAB image, no quoting; 12M: URL TAB caption. The order is
                                  decided once for a file (`columns_of`)
    sbu-captions-all.json         parallel lists "image_urls", "user_ids", "captions"
    results_20130124.token        "1000092795.jpg#0" TAB caption; Flickr8k.token.txt, Kaggle's results.csv, captions.txt
    Sentences/36979.txt           a caption on each line, phrases marked

A list of Flickr is known by its first line. Only a .csv that begins with "image,caption" is a table like others. Id
rule: the local path, or the last part of a URL as wget saves it, without its extension ("images/a.jpg" -> "images/a").
Several captions may name one image.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from roibeam.extraction.photos.image_ref import IMAGE_EXTENSIONS
from roibeam.messages import plural, printable
from roibeam.pipelines.common.image_ids import MAX_PATH_LETTERS, image_id_of, is_utf8, path_below
from roibeam.pipelines.common.scratch_database import ScratchDatabase
from roibeam.pipelines.data.datasets.image_list import CAPTION_COLUMNS, ID_COLUMNS, IMAGE_COLUMNS
from roibeam.pipelines.data.datasets.rows import (
    EMPTY_CAPTION,
    LONG_CAPTION,
    MAX_CAPTION_LETTERS,
    NO_URL,
    BadRow,
    CaptionRow,
    UrlRow,
    caption_row,
    caption_text,
    is_web_url,
    parsed_rows,
    read_json_list,
    read_json_members,
    read_lines,
)
from roibeam.pipelines.data.datasets.tables import CAPTION_NAMES, URL_NAMES

log = logging.getLogger(__name__)
_CAPTION_NAMES = frozenset((*CAPTION_COLUMNS, *CAPTION_NAMES))
_IMAGE_NAMES = frozenset((*IMAGE_COLUMNS, *ID_COLUMNS, *URL_NAMES, "id"))
_LINES_LOOKED_AT = 1000
_PATHS_LOOKED_FOR = 100


class TsvColumns(NamedTuple):
    """Columns of all rows of a file.

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
    first. Raises ValueError if what is given is no column of the file.

    Args:
        given: "1" or "2", the column of the captions, or its name in the header; "" to decide.
        root: folder that local paths are below; None where images must have URLs.
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
    looked = f", of {plural(len(rows), 'line')} looked at"
    if root is not None:
        there = [_count(rows[:_PATHS_LOOKED_FOR], place, lambda name: _is_file(root, name)) for place in (0, 1)]
        if there[0] != there[1]:
            named = f"files that are there: {there[0]:,} in column 1, {there[1]:,} in column 2"
            return int(there[0] > there[1]), named + looked
    urls = _count(rows, 0, _is_url)
    images = _count(rows, 1, _is_url if root is None else _is_image)
    return int(urls > images), f"{plural(urls, 'URL')} in column 1, {plural(images, 'image')} in column 2{looked}"


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

    def parse(line: int, cells: tuple[str, str]) -> CaptionRow | UrlRow:
        caption, name = cells
        return UrlRow(line, caption, name) if is_web_url(name) else caption_row(line, caption, name, id_rule=id_rule)

    columns = columns or columns_of(path, root=os.path.dirname(os.path.abspath(path)))
    return parsed_rows(_read_columns(path, columns), parse)


def read_caption_urls(path: str, columns: TsvColumns | None = None) -> Iterator[UrlRow | BadRow]:
    """Rows in file order; blank lines are passed over, local paths are bad rows: here an image must have a URL."""

    def parse(line: int, cells: tuple[str, str]) -> UrlRow:
        if not is_web_url(cells[1]):
            raise ValueError(NO_URL)
        return UrlRow(line, *cells)

    return parsed_rows(_read_columns(path, columns or columns_of(path)), parse)


def _read_columns(path: str, columns: TsvColumns) -> Iterator[tuple[int, tuple[str, str]] | BadRow]:
    """Line, and caption and image, of each row."""
    place, header = columns

    def parse(line: int, text: str) -> tuple[int, tuple[str, str]] | None:
        nonlocal header
        if not text.strip():
            return None
        cells = text.split("\t")
        if len(cells) != 2:
            raise ValueError("no tab" if len(cells) == 1 else f"{len(cells)} columns, expected 2")
        if header:
            header = 0
            return None
        caption, image = cells[place].strip(), cells[1 - place].strip()
        if not caption or not image:
            raise ValueError(EMPTY_CAPTION if not caption else "empty path")
        if len(caption) > MAX_CAPTION_LETTERS:
            raise ValueError(LONG_CAPTION)
        return line, (caption, image)

    return parsed_rows(read_lines(path), parse)


_SBU_EXPECTED = 'an SBU file with "image_urls" and "captions" lists'


def read_sbu(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows in file order, numbered from 1. The file has all URLs before the captions: they wait on disk. Raises
    ValueError if the file is no such json, or its lists differ in length: then no caption is sure of its photo."""
    url_of: dict[int, int] = {}  # of a million rows: hashes take a third of what the texts would

    def parse(row: int, pair: tuple[str | None, str | None]) -> CaptionRow:
        name, text = _local_name(pair[0]), caption_text(pair[1])
        if url_of.setdefault(hash(name), hash(pair[0])) != hash(pair[0]):
            raise ValueError("another URL ends in the same file name")
        return CaptionRow(row, text, name, image_id_of(name, id_rule=id_rule))

    return parsed_rows(enumerate(_read_pairs(path), start=1), parse)


def read_sbu_urls(path: str) -> Iterator[UrlRow | BadRow]:
    """Rows in file order, numbered from 1; errors as `read_sbu`."""

    def parse(row: int, pair: tuple[str | None, str | None]) -> UrlRow:
        url, caption = pair
        if url is None or not is_utf8(url) or not is_web_url(url.strip()):
            raise ValueError(NO_URL)
        return UrlRow(row, caption_text(caption), url.strip())

    return parsed_rows(enumerate(_read_pairs(path), start=1), parse)


def _read_pairs(path: str) -> Iterator[tuple[str | None, str | None]]:
    """The file's image_urls and captions, None for what is no text."""
    table = ScratchDatabase("CREATE TABLE image_urls (entry BLOB)", "CREATE TABLE captions (entry BLOB)")
    counts: dict[str, int] = {}
    members = read_json_members(path, expected=_SBU_EXPECTED)
    for name, group in itertools.groupby(members, key=lambda member: member[0]):
        if name not in ("image_urls", "captions", "user_ids"):
            continue
        entries = [next(group)]
        if entries[0][1] is None:
            if entries[0][2] == []:
                counts[name] = 0
            continue
        rows = ((_bytes(entry),) for _, _, entry in itertools.chain(entries, group))
        if name == "user_ids":
            counts[name] = sum(1 for _ in rows)
            continue
        table.add(f"INSERT INTO {name} VALUES (?)", rows)
        counts[name] = table.rows(f"SELECT coalesce(max(rowid), 0) FROM {name}")[0][0]
    if not {"image_urls", "captions"} <= counts.keys():
        raise ValueError(f"{path!r}: expected {_SBU_EXPECTED}, got other json")
    num_urls, num_captions, num_users = (counts.get(name, 0) for name in ("image_urls", "captions", "user_ids"))
    if num_urls != num_captions or num_users not in (0, num_urls):
        raise ValueError(
            f"{path!r}: {num_urls} image_urls, {num_users} user_ids and {num_captions} captions; the lists of an SBU "
            f"file are of one length, and row k of each is of photo k"
        )
    pairs = "FROM image_urls JOIN captions ON captions.rowid = image_urls.rowid ORDER BY image_urls.rowid"
    for url, caption in table.stream(f"SELECT image_urls.entry, captions.entry {pairs}"):
        yield _text(url), _text(caption)


def _bytes(entry: Any) -> bytes | None:
    # Bytes, since json may hold half a surrogate pair, which is no text to a database.
    return entry.encode("utf-8", "surrogatepass") if isinstance(entry, str) else None


def _text(entry: bytes | None) -> str | None:
    return None if entry is None else entry.decode("utf-8", "surrogatepass")


def _local_name(url: Any) -> str:
    """Raises ValueError with a short reason, so that rows can be counted by it."""
    if not isinstance(url, str) or not url.strip():
        raise ValueError("no URL")
    if not is_web_url(url):
        return path_below(url)
    try:
        name = urlsplit(url).path.rpartition("/")[2]
    except ValueError:
        raise ValueError("not a URL") from None
    if not name:
        raise ValueError("URL names no file")
    return path_below(name)


_PHRASE = re.compile(r"\[/EN#[0-9]+(?:/[^\s\]/]+)+ ([^\[\]]*)\]")
_NAME = re.compile(r"[0-9]+\.txt", re.ASCII)


class _Layout(NamedTuple):
    """Form of a line with photo name and caption, the error for other lines, and whether the first line names them."""

    row: re.Pattern[str]
    wrong: str
    has_header: bool = True


_TOKEN = _Layout(re.compile(r"([^\t]*)#[0-9]+\s*\t(.*)"), "not <photo>.jpg#<number> TAB caption", has_header=False)
_TOKEN_LINE = re.compile(r"\S+\.[a-z]{3,4}(?:\.[0-9]+)?#[0-9]+\t", re.IGNORECASE)  # Flickr8k has one ".jpg.1"
_COMMA = _Layout(re.compile(r"([^,]*),(.*)"), "not <photo>.jpg,caption")
_HEADERS = {
    "image_name|comment_number|comment": _Layout(
        re.compile(r"([^|]*)\|\s*[0-9]+\s*\|(.*)"), "not <photo>.jpg| <number>| caption"
    ),
    "image,caption": _COMMA,
}
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def caption_layout(path: str) -> _Layout | None:
    """Layout of a list of photos and captions, by its first line that is not blank; None for another file."""
    first = next((row[1] for row in read_lines(path) if not isinstance(row, BadRow) and row[1].strip()), "")
    if _TOKEN_LINE.match(first):
        return _TOKEN
    found = _HEADERS.get(re.sub(r'[\s"]', "", first).lower())
    return None if found is _COMMA and path.lower().endswith(".csv") else found


def read_caption_lines(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows of a list of photos and captions in file order; blank lines are passed over. A list whose first line fits
    no layout is read as a .token.
    """
    layout = caption_layout(path) or _TOKEN
    is_header = layout.has_header

    def parse(line: int, text: str) -> CaptionRow | None:
        nonlocal is_header
        if not text.strip():
            return None
        if is_header:
            is_header = False
            return None
        cells = layout.row.fullmatch(text)
        if cells is None:
            raise ValueError(layout.wrong)
        name, caption = cells[1].strip(), cells[2].strip()
        if layout is _COMMA and (quoted := _QUOTED.fullmatch(caption)):
            caption = quoted[1].replace('""', '"').strip()
        return caption_row(line, caption_text(caption), name, id_rule=id_rule)

    return parsed_rows(read_lines(path), parse)


def is_sentence_folder(folder: str) -> bool:
    """Whether it is Flickr30k Entities' folder Sentences, by its name and a file in it."""
    if os.path.basename(os.path.normpath(folder)) != "Sentences":
        return False
    with os.scandir(folder) as entries:
        return any(_NAME.fullmatch(entry.name) for entry in entries)


def read_sentence_folder(folder: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The number of each photo and its captions without marks, in the order of the file names. Raises ValueError,
    naming the file and line that is not UTF-8."""
    for name in sorted(filter(_NAME.fullmatch, os.listdir(folder))):
        captions = []
        for row in read_lines(os.path.join(folder, name)):
            if isinstance(row, BadRow):
                raise ValueError(f"{os.path.join(folder, name)!r}, line {row.line}: {row.reason}")
            if text := _PHRASE.sub(r"\1", row[1]).strip():
                captions.append(text)
        yield name.removesuffix(".txt"), tuple(captions)


# The first that an entry has: the list "annotations" of a COCO file has an "id" of the caption, too.
IMAGE_KEYS = ("image", "image_id", "id")
EXPECTED = f'a list of {{"image_id": ..., "caption": ...}}; for "image_id" also {", ".join(IMAGE_KEYS[::2])}'


def read_caption_list(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows in file order, numbered from 1; "caption" may be a list of texts, each of which is a row of that number.
    Raises ValueError if the file is no JSON list."""
    for number, entry in enumerate(read_json_list(path, expected=EXPECTED), start=1):
        name, captions = _name(entry), entry.get("caption") if isinstance(entry, dict) else None
        for caption in captions if isinstance(captions, list) else [captions]:
            try:
                if name is None:
                    raise ValueError(f"none of {', '.join(IMAGE_KEYS)}")
                yield caption_row(number, caption_text(caption), name, id_rule=id_rule)
            except ValueError as error:
                yield BadRow(number, str(error))


# Kind of a file, as `known_files` calls it.
CAPTION_READERS = {"sbu": read_sbu, "caption-list": read_caption_list, "flickr30k": read_caption_lines}


def _name(entry: Any) -> str | None:
    """A path or an id, perhaps a number."""
    values = [entry.get(key) for key in IMAGE_KEYS] if isinstance(entry, dict) else []
    found = next((each for each in values if type(each) in (str, int) and each != ""), None)
    return None if found is None else str(found)
