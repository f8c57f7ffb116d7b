"""A json file read piece by piece: COCO's and SBU's hold lists of a million entries, too many to be objects at once.

Only what lies between two pieces is ours (braces, commas, member names); each piece is decoded by the json module.
VCR and lists of boxes have a piece per line.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from roibeam.pipelines.data.datasets.rows import NOT_UTF8, OTHER_ENCODING, BadRow

MAX_ENTRY_CHARACTERS = 16 * 2**20  # COCO's largest entries, outlines of crowds, have under 1 MB
_CHUNK_CHARACTERS = 2**20
MAX_LINE_BYTES = 16 * 2**20  # 65,535 boxes take about 4 MB
_WHITESPACE = " \t\n\r"
_DECODER = json.JSONDecoder()


def read_json_members(path: str, *, expected: str) -> Iterator[tuple[str, int | None, Any]]:
    """The members of the json object that a file holds, lists entry by entry, with or without a byte order mark.

    Args:
        expected: what kind of file it should be, for the error when it is other json.
    Yields:
        (name, index, entry) for each entry of a list; (name, None, value) for another value and for an empty list.
    Raises:
        ValueError: where reading gets to: not json, not UTF-8, no object, two members of one name, a piece of over
            16 Mi characters.
        OSError: if the file cannot be read.
    """
    with open(path, encoding="utf-8-sig") as file:
        pieces = _Pieces(file)
        try:
            first = pieces.next_letter()
            if first != "{":
                if first != "[":  # a list may be longer than a piece
                    pieces.value()  # what is no json at all is called so
                raise _OtherJsonError
            yield from _members(pieces)
        except _OtherJsonError:
            raise ValueError(f"{path!r}: expected {expected}, got other json") from None
        except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not json, or a number of 4,301 digits
            raise ValueError(f"{path!r}: not a json file ({_told(error)})") from None


def read_json_list(path: str, *, expected: str) -> Iterator[Any]:
    """The entries of the json list that a file holds, one at a time; arguments and errors as `read_json_members`."""
    with open(path, encoding="utf-8-sig") as file:
        pieces = _Pieces(file)
        try:
            if pieces.next_letter() != "[":
                if pieces.next_letter() != "{":
                    pieces.value()
                raise _OtherJsonError
            for _, index, entry in _entries(pieces, ""):
                if index is not None:
                    yield entry
            if pieces.next_letter():
                raise ValueError("something follows the list")
        except _OtherJsonError:
            raise ValueError(f"{path!r}: expected {expected}, got other json") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path!r}: not a json file ({_told(error)})") from None


def read_json_lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object with its place ("file, line 3") for errors; blank lines are passed over.

    Raises:
        ValueError: naming the line that is no json object, not UTF-8 or longer than 16 MiB.
        OSError: if the file cannot be read.
    """
    for row in read_json_rows(path):
        if isinstance(row, BadRow):
            raise ValueError(f"{path!r}, line {row.line}: {row.detail if isinstance(row, _BadLine) else row.reason}")
        yield f"{path!r}, line {row[0]}", row[1]


def read_json_rows(path: str) -> Iterator[tuple[int, dict[str, Any]] | BadRow]:
    """Each line's object with the number of the line; what `read_json_lines` refuses is a bad row.

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
                reason = f"longer than {MAX_LINE_BYTES} bytes"
                yield _BadLine(line, reason, f"{reason}; expected one json object for each line")
                continue
            if line == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if not raw.strip():
                continue
            try:
                entry = json.loads(raw.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                reason = NOT_UTF8 if isinstance(error, UnicodeDecodeError) else "not a json object"
                yield _BadLine(line, reason, f"not a json object ({_told(error)})")
                continue
            if not isinstance(entry, dict):
                expected = "expected a json object"
                yield _BadLine(line, expected, f"{expected}, got {type(entry).__name__}")
                continue
            yield line, entry


@dataclass(frozen=True)
class _BadLine(BadRow):
    """With what an error says of it."""

    detail: str


def _told(error: Exception) -> str:
    return f"{error}; {OTHER_ENCODING}" if isinstance(error, UnicodeDecodeError) else str(error)


class _OtherJsonError(Exception):
    """The file holds json of another kind."""


class _Pieces:
    """A text file from which json values and the letters between them are taken."""

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
            wanted = " or ".join(letters)
            got = repr(found) if found else "the end of the file"
            raise ValueError(f"expected {wanted}, got {got} at character {self._gone + self._at}")
        self._at += 1
        return found

    def value(self) -> Any:
        """Takes the next value."""
        self.next_letter()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._is_whole:
                    raise ValueError(f"{error.msg} at character {self._gone + error.pos}") from None
            else:
                rest = self._text[end : end + 1]
                is_cut_number = type(value) in (int, float) and (
                    not rest or rest in ".eE"
                )  # "1." of "1.5", "1e" of "1e5"
                if not is_cut_number or self._is_whole:
                    self._at = end
                    return value
            self._read_on()

    def _read_on(self) -> None:
        rest = self._text[self._at :]
        if len(rest) > MAX_ENTRY_CHARACTERS:
            raise ValueError(f"an entry of over {MAX_ENTRY_CHARACTERS} characters at character {self._gone + self._at}")
        # As much again as is there: a long entry is decoded from its start a few times only.
        new = self._file.read(max(_CHUNK_CHARACTERS, len(rest)))
        self._is_whole = not new
        self._gone += self._at
        self._text, self._at = rest + new, 0


def _members(pieces: _Pieces) -> Iterator[tuple[str, int | None, Any]]:
    names: set[str] = set()
    pieces.take("{")
    is_open = pieces.next_letter() != "}"
    while is_open:
        if pieces.next_letter() != '"':
            pieces.take('"')  # says what is there instead
        name = pieces.value()
        if name in names:
            raise ValueError(f"two members are called {str(name)[:80]!r}")
        names.add(name)
        pieces.take(":")
        if pieces.next_letter() == "[":
            yield from _entries(pieces, name)
        else:
            yield name, None, pieces.value()
        if pieces.next_letter() == "}":
            break
        pieces.take(",}")
    pieces.take("}")
    if pieces.next_letter():
        raise ValueError("something follows the object")


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
