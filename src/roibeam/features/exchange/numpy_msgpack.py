"""Dicts of numpy arrays in msgpack, as the package msgpack-numpy writes and reads them, without that package.

An array is a map {b"nd": true, b"type": "<f2", b"kind": b"", b"shape": [rows, columns], b"data": bytes}
(lebedov/msgpack-numpy, msgpack_numpy.py: encode and decode). Its own reader unpickles the data of a map that says kind
"O"; here that is refused. Of msgpack (github.com/msgpack/msgpack spec.md) all is read but extension types; a value
has at most 10,000 parts.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any

import numpy as np

from roibeam.features.exchange.entry_record import EntryError

_MAX_PARTS = 10_000
_MAX_DEPTH = 4
_PLAIN_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248])")
_FORMS = {code: struct.Struct(">" + letter) for code, letter in zip(range(0xCA, 0xD4), "fdBHIQbhiq", strict=True)}
_SIZES = {size: struct.Struct(">" + letter) for size, letter in ((1, "B"), (2, "H"), (4, "I"))}
# Code of the first of a family -> widths of its size fields.
_BINS = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def arrays_to_msgpack(arrays: dict[str, np.ndarray]) -> bytes:
    """Bytes that `msgpack.loads(data, raw=False)` with msgpack-numpy gives back as this dict."""
    if len(arrays) > 15:
        raise ValueError(f"{len(arrays)} arrays; at most 15 are written")
    parts = [bytes([0x80 | len(arrays)])]
    for name, array in arrays.items():
        array = np.ascontiguousarray(array)
        parts += [_string(name), b"\x85", _bin(b"nd"), b"\xc3", _bin(b"type"), _string(array.dtype.str)]
        parts += [_bin(b"kind"), _bin(b""), _bin(b"shape"), bytes([0x90 | array.ndim])]
        parts += [b"\xce" + struct.pack(">I", side) for side in array.shape]
        parts += [_bin(b"data"), _bin(array.tobytes())]
    return b"".join(parts)


def arrays_from_msgpack(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a dict; its other values are left out. Arrays are read-only views of `data`.

    Raises:
        EntryError: for anything that is no such dict.
    """
    unpacker = _Unpacker(data)
    try:
        value = unpacker.value(0)
    except (IndexError, struct.error):
        raise EntryError("decode", "bad msgpack", f"ends inside a value of {len(data):,} bytes") from None
    if not isinstance(value, dict) or unpacker.at != len(data):
        raise EntryError("decode", "bad msgpack", "is not one map of names to arrays")
    return {name: _array(item, name) for name, item in value.items() if isinstance(item, dict)}


class _Unpacker:
    """`at` is the next byte to read. Every size is checked against the bytes that are left before it is used."""

    def __init__(self, data: bytes) -> None:
        self._data, self._view = data, memoryview(data)
        self.at = self._parts = 0

    def value(self, depth: int) -> Any:
        self._parts += 1
        if self._parts > _MAX_PARTS or depth > _MAX_DEPTH:
            raise EntryError(
                "decode", "bad msgpack", f"has more than {_MAX_PARTS:,} parts or {_MAX_DEPTH} levels; refused"
            )
        code = self._data[self.at]
        self.at += 1
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 256
        if code in _FORMS:
            return self._number(_FORMS[code])
        if code < 0x90 or code in _MAPS:
            return self._map(self._count(code & 0x0F, _MAPS.get(code)), depth)
        if code < 0xA0 or code in _LISTS:
            return [self.value(depth + 1) for _ in range(self._count(code & 0x0F, _LISTS.get(code)))]
        if code < 0xC0 or code in _STRINGS:
            return self._text(self._take(self._count(code & 0x1F, _STRINGS.get(code))))
        if code in _BINS:
            return self._take(self._count(0, _BINS[code]))
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        raise EntryError("decode", "bad msgpack", f"has a value of type 0x{code:02x} at byte {self.at - 1}; refused")

    def _map(self, count: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            name = self._text(key) if isinstance(key, memoryview) else key
            if not isinstance(name, str) or name in found:
                raise EntryError("decode", "bad msgpack", "has a map with a key that is no name, or comes twice")
            found[name] = self.value(depth + 1)
        return found

    def _count(self, fixed: int, width: int | None) -> int:
        return fixed if width is None else self._number(_SIZES[width])

    def _number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self.at)
        self.at += form.size
        return value

    def _take(self, count: int) -> memoryview:
        if count > len(self._data) - self.at:
            raise EntryError("decode", "bad msgpack", f"asks for {count:,} of {len(self._data) - self.at:,} bytes")
        self.at += count
        return self._view[self.at - count : self.at]

    def _text(self, raw: memoryview) -> str:
        try:
            return bytes(raw[:1000]).decode("utf-8")
        except UnicodeDecodeError:
            raise EntryError("decode", "bad msgpack", "has text that is not UTF-8") from None


def _array(item: dict[str, Any], name: str) -> np.ndarray:
    code, shape, raw = item.get("type"), item.get("shape"), item.get("data")
    text = bytes(code).decode("latin1") if isinstance(code, memoryview) else code
    kind = item.get("kind", "")
    if item.get("nd") is not True or not isinstance(kind, (str, memoryview)) or len(kind):
        raise EntryError("decode", "wrong type", f"{name} is no plain numpy array")
    if not isinstance(text, str) or not _PLAIN_DTYPE.fullmatch(text):
        raise EntryError("decode", "wrong type", f"{name} has dtype {str(text)[:40]!r}; read are numbers")
    sides = shape if isinstance(shape, list) else []
    if not isinstance(shape, list) or not all(type(side) is int and side >= 0 for side in sides) or len(sides) > 4:
        raise EntryError("decode", "wrong shape", f"{name} has no shape")
    dtype = np.dtype(text)
    if not isinstance(raw, memoryview) or math.prod(sides) * dtype.itemsize != len(raw):
        raise EntryError("decode", "wrong byte count", f"{name}: its bytes do not make {sides} {dtype}")
    return np.frombuffer(raw, dtype).reshape(sides)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    assert len(raw) < 256
    return b"\xd9" + bytes([len(raw)]) + raw


def _bin(raw: bytes) -> bytes:
    return b"\xc6" + struct.pack(">I", len(raw)) + raw
