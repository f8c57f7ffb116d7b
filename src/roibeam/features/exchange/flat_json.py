"""Reads JSON that holds no more than a list of strings, or an object of strings and numbers, a piece at a time.

Not read by ijson, which copies a string twice where this gives a view of its bytes (an entry is one string of up to 64
MiB, mostly), writes "?" for half of a surrogate pair, so that two names become one, and refuses integers over 64 bits.
`json.loads` makes twenty bytes of memory for one of a hostile file, and nests as deep as the file likes. The files that
the exchange formats have are flat, so a small scanner is enough.
"""

import json
import re
from collections.abc import Iterator

JsonScalar = memoryview | str | int | float | bool | None

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"')
_OTHER = re.compile(rb"-?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,4})?|true|false|null")
_QUOTED_BYTES = 20


class FlatJsonError(ValueError):
    """JSON that is damaged or not flat; says where."""


def flat_strings(data: bytes) -> Iterator[str]:
    scanner = _Scanner(data)
    for _ in scanner.members(b"[", b"]"):
        value = scanner.string()
        yield value if isinstance(value, str) else _text(value)
    scanner.end()


def flat_items(data: bytes) -> Iterator[tuple[str, JsonScalar]]:
    """Names and values of a JSON object, in its order, repeated names too.

    A string is a view of its UTF-8 bytes in `data`, or a str when it holds escapes.
    """
    scanner = _Scanner(data)
    for _ in scanner.members(b"{", b"}"):
        name = scanner.string()
        scanner.expect(b":")
        yield name if isinstance(name, str) else _text(name), scanner.value()
    scanner.end()


class _Scanner:
    def __init__(self, data: bytes) -> None:
        self._data, self._view, self._at = data, memoryview(data), 0

    def members(self, opening: bytes, closing: bytes) -> Iterator[None]:
        """Moves before each member in turn; the caller reads it."""
        self.expect(opening)
        if self._next() == closing:
            self._at += 1
            return
        while True:
            yield
            if self._next() == closing:
                self._at += 1
                return
            self.expect(b",")

    def string(self) -> memoryview | str:
        found = _STRING.match(self._data, self._skip())
        if found is None:
            raise self._wrong("a string")
        self._at = found.end()
        start, end = found.span(1)
        if self._data.find(b"\\", start, end) < 0:
            return self._view[start:end]
        try:
            text = json.loads(found.group())
        except ValueError:
            raise self._wrong("a string") from None
        assert isinstance(text, str)
        return text

    def value(self) -> JsonScalar:
        if self._next() == b'"':
            return self.string()
        found = _OTHER.match(self._data, self._at)
        if found is None:
            raise self._wrong("a string or a number")
        self._at = found.end()
        value = json.loads(found.group())
        assert value is None or isinstance(value, (bool, int, float))
        return value

    def expect(self, mark: bytes) -> None:
        if self._next() != mark:
            raise self._wrong(f"'{mark.decode()}'")
        self._at += 1

    def end(self) -> None:
        if self._next():
            raise self._wrong("its end")

    def _next(self) -> bytes:
        self._skip()
        return self._data[self._at : self._at + 1]

    def _skip(self) -> int:
        found = _SPACE.match(self._data, self._at)
        assert found is not None
        self._at = found.end()
        return self._at

    def _wrong(self, expected: str) -> FlatJsonError:
        got = self._data[self._at : self._at + _QUOTED_BYTES].decode("ascii", "backslashreplace")
        return FlatJsonError(f"no flat JSON: {expected} is expected at byte {self._at}, got {got!r}")


def _text(view: memoryview) -> str:
    try:
        return bytes(view).decode("utf-8")
    except UnicodeDecodeError:
        raise FlatJsonError("no flat JSON: a string is not UTF-8") from None
