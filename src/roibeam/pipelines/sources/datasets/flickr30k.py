"""Flickr30k: results_20130124.token, and the folder Sentences of Flickr30k Entities.

    results_20130124.token    lines "1000092795.jpg#0" TAB caption
    Sentences/36979.txt       a caption on each line, phrases marked: "[/EN#1/people Two men] in [/EN#2/scene a yard] ."

Id rule: the photo's file name without its extension ("36979"), as in Karpathy's split.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from roibeam.pipelines.sources.datasets.rows import BadRow, CaptionRow, caption_row, caption_text, read_lines

_PHRASE = re.compile(r"\[/EN#[0-9]+(?:/[^\s\]/]+)+ ([^\[\]]*)\]")
_CAPTION_NUMBER = re.compile(r"#[0-9]+")
_NAME = re.compile(r"[0-9]+\.txt", re.ASCII)


def read_token_file(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows in file order; blank lines are passed over.

    Raises:
        OSError: if the file cannot be read.
    """
    for row in read_lines(path):
        if isinstance(row, BadRow):
            yield row
            continue
        line, text = row
        if not text.strip():
            continue
        first, tab, caption = text.partition("\t")
        name, mark, number = first.strip().rpartition("#")
        if not tab or not _CAPTION_NUMBER.fullmatch(mark + number):
            yield BadRow(line, "not <photo>.jpg#<number> TAB caption")
            continue
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
