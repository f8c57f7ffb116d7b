"""Dependency parses of captions as CoNLL files: a word on each line, a blank line between sentences.

    # sent_id = 36979#0
    1   A     _  _  _  _  2  det    _  _

With eight columns or more (CoNLL-X, CoNLL-U) the head is the seventh and the label the eighth; four are number, word,
head, label. Columns are apart by tabs. `sent_id` tells the image and the number of the caption; where no sentence
has one, sentences are those of the captions in their order. Words of several tokens and empty nodes are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from roibeam.pipelines.data.datasets.rows import BadRow, read_lines

ROOT = -1
_SENT_ID = re.compile(r"#\s*sent_id\s*=\s*(.*\S)")
_PASSED_OVER = re.compile(r"[0-9]+[-.][0-9]+")
_COLUMNS = {4: (2, 3), 8: (6, 7)}  # of the head and the label
MAX_WORDS = 1000


@dataclass(frozen=True)
class Parse:
    """One sentence.

    Attributes:
        where: file and line, for errors.
        sent_id: as the file has it; None where it has none.
        words, heads, labels: of equal length; a head is the place of a word, from 0, or `ROOT`.
    """

    where: str
    sent_id: str | None
    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]


def read_conll(path: str) -> Iterator[Parse]:
    """In file order.

    Raises:
        ValueError: naming the line that is not as CoNLL has it, or whose head is no word of its sentence.
        OSError: if the file cannot be read.
    """
    rows: list[tuple[int, list[str]]] = []
    sent_id: str | None = None
    for row in read_lines(path):
        if isinstance(row, BadRow):
            raise ValueError(f"{path!r}, line {row.line}: {row.reason}")
        line, text = row
        if text.startswith("#"):
            found = _SENT_ID.match(text)
            sent_id = found[1] if found else sent_id
        elif text.strip():
            rows.append((line, text.split("\t")))
            if len(rows) > MAX_WORDS:
                raise ValueError(
                    f"{path!r}, line {line}: a sentence of over {MAX_WORDS} words; sentences end with a blank line"
                )
        elif rows:
            yield _parse(path, sent_id, rows)
            rows, sent_id = [], None
    if rows:
        yield _parse(path, sent_id, rows)


def _parse(path: str, sent_id: str | None, rows: list[tuple[int, list[str]]]) -> Parse:
    words, heads, labels = [], [], []
    kept = [row for row in rows if not _PASSED_OVER.fullmatch(row[1][0])]
    for place, (line, columns) in enumerate(kept):
        where = f"{path!r}, line {line}"
        known = _COLUMNS.get(min(len(columns), 8))
        if known is None or columns[0] != str(place + 1):
            raise ValueError(
                f"{where}: expected word {place + 1} of its sentence in four columns (number, word, head, label) or in "
                f"ten of CoNLL, apart by tabs; got {len(columns)}"
            )
        head, label = (columns[each] for each in known)
        if not head.isascii() or not head.isdecimal() or not 0 <= int(head) <= len(kept):
            raise ValueError(f"{where}: head {head!r} is no word of its sentence, which has {len(kept)}")
        words.append(columns[1])
        heads.append(int(head) - 1)
        labels.append(label)
    return Parse(f"{path!r}, line {rows[0][0]}", sent_id, tuple(words), tuple(heads), tuple(labels))
