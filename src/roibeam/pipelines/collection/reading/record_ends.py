"""Where a WARC record ends, and where the next one begins after damage.

The end of a record is what its writer, the crawler, said: the end of its gzip member, or its Content-Length. A page
that holds a WARC record is no second record. Only behind damage is the next one looked for by its looks.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import BinaryIO

_GZIP_HEAD = b"\x1f\x8b\x08"
_GZIP = re.compile(_GZIP_HEAD)
_LINE = re.compile(rb"WARC/\d\.\d\r\n(?=[^\r\n:]{1,200}:)")  # a record has headers
_MAX_LOOKS = 1_000_000  # at gzip members, for the next record: each costs some microseconds
_PIECE = 2**20
_LOOK_BYTES = 1024  # enough of a member to see what it holds: its tables of codes come first
_HEAD_BYTES = 2**16
_CONTENT_LENGTH = re.compile(rb"^content-length:[ \t]*(\d{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


def record_end(file: BinaryIO, start: int) -> int | None:
    """The byte behind the record that begins at `start`; of one that is cut off the end of the file.

    Returns:
        None where the record does not tell, or its member is damaged.
    """
    file.seek(start)
    head = file.read(_HEAD_BYTES)
    if not head:
        return start
    if head.startswith(_GZIP_HEAD):
        return _member_end(file, start)
    lines, blank, _ = head.partition(b"\r\n\r\n")
    found = _CONTENT_LENGTH.search(lines)
    if not head.startswith(b"WARC/") or not blank or found is None:
        return None
    return min(start + len(lines) + len(blank) + int(found[1]), _size(file))


def next_record(file: BinaryIO, start: int, *, is_packed: bool) -> int | None:
    """Where the next record begins, from this byte on; None where there is none.

    Args:
        is_packed: look for gzip members that hold one, at most at `_MAX_LOOKS`, else for lines that begin one.
    """
    file.seek(start)
    data, base = b"", start
    num_looks = 0
    while num_looks <= _MAX_LOOKS:
        piece = file.read(_PIECE)
        data += piece
        for found in (_GZIP if is_packed else _LINE).finditer(data):
            place = found.start()
            if piece and place + _LOOK_BYTES > len(data):
                break  # looked at with the next piece
            if not is_packed or _begins_a_record(data[place : place + _LOOK_BYTES]):
                return base + place
            num_looks += 1
        if not piece:
            return None
        cut = max(len(data) - _LOOK_BYTES, 0)
        data, base = data[cut:], base + cut
    return None


def is_at_end(file: BinaryIO, place: int) -> bool:
    """Whether only blanks and zeros follow."""
    file.seek(place)
    while piece := file.read(_PIECE):
        if piece.strip(b"\r\n\0 "):
            return False
    return True


def _member_end(file: BinaryIO, start: int) -> int | None:
    """Unpacks the gzip member, a piece at a time."""
    file.seek(start)
    unpack = zlib.decompressobj(wbits=31)
    place = start
    try:
        while not unpack.eof and (piece := file.read(_PIECE)):
            place += len(piece)
            while piece and not unpack.eof:
                unpack.decompress(piece, _PIECE)
                piece = unpack.unconsumed_tail
    except zlib.error:
        return None
    return place - len(unpack.unused_data)


def _begins_a_record(data: bytes) -> bool:
    try:
        return zlib.decompressobj(wbits=31).decompress(data, 5) == b"WARC/"
    except zlib.error:
        return False


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)
