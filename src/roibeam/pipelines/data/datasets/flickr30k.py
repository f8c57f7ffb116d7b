"""Flickr30k and Flickr8k: their lists of photos and captions, and the folder Sentences of Flickr30k Entities.

    results_20130124.token    lines "1000092795.jpg#0" TAB caption; Flickr8k.token.txt too
    results.csv               Kaggle's Flickr30k: "image_name| comment_number| comment", then lines of these
    captions.txt              Kaggle's Flickr8k: "image,caption", then lines of these; a caption may hold commas
    Sentences/36979.txt       a caption on each line, phrases marked: "[/EN#1/people Two men] in [/EN#2/scene a yard] ."

A list is known by its first line, whatever it is called. Only a .csv that begins with "image,caption" is a table like
others (`image_list`), where a text with commas stands in quotes.

Id rule: the photo's file name without its extension ("36979"), as in Karpathy's split.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from roibeam.pipelines.data.datasets.rows import BadRow, CaptionRow, caption_row, caption_text, read_lines

_PHRASE = re.compile(r"\[/EN#[0-9]+(?:/[^\s\]/]+)+ ([^\[\]]*)\]")
_NAME = re.compile(r"[0-9]+\.txt", re.ASCII)


class _Layout(NamedTuple):
    """How a line gives the photo's name and the caption, what another line is not, and whether the first names them."""

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
    """How a list of photos and captions is written, by its first line that is not blank; None for another file.

    Raises:
        OSError: if the file cannot be read.
    """
    first = next((row[1] for row in read_lines(path) if not isinstance(row, BadRow) and row[1].strip()), "")
    if _TOKEN_LINE.match(first):
        return _TOKEN
    found = _HEADERS.get(re.sub(r'[\s"]', "", first).lower())
    return None if found is _COMMA and path.lower().endswith(".csv") else found


def read_caption_lines(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows of a list of photos and captions in file order; blank lines are passed over. A list of which the first line
    does not tell is read as a .token.

    Raises:
        OSError: if the file cannot be read.
    """
    layout = caption_layout(path) or _TOKEN
    is_header = layout.has_header
    for row in read_lines(path):
        if isinstance(row, BadRow):
            yield row
            continue
        line, text = row
        if not text.strip():
            continue
        if is_header:
            is_header = False
            continue
        cells = layout.row.fullmatch(text)
        if cells is None:
            yield BadRow(line, layout.wrong)
            continue
        name, caption = cells[1].strip(), cells[2].strip()
        if layout is _COMMA and (quoted := _QUOTED.fullmatch(caption)):
            caption = quoted[1].replace('""', '"').strip()
        try:
            yield caption_row(line, caption_text(caption), name, id_rule=id_rule)
        except ValueError as error:
            yield BadRow(line, str(error))


def is_sentence_folder(folder: str) -> bool:
    """Whether it is Flickr30k Entities' folder Sentences, by its name and a file in it."""
    if os.path.basename(os.path.normpath(folder)) != "Sentences":
        return False
    with os.scandir(folder) as entries:
        return any(_NAME.fullmatch(entry.name) for entry in entries)


def read_sentence_folder(folder: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The number of each photo and its captions without marks, in the order of the file names.

    Raises:
        ValueError: naming the file and line that is not UTF-8.
        OSError: if the folder or a file cannot be read.
    """
    for name in sorted(filter(_NAME.fullmatch, os.listdir(folder))):
        captions = []
        for row in read_lines(os.path.join(folder, name)):
            if isinstance(row, BadRow):
                raise ValueError(f"{os.path.join(folder, name)!r}, line {row.line}: {row.reason}")
            if text := _PHRASE.sub(r"\1", row[1]).strip():
                captions.append(text)
        yield name.removesuffix(".txt"), tuple(captions)
