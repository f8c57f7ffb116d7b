"""A corpus without images, in the form that BERT's own pre-training data has: one sentence or paragraph on each line,
a blank line between documents, UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from roibeam.pipelines.data.datasets.rows import BadRow, read_lines


@dataclass(frozen=True)
class TextLine:
    """One line: its number (from 1), its document's (from 0), and its text without white space around it."""

    line: int
    document: int
    text: str


NO_TEXT = "no text in it; expected UTF-8, a sentence or paragraph on each line"


def check_has_text(path: str) -> None:
    """Reads a corpus up to its first line of text.

    Raises:
        ValueError: where there is none.
    """
    if not any(isinstance(row, TextLine) for row in read_text_corpus(path)):
        raise ValueError(f"{path}: {NO_TEXT}")


def read_text_corpus(path: str) -> Iterator[TextLine | BadRow]:
    """Lines in file order; lines of one document follow each other. Bad lines are in a document, but do not begin one.

    Raises:
        OSError: if the file cannot be read.
    """
    document = 0
    has_text = False  # several blank lines in a row, or at the beginning, part nothing
    for row in read_lines(path):
        if isinstance(row, BadRow):
            yield row
            continue
        line, text = row[0], row[1].strip()
        if text:
            has_text = True
            yield TextLine(line, document, text)
        elif has_text:
            document += 1
            has_text = False
