"""Rows of a .csv file of strangers: a quote that is not closed costs its own row, and none below."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator

from roibeam.pipelines.sources.datasets.rows import BadRow

_OPEN_QUOTE = "quote that is opened there and not closed"


def read_csv_rows(path: str) -> Iterator[tuple[int, list[str]] | BadRow]:
    """(line, fields) of each row that is not blank, the header first; lines are numbered from 1. Bytes that are no
    UTF-8 come as lone surrogates.

    Raises:
        ValueError: if the first row cannot be read.
        OSError: if the file cannot be read.
    """
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _Lines(file)
        reader = csv.reader(lines)
        has_header = False
        while True:
            line = lines.begin_row()
            try:
                values = next(reader, None)
            except csv.Error as error:  # a field without end
                if len(lines.taken) == 1:
                    raise ValueError(f"{path!r}, line {line}: not a csv file ({error})") from None
                values = []
            if values is not None and _has_open_quote(lines.taken):
                if not has_header:
                    raise ValueError(f"{path!r}, line {line}: not a csv file ({_OPEN_QUOTE})")
                lines.put_back()
                yield BadRow(line, _OPEN_QUOTE)
            elif values is None:
                return
            elif values or not has_header:
                has_header = True
                yield line, values


class _Lines(Iterator[str]):
    """The lines of a csv file, of which those after the first of a row can be put back.

    Attributes:
        taken: of the row that is being read.
    """

    def __init__(self, file: Iterator[str]) -> None:
        self._file, self._waiting, self._last = file, deque[str](), 0
        self.taken: list[str] = []

    def __next__(self) -> str:
        self.taken.append(self._waiting.popleft() if self._waiting else next(self._file))
        return self.taken[-1]

    def begin_row(self) -> int:
        """The number of its first line, from 1."""
        self._last += len(self.taken)
        self.taken.clear()
        return self._last + 1

    def put_back(self) -> None:
        self._waiting.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]


def _has_open_quote(lines: list[str]) -> bool:
    """Whether a row goes on over several lines because a quote in the first is not closed.

    The next quote below is inside a field then, there is none, or a field gets longer than any.
    """
    if len(lines) < 2:
        return False
    try:
        next(csv.reader(lines, strict=True))
    except csv.Error:
        return True
    return False
