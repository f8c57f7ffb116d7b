"""Tables in .csv files of strangers, with a header: the one reader of them.

A quote that is not closed costs its own row, and none below. A row with more or fewer fields than the header is a bad
row: a comma outside quotes has moved what stands behind it.
"""

from __future__ import annotations

import csv
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.pipelines.common.files.image_ids import is_utf8
from roibeam.pipelines.data.datasets.rows import NOT_UTF8, OTHER_ENCODING, OTHER_FIELDS, BadRow, refuse_utf16

_OPEN_QUOTE = "quote that is opened there and not closed"


def read_csv_table(path: str) -> tuple[list[str], Iterator[tuple[int, list[str]] | BadRow]]:
    """The names of the columns, without white space around them; and (line, fields) of each row that is not blank,
    lines numbered from 1. A row has as many fields as there are names. Bytes that are no UTF-8 come as lone surrogates.

    Raises:
        ValueError: if the first row cannot be read, or names two columns alike.
        OSError: if the file cannot be read.
    """
    return _opened(path, checks_width=True)


def read_strict_csv(path: str) -> Iterator[dict[str, str]]:
    """The rows of a table of which none may be missing, by the names of their columns.

    Raises:
        ValueError: as `read_csv_table`, and naming the first row that is a bad one.
        OSError: if the file cannot be read.
    """
    names, rows = _opened(path, checks_width=False)
    for number, row in enumerate(rows):
        line, fields = (row.line, []) if isinstance(row, BadRow) else row
        if isinstance(row, BadRow):
            reason = row.reason
        elif len(fields) != len(names):
            reason = (
                f"{counted(len(fields), 'field')}, the header has {len(names)}; a text with commas stands in quotes"
            )
        elif not is_utf8("".join(fields)):
            reason = f"{NOT_UTF8}; {OTHER_ENCODING}"
        else:
            yield dict(zip(names, fields, strict=True))
            continue
        raise ValueError(f"{path!r}, row {number} (line {line}): {reason}")


def _opened(path: str, *, checks_width: bool) -> tuple[list[str], Iterator[tuple[int, list[str]] | BadRow]]:
    """The names of the columns, and all rows below."""
    rows = _rows(path, checks_width=checks_width)
    header = next(rows, None)
    if header is None or isinstance(header, BadRow):
        raise ValueError(f"{path!r}: nothing in it, expected a table whose first line names the columns")
    names = [name.strip() for name in header[1]]
    refuse_same_names(path, names)
    return names, rows


def refuse_same_names(path: str, names: Sequence[str]) -> None:
    """Raises ValueError when two columns of a table have one name, in any letter case: which is meant cannot be known.

    Names that are empty, as of the columns that spreadsheets leave behind, may be there more than once.
    """
    again = [name for name, count in Counter(name.strip().lower() for name in names).items() if name and count > 1]
    if again:
        raise ValueError(
            f"{path!r}: two columns are called {printable(repr(again[0]), 60)}; rename one or take it out; it has "
            f"{printable(', '.join(names), 200)}"
        )


def _rows(path: str, *, checks_width: bool) -> Iterator[tuple[int, list[str]] | BadRow]:
    """(line, fields) of each row that is not blank, the header first.

    Args:
        checks_width: whether a row of another number of fields than the header is a bad one.
    """
    refuse_utf16(path)
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _Lines(file)
        reader = csv.reader(lines)
        width: int | None = None  # of the header
        while True:
            line = lines.begin_row()
            try:
                values = next(reader, None)
            except csv.Error as error:  # a field without end
                if len(lines.taken) == 1:
                    raise ValueError(f"{path!r}, line {line}: not a csv file ({error})") from None
                values = []
            if values is not None and (lines.is_at_end or len(lines.taken) > 1) and lines.have_open_quote():
                if width is None:
                    raise ValueError(f"{path!r}, line {line}: not a csv file ({_OPEN_QUOTE})")
                lines.put_back()
                yield BadRow(line, _OPEN_QUOTE)
            elif values is None:
                return
            elif width is None:
                width = len(values)
                yield line, values
            elif values:
                yield (line, values) if len(values) == width or not checks_width else BadRow(line, OTHER_FIELDS)


class _Lines(Iterator[str]):
    """The lines of a csv file, of which those after the first of a row can be put back.

    Attributes:
        taken: of the row that is being read.
        is_at_end: whether it was read on to the end of the file.
    """

    def __init__(self, file: Iterator[str]) -> None:
        self._file, self._waiting, self._last = file, deque[str](), 0
        self.is_at_end = False
        self.taken: list[str] = []

    def __next__(self) -> str:
        try:
            line = self._waiting.popleft() if self._waiting else next(self._file)
        except StopIteration:
            self.is_at_end = True
            raise
        self.taken.append(line)
        return line

    def begin_row(self) -> int:
        """The number of its first line, from 1."""
        self._last += len(self.taken)
        self.taken.clear()
        self.is_at_end = False  # lines that were put back follow
        return self._last + 1

    def put_back(self) -> None:
        self._waiting.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]

    def have_open_quote(self) -> bool:
        """Whether a row goes on over several lines, or to the end of the file, because a quote in the first line is not
        closed.

        The next quote below is inside a field then, there is none, or a field gets longer than any.
        """
        if not self.taken:
            return False
        try:
            next(csv.reader(self.taken, strict=True))
        except csv.Error:
            return True
        return False
