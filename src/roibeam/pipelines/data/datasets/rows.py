"""Shared parts of all readers: official file names, rows, bad rows, lines of a text file, JSON piece by piece.

COCO's and SBU's files hold lists of a million entries, too many to be objects at once; VCR and lists of boxes have an
object on each line. Only the text between two pieces is parsed here (braces, commas, member names); each piece is
decoded by the json module.
"""

from __future__ import annotations

import codecs
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from roibeam.messages import plural
from roibeam.pipelines.common.image_ids import image_id_of, is_utf8, path_below


class MissingFileError(ValueError):
    """A folder does not have a file of a data set."""


def find_file(folder: Path, *names: str) -> Path:
    """The file of one of these names in the folder or in a folder right below it; the first name comes first. Raises
    ValueError when there is none, or several of one name."""
    for name in names:
        found = sorted({*folder.glob(_literal(name)), *folder.glob(f"*/{_literal(name)}")})
        if (folder / name) in found:
            return folder / name
        if len(found) > 1:
            raise ValueError(f"--data {str(folder)!r} holds {name} twice: {found[0]} and {found[1]}; name one's folder")
        if found:
            return found[0]
    raise MissingFileError(f"--data {str(folder)!r} holds no {' or '.join(names)}, in itself or in a folder of it")


def _literal(name: str) -> str:
    return name.replace("[", "[[]")


Row = TypeVar("Row")
Content = TypeVar("Content")

