"""Writing a zip file of stored members, as VL-BERT's are: readable in place, no compression.

The list of members is kept as the bytes it becomes, about 100 for a member, so millions of them fit.
"""

from __future__ import annotations

import struct
import zlib
from typing import Protocol

_VERSION, _UTF8, _STORED = 45, 0x0800, 0  # 4.5: zip64
_DATE_1980 = 0x0021  # a fixed time stamp, so that equal records make equal files
_MODE = 0o100644 << 16  # a plain file, readable by all
_BY_UNIX = 3 << 8
_SMALL = 0xFFFFFFFF


class Writable(Protocol):
    """What a zip is written to."""

    def write(self, data: bytes | bytearray, /) -> object: ...


class ZipOutput:
    """Members are written to `file` one after the other; `finish` writes the list."""

    def __init__(self, file: Writable) -> None:
        self._file = file
        self._at = self._count = 0
        self._list = bytearray()

    def put(self, name: bytes, data: bytes) -> None:
        """Adds a member, at most 4 GB; names are the caller's to keep apart."""
        fixed = struct.pack("<HHHHIII", _UTF8, _STORED, 0, _DATE_1980, zlib.crc32(data), len(data), len(data))
        local = struct.pack("<4sH", b"PK\x03\x04", 20) + fixed + struct.pack("<HH", len(name), 0) + name
        wide = self._at >= _SMALL
        extra = struct.pack("<HHQ", 1, 8, self._at) if wide else b""
        self._list += struct.pack("<4sHH", b"PK\x01\x02", _BY_UNIX | _VERSION, _VERSION if wide else 20) + fixed
        self._list += struct.pack("<HHHHHII", len(name), len(extra), 0, 0, 0, _MODE, _SMALL if wide else self._at)
        self._list += name + extra
        self._file.write(local)
        self._file.write(data)
        self._at += len(local) + len(data)
        self._count += 1

    def finish(self) -> None:
        """Writes the list of members; the file is a whole zip then."""
        self._file.write(self._list)
        size, end = len(self._list), self._at + len(self._list)
        if self._count >= 0xFFFF or end >= _SMALL:
            fixed = 44, _BY_UNIX | _VERSION, _VERSION, 0, 0, self._count, self._count, size, self._at
            self._file.write(struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", *fixed))
            self._file.write(struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1))
        count, at = min(self._count, 0xFFFF), min(self._at, _SMALL)
        self._file.write(struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, min(size, _SMALL), at, 0))
