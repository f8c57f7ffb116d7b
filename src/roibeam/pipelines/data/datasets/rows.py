"""What readers of captions and lists share: a row, a row that cannot be used, and the lines of a text file."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from roibeam.features.counted import counted
from roibeam.pipelines.common.files.image_ids import image_id_of, is_utf8, path_below

Row = TypeVar("Row")

MAX_LINE_BYTES = 2**20  # the longest captions have 3 kB, the longest paragraphs of a corpus some 100 kB
MAX_CAPTION_LETTERS = 250_000  # with a path they fit a line, whatever letters they are
NOT_UTF8 = "not UTF-8"
OTHER_ENCODING = "perhaps cp1252, as Windows writes it: save the file as UTF-8"
OTHER_FIELDS = "another number of fields than the header"
EMPTY_CAPTION = "empty caption"
LONG_CAPTION = f"caption longer than {MAX_CAPTION_LETTERS} characters"


_UNITS = {"line": "lines", "entry": "entries", "row": "rows", "reference": "references"}


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
    """One row that cannot be used: its line or entry (from 1; of a list in a json object its index, from 0) and a short
    reason, the same for all rows of its kind."""

    line: int
    reason: str


class BadRows:
    """Counts rows that cannot be used, so that one line can say which.

    Args:
        unit: where a row stands in its file: "line", "entry", or the member of a json object whose list it is in, such
            as "annotations".
        what: it is.
    """

    def __init__(self, unit: str, what: str = "row") -> None:
        self._unit, self._what = unit, what
        self._reasons: Counter[str] = Counter()
        self._first: list[int] = []
        self._first_of: dict[str, int] = {}

    def __len__(self) -> int:
        return self._reasons.total()

    def add(self, row: BadRow, count: int = 1) -> None:
        self._reasons[row.reason] += count
        self._first_of.setdefault(row.reason, row.line)
        if len(self._first) < 10:
            self._first.append(row.line)

    @property
    def are_empty_captions(self) -> bool:
        """Whether there are bad rows, and all of them are empty captions."""
        return set(self._reasons) == {EMPTY_CAPTION}

    def passed(self, rows: Iterable[Row | BadRow]) -> Iterator[Row]:
        """The rows without the bad ones, which are counted as they come."""
        for row in rows:
            if isinstance(row, BadRow):
                self.add(row)
            else:
                yield row

    def by_reason(self) -> dict[str, int]:
        """How many there are of each reason, which is followed by the place of the first."""
        return {f"{reason} (first {self._place(self._first_of[reason])})": n for reason, n in self._reasons.items()}

    def notes(self) -> list[str]:
        """A line on the bad rows of those that passed, if there were any; one on their encoding if that is to blame."""
        total = len(self)
        if not total:
            return []
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self._reasons.items()))
        places = ", ".join(map(str if self._unit in _UNITS else self._place, self._first))
        units = (_UNITS[self._unit] if total > 1 else self._unit) + " " if self._unit in _UNITS else ""
        more = ", ..." if total > len(self._first) else ""
        # Of half a surrogate pair in a json file, which an entry may have, no encoding is to blame.
        cure = [f"what is {NOT_UTF8} is {OTHER_ENCODING}"] if self._unit == "line" and NOT_UTF8 in self._reasons else []
        return [f"{counted(total, self._what)} left out: {reasons} ({units}{places}{more})", *cure]

    def _place(self, line: int) -> str:
        return f"{self._unit} {line}" if self._unit in _UNITS else f"{self._unit}[{line}]"


def caption_text(value: Any) -> str:
    """A caption as a file has it -> as it is kept, without white space around it.

    Raises:
        ValueError: with a short reason, the same in all formats, so that rows can be counted by it.
    """
    if value is not None and not isinstance(value, str):
        raise ValueError("caption is no text")
    text = (value or "").strip()
    if not text:
        raise ValueError(EMPTY_CAPTION)
    if not is_utf8(text):
        raise ValueError("caption is not valid UTF-8")
    if len(text) > MAX_CAPTION_LETTERS:
        raise ValueError(LONG_CAPTION)
    return text


def caption_row(line: int, caption: str, name: str, *, id_rule: str) -> CaptionRow | BadRow:
    """The row of a local image; a bad one where `name` leads out of the image root."""
    try:
        below = path_below(name)
    except ValueError as error:
        return BadRow(line, str(error))
    return CaptionRow(line, caption, below, image_id_of(below, id_rule=id_rule))


def is_web_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def refuse_utf16(path: str) -> None:
    """Raises ValueError for a text file in the encoding that Windows calls Unicode; none of its lines could be read."""
    with open(path, "rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f'{path!r}: UTF-16, as Windows writes it ("Unicode"); save the file as UTF-8')


def read_lines(path: str) -> Iterator[tuple[int, str] | BadRow]:
    """Lines of a UTF-8 text file, numbered from 1, without their ends (LF or CRLF) and without a byte order mark.

    A line that is not UTF-8 or longer than 1 MiB is a bad row; never more than that is in memory.

    Raises:
        ValueError: if the file is UTF-16.
        OSError: if it cannot be read.
    """
    refuse_utf16(path)
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
                yield BadRow(line, NOT_UTF8)