MAX_LINE_BYTES = 2**20  # the longest captions have 3 kB, the longest paragraphs of a corpus some 100 kB
MAX_CAPTION_LETTERS = 250_000  # with a path they fit a line, whatever letters they are
NOT_UTF8 = "not UTF-8"
OTHER_ENCODING = "perhaps cp1252, as Windows writes it: save the file as UTF-8"
OTHER_FIELDS = "another number of fields than the header"
EMPTY_CAPTION = "empty caption"
LONG_CAPTION = f"caption longer than {MAX_CAPTION_LETTERS} characters"
NO_URL = "no http or https URL"


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
    """Counts unusable rows, for one line in the log.

    Args:
        unit: where a row stands in its file: "line", "entry", or the member of a json object whose list it is in, such
            as "annotations".
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
        """Count of each reason, which is followed by the place of its first row."""
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
        # Half a surrogate pair in a json file is the entry's fault, not the encoding's.
        cure = [f"what is {NOT_UTF8} is {OTHER_ENCODING}"] if self._unit == "line" and NOT_UTF8 in self._reasons else []
        return [f"{plural(total, self._what)} left out: {reasons} ({units}{places}{more})", *cure]

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


def caption_row(line: int, caption: str, name: str, *, id_rule: str) -> CaptionRow:
    """The row of a local image. Raises ValueError, with a short reason, where `name` leads out of the image root."""
    below = path_below(name)
    return CaptionRow(line, caption, below, image_id_of(below, id_rule=id_rule))


def parsed_rows(
    rows: Iterable[tuple[int, Content] | BadRow], parse: Callable[[int, Content], Row | None]
) -> Iterator[Row | BadRow]:
    """Each row as `parse` makes it of its line and content; bad rows stay.

    Args:
        parse: a ValueError of it makes a bad row, whose reason it is; None passes a row over.
    """
    for row in rows:
        found: Row | BadRow | None
        if isinstance(row, BadRow):
            found = row
        else:
            try:
                found = parse(*row)
            except ValueError as error:
                found = BadRow(row[0], str(error))
        if found is not None:
            yield found


def are_texts(value: Any) -> bool:
    """Whether a value of a json file is a list of texts that UTF-8 can write."""
    return isinstance(value, list) and all(isinstance(each, str) and is_utf8(each) for each in value)


def is_number(value: Any) -> bool:
    """Whether a value of a json file is a finite number; true and false are none."""
    return type(value) in (int, float) and math.isfinite(value)


def is_web_url(text: str) -> bool:
    """Whether it is a web address, which only `roibeam download` fetches, with the limits that the open web needs."""
    return text.lower().startswith(("http://", "https://"))


def refuse_utf16(path: str) -> None:
    """Raises ValueError for a text file in the encoding that Windows calls Unicode; none of its lines could be read."""
    with open(path, "rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f'{path!r}: UTF-16, as Windows writes it ("Unicode"); save the file as UTF-8')


def read_lines(path: str) -> Iterator[tuple[int, str] | BadRow]:
    """Lines of a UTF-8 text file, numbered from 1, without their ends (LF or CRLF) and without a byte order mark.

    A line that is not UTF-8 or longer than 1 MiB is a bad row; never more than that is in memory. Raises ValueError if
    the file is UTF-16."""
    refuse_utf16(path)
    for line, raw in _bounded_lines(path, MAX_LINE_BYTES):
        if raw is None:
            yield BadRow(line, f"longer than {MAX_LINE_BYTES} bytes")
            continue
        try:
            yield line, raw.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError:
            yield BadRow(line, NOT_UTF8)


def _bounded_lines(path: str, most: int) -> Iterator[tuple[int, bytes | None]]:
    """The number of each line from 1, and its bytes without a byte order mark; None for more than `most` bytes."""
    with open(path, "rb") as file:
        line = 0
        while raw := file.readline(most + 1):
            line += 1
            is_long = len(raw) > most
            while is_long and raw and not raw.endswith(b"\n"):
                raw = file.readline(most)
            yield line, None if is_long else raw.removeprefix(codecs.BOM_UTF8) if line == 1 else raw


MAX_JSON_BYTES = 64 * 2**20  # of a file that is read as a whole
MAX_ENTRY_CHARACTERS = 16 * 2**20  # COCO's largest entries, outlines of crowds, have under 1 MB
_CHUNK_CHARACTERS = 2**20
MAX_JSON_LINE_BYTES = 16 * 2**20  # 65,535 boxes take about 4 MB
_WHITESPACE = " \t\n\r"
_DECODER = json.JSONDecoder()


def read_small_json(path: str, *, too_long: str, no_json: str) -> Any:
    """The value of a json file of at most 64 MiB, with or without a byte order mark."""
    with open(path, "rb") as file:
        data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(too_long)
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{no_json} ({error})") from None


def read_json_members(path: str, *, expected: str) -> Iterator[tuple[str, int | None, Any]]:
    """The members of the json object that a file holds, lists entry by entry, with or without a byte order mark.

    Args:
        expected: what kind of file it should be, for the error when it is other json.
    Yields:
        (name, index, entry) for each entry of a list; (name, None, value) for another value and for an empty list.
    Raises:
        ValueError: where reading gets to: not json, not UTF-8, no object, two members of one name, a piece of over
            16 Mi characters.
    """
    with _json_pieces(path, "{", expected) as pieces:
        yield from _members(pieces)


def member_entries(path: str, member: str, *, expected: str) -> Iterator[tuple[str, Any]]:
    """The entries of one list of such an object, each with its place ("file, member[3]") for errors."""
    for name, index, entry in read_json_members(path, expected=expected):
        if name == member and index is not None:
            yield f"{path!r}, {member}[{index}]", entry


def read_json_list(path: str, *, expected: str) -> Iterator[Any]:
    """The entries of the json list that a file holds, one at a time; arguments and errors as `read_json_members`."""
    with _json_pieces(path, "[", expected) as pieces:
        for _, index, entry in _entries(pieces, ""):
            if index is not None:
                yield entry


@contextmanager
def _json_pieces(path: str, opening: str, expected: str) -> Iterator[_Pieces]:
    """The pieces of a file with one value, which begins with the letter `opening`."""
    with open(path, encoding="utf-8-sig") as file:
        pieces = _Pieces(file)
        try:
            first = pieces.next_letter()
            if first != opening:
                if first not in ("{", "["):  # these may be longer than a piece
                    pieces.value()  # what is no json at all is called so
                raise _OtherJsonError
            yield pieces
            if pieces.next_letter():
                raise ValueError(f"something follows the {'object' if opening == '{' else 'list'}")
        except _OtherJsonError:
            raise ValueError(f"{path!r}: expected {expected}, got other json") from None
        except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not json, or a number of 4,301 digits
            raise ValueError(f"{path!r}: not a json file ({_reason(error)})") from None


def read_json_lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object with its place ("file, line 3") for errors; blank lines are passed over. Raises ValueError,
    naming the line that is no json object, not UTF-8 or longer than 16 MiB."""
    for row in read_json_rows(path):
        if isinstance(row, BadRow):
            raise ValueError(f"{path!r}, line {row.line}: {row.detail if isinstance(row, _BadLine) else row.reason}")
        yield f"{path!r}, line {row[0]}", row[1]


