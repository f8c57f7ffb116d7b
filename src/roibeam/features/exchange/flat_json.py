"""Reads JSON that holds no more than a list of strings, an object of strings and numbers, or a list of such objects, a
piece at a time.

Not read by ijson, which copies a string twice where this gives a view of its bytes (an entry is one string of up to 64
MiB, mostly), writes "?" for half of a surrogate pair, so that two names become one, and refuses integers over 64 bits.
`json.loads` makes twenty bytes of memory for one of a hostile file, and nests as deep as the file likes. The files that
the exchange formats have are flat, so a small scanner is enough.
"""

import json
import re
from collections.abc import Collection, Iterator

JsonScalar = memoryview | str | int | float | bool | None
JsonValue = JsonScalar | list[str | int | float | bool | None]

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"')
_OTHER = re.compile(rb"-?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,4})?|true|false|null")
# A list of strings and numbers, and all up to the next bracket outside of strings.
_LIST = re.compile(rb'\[(?:[^\[\]{}"]++|"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+")*+\]')
_TO_BRACKET = re.compile(rb'(?:[^\[\]{}"]++|"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+")*+')
_LONGEST_LIST = 2**16  # bytes
_DEEPEST, _MOST_FIELDS = 20, 100
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
        yield scanner.name(), scanner.value()
    scanner.end()


def nested_objects(
    data: bytes, under: str, names: Collection[str], own: Collection[str] = ()
) -> Iterator[dict[str, JsonValue] | tuple[str, JsonValue]]:
    """The objects of a list one by one, as dicts of their fields `names`.

    Args:
        data: the list, or an object that has it under the name `under`.
        own: names of fields of that object, which come as pairs of name and value. All else is passed over.
    """
    scanner = _Scanner(data)
    if scanner.is_next(b"["):
        yield from scanner.objects(names)
    else:
        seen: set[str] = set()
        for _ in scanner.members(b"{", b"}"):
            name = scanner.name()
            if name in seen or len(seen) == _MOST_FIELDS:
                raise FlatJsonError(f"no flat JSON: {name[:80]!r} comes twice, or too many fields")
            seen.add(name)
            if name == under:
                yield from scanner.objects(names)
            elif name in own:
                yield name, scanner.flat()
            else:
                scanner.skip()
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

    def name(self) -> str:
        """The name of a member, and the colon behind it."""
        name = self.string()
        self.expect(b":")
        return name if isinstance(name, str) else _text(name)

    def is_next(self, mark: bytes) -> bool:
        return self._next() == mark

    def objects(self, names: Collection[str]) -> Iterator[dict[str, JsonValue]]:
        for _ in self.members(b"[", b"]"):
            fields: dict[str, JsonValue] = {}
            for number, _ in enumerate(self.members(b"{", b"}")):
                name = self.name()
                if name in fields or number == _MOST_FIELDS:
                    raise FlatJsonError(f"no flat JSON: {name[:80]!r} comes twice, or too many fields")
                if name in names:
                    fields[name] = self.flat()
                else:
                    self.skip()
            yield fields

    def flat(self) -> JsonValue:
        """A string, a number, or a short list of them."""
        if self._next() != b"[":
            return self.value()
        found = _LIST.match(self._data, self._at)
        if found is None or len(found.group()) > _LONGEST_LIST:
            raise self._wrong("a short list of strings or numbers")
        try:
            values = json.loads(found.group())
        except ValueError:
            raise self._wrong("a list of strings or numbers") from None
        self._at = found.end()
        assert isinstance(values, list)
        return values

    def skip(self) -> None:
        """Passes over a value, whatever it is."""
        if self._next() not in (b"[", b"{"):
            self.value()
            return
        depth = 0
        while True:
            found = _TO_BRACKET.match(self._data, self._at)
            assert found is not None
            self._at = found.end()
            mark = self._data[self._at : self._at + 1]
            if mark not in (b"[", b"]", b"{", b"}") or depth > _DEEPEST:
                raise self._wrong("the end of a list or an object")
            self._at += 1
            depth += 1 if mark in (b"[", b"{") else -1
            if not depth:
                return

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
