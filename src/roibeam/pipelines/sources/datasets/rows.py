"""What readers of captions and lists share: a row, a row that cannot be used, and the lines of a text file."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from roibeam.pipelines.foundation.files.image_ids import image_id_of, path_below

Row = TypeVar("Row")

MAX_LINE_BYTES = 2**20  # the longest captions have 3 kB, the longest paragraphs of a corpus some 100 kB


@dataclass(frozen=True)
class CaptionRow:
    """One usable row: its line or entry (from 1), caption, image path below the image root, and image id."""

    line: int
    caption: str
    path: str
    image_id: str


@dataclass(frozen=True)
class UrlRow:
    """One row of an image that is not here yet: its line or entry (from 1), caption, and http or https URL."""

    line: int
    caption: str
    url: str


@dataclass(frozen=True)
class BadRow:
    """One row that cannot be used: its line or entry (from 1) and a short reason, the same for all rows of its kind."""

    line: int
    reason: str


class BadRows:
    """Counts rows that cannot be used, so that one line can say which.

    Args:
        unit: what a row is to whoever looks for it, "line" or "entry".
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._reasons: Counter[str] = Counter()
        self._first: list[int] = []

    def passed(self, rows: Iterable[Row | BadRow]) -> Iterator[Row]:
        """The rows without the bad ones, which are counted as they come."""
        for row in rows:
            if not isinstance(row, BadRow):
                yield row
                continue
            self._reasons[row.reason] += 1
            if len(self._first) < 10:
                self._first.append(row.line)

    def notes(self) -> list[str]:
        """One line on the bad rows of those that passed, if there were any."""
        total = self._reasons.total()
        if not total:
            return []
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self._reasons.items()))
        lines = ", ".join(map(str, self._first)) + (", ..." if total > len(self._first) else "")
        rows_left_out = "row left out" if total == 1 else "rows left out"
        units = self._unit if total == 1 else {"line": "lines", "entry": "entries"}[self._unit]
        return [f"{total} {rows_left_out}: {reasons} ({units} {lines})"]


def caption_row(line: int, caption: str, name: str, *, id_rule: str) -> CaptionRow | BadRow:
    """The row of a local image; a bad one where `name` leads out of the image root."""
    try:
        below = path_below(name)
    except ValueError as error:
        return BadRow(line, str(error))
    return CaptionRow(line, caption, below, image_id_of(below, id_rule=id_rule))


def is_web_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def read_lines(path: str) -> Iterator[tuple[int, str] | BadRow]:
    """Lines of a UTF-8 text file, numbered from 1, without their ends (LF or CRLF) and without a byte order mark.

    A line that is not UTF-8 or longer than 1 MiB is a bad row; never more than that is in memory.

    Raises:
        OSError: if the file cannot be read.
    """
    with open(path, "rb") as file:
        line = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            line += 1
            if len(raw) > MAX_LINE_BYTES:
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(MAX_LINE_BYTES)
                yield BadRow(line, f"longer than {MAX_LINE_BYTES} bytes")
                continue
            if line == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            try:
                yield line, raw.rstrip(b"\r\n").decode("utf-8")
            except UnicodeDecodeError:
                yield BadRow(line, "not UTF-8")