def read_json_rows(path: str) -> Iterator[tuple[int, dict[str, Any]] | BadRow]:
    """Each line's object with the number of the line; what `read_json_lines` refuses is a bad row."""
    for line, raw in _bounded_lines(path, MAX_JSON_LINE_BYTES):
        if raw is None:
            reason = f"longer than {MAX_JSON_LINE_BYTES} bytes"
            yield _BadLine(line, reason, f"{reason}; expected one json object for each line")
            continue
        if not raw.strip():
            continue
        try:
            entry = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            reason = NOT_UTF8 if isinstance(error, UnicodeDecodeError) else "not a json object"
            yield _BadLine(line, reason, f"not a json object ({_reason(error)})")
            continue
        if isinstance(entry, dict):
            yield line, entry
        else:
            expected = "expected a json object"
            yield _BadLine(line, expected, f"{expected}, got {type(entry).__name__}")


@dataclass(frozen=True)
class _BadLine(BadRow):
    detail: str


def _reason(error: Exception) -> str:
    return f"{error}; {OTHER_ENCODING}" if isinstance(error, UnicodeDecodeError) else str(error)


class _OtherJsonError(Exception):
    """The file holds json of another kind."""


class _Pieces:
    """A text file from which json values and the letters between them are taken.

    Not ijson: a file of 200 MB takes 1.8 s here and 41 MB of memory, 4.9 s and 27 MB by its bare events, before any
    value is made of them and checked; and it writes "?" for half of a surrogate pair.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._gone = 0  # letters before `_text`
        self._is_whole = False  # whether the file has been read to its end

    def next_letter(self) -> str:
        """The next letter that is no white space, which stays where it is; "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _WHITESPACE:
                    return self._text[self._at]
                self._at += 1
            if self._is_whole:
                return ""
            self._read_on()

    def take(self, letters: str) -> str:
        """Takes the next letter, which must be one of `letters`."""
        found = self.next_letter()
        if not found or found not in letters:
            expected = " or ".join(letters)
            got = repr(found) if found else "the end of the file"
            raise ValueError(f"expected {expected}, got {got} at character {self._gone + self._at}")
        self._at += 1
        return found

    def value(self) -> Any:
        self.next_letter()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._is_whole:
                    raise ValueError(f"{error.msg} at character {self._gone + error.pos}") from None
            else:
                rest = self._text[end : end + 1]
                # "1." of "1.5", "1e" of "1e5"
                is_cut_number = type(value) in (int, float) and (not rest or rest in ".eE")
                if not is_cut_number or self._is_whole:
                    self._at = end
                    return value
            self._read_on()

    def _read_on(self) -> None:
        rest = self._text[self._at :]
        if len(rest) > MAX_ENTRY_CHARACTERS:
            raise ValueError(f"an entry of over {MAX_ENTRY_CHARACTERS} characters at character {self._gone + self._at}")
        # Reads as much again as is there: a long entry is decoded from its start a few times only.
        new = self._file.read(max(_CHUNK_CHARACTERS, len(rest)))
        self._is_whole = not new
        self._gone += self._at
        self._text, self._at = rest + new, 0


def _members(pieces: _Pieces) -> Iterator[tuple[str, int | None, Any]]:
    names: set[str] = set()
    pieces.take("{")
    if pieces.next_letter() == "}":
        pieces.take("}")
        return
    while True:
        if pieces.next_letter() != '"':
            pieces.take('"')  # an error with what is there instead
        name = pieces.value()
        if name in names:
            raise ValueError(f"two members are called {str(name)[:80]!r}")
        names.add(name)
        pieces.take(":")
        if pieces.next_letter() == "[":
            yield from _entries(pieces, name)
        else:
            yield name, None, pieces.value()
        if pieces.take(",}") == "}":
            return


def _entries(pieces: _Pieces, name: str) -> Iterator[tuple[str, int | None, Any]]:
    pieces.take("[")
    if pieces.next_letter() == "]":
        pieces.take("]")
        yield name, None, []
        return
    index = 0
    while True:
        yield name, index, pieces.value()
        if pieces.take(",]") == "]":
            return
        index += 1
