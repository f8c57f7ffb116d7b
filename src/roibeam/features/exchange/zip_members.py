"""The members of a zip file of strangers: where each is, and its bytes, with bounds on all that the file may claim.

`zipfile` makes an object of 700 bytes for each member, which for the three million of a large collection is more than
the machine may have, and it inflates a member to whatever it becomes. This reads the list of members as it stands in
the file (PKWARE APPNOTE 4.3, 4.4.4, 4.5.3: central directory, zip64), checks every number against the file, and
inflates no further than a member's stated size. Nothing is ever extracted, so no name can lead out of a folder.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from pathlib import Path
from typing import Self

from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES
from roibeam.features.exchange.entry_record import EntryError

_END = struct.Struct("<4sHHHHIIH")  # signature, disks, entries here and in all, size and offset of the list, comment
_END64_PLACE = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_LONGEST_COMMENT = 65535
_ENCRYPTED, _UTF8 = 0x0001, 0x0800
_STORED, _DEFLATED = 0, 8
_IN_ZIP64 = 0xFFFFFFFF
_PIECE_BYTES = 2**20
_LONGEST_ENTRY_BYTES = _ENTRY.size + 3 * 65535  # of the list: name, extra field and comment
# Features with many zeros deflate to a fifth of their size, base64 of all zeros to a thousandth. A bomb needs more than
# one member at such a ratio; ours may be as small as this.
_LARGEST_RATIO, _RATIO_FREE_BYTES = 200, 2**20


class ZipMembers:
    """A zip file, opened.

    Args:
        most: reads no more of the list of members than this many; None reads and checks all of it.
    Attributes:
        names: of the members that are no folders, UTF-8, in the order of the file; a name may come twice.
    Raises:
        ValueError: when the file is no whole zip, spans several disks, or lists members that overlap.
    """

    def __init__(self, path: Path, *, most: int | None = None) -> None:
        self.path = path
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise ValueError(f"{path}: is no regular file; give a zip file")
        self._file = open(path, "rb", buffering=0)
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self.names: list[bytes] = []
            self._offsets, self._packed, self._sizes = array("Q"), array("Q"), array("Q")
            self._sums, self._methods = array("I"), array("i")
            self._read_list(most)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def read(self, member: int) -> bytes:
        """The bytes of a member.

        Raises:
            EntryError: for one that is encrypted, packed in an unusual way, larger than 64 MiB or inflated over 200
                times, and one that is not what the list of members says.
        """
        packed_size, size, method = self._packed[member], self._sizes[member], self._methods[member]
        if method < 0:
            raise EntryError("read", "encrypted", "is encrypted; unpack the archive and pack it without a password")
        if method not in (_STORED, _DEFLATED):
            raise EntryError(
                "read", "unusual compression", f"is packed by method {method}; stored and deflated are read"
            )
        if max(size, packed_size) > MAX_ENTRY_BYTES:
            detail = f"has {max(size, packed_size):,} bytes, an entry has at most {MAX_ENTRY_BYTES:,}"
            raise EntryError("read", "entry too large", detail)
        if size > max(_RATIO_FREE_BYTES, _LARGEST_RATIO * packed_size):
            detail = f"inflates from {packed_size:,} to {size:,} bytes; at most {_LARGEST_RATIO} times are read"
            raise EntryError("read", "entry too large", detail)
        try:
            packed = self._pread(self._start_of(member), packed_size)
        except ValueError as error:
            raise EntryError("read", "damaged archive", str(error)) from None
        data = packed if method == _STORED else _inflated(packed, size)
        if len(data) != size or zlib.crc32(data) != self._sums[member]:
            raise EntryError("read", "damaged archive", "is not what the archive's checksum says; copy it again")
        return data

    def _start_of(self, member: int) -> int:
        offset = self._offsets[member]
        local = _LOCAL.unpack(self._pread(offset, _LOCAL.size))
        name = self._pread(offset + _LOCAL.size, local[9])
        if local[0] != b"PK\x03\x04" or _utf8(name, bool(local[2] & _UTF8)) != self.names[member]:
            raise ValueError("its place in the archive holds something else")
        return offset + _LOCAL.size + local[9] + local[10]

    def _read_list(self, most: int | None) -> None:
        at, size, count = self._place_of_list()
        if count * _ENTRY.size > size or at + size > self._size:
            raise self._damaged(f"a list of {count:,} members in {size:,} bytes at {at:,} of {self._size:,}")
        end, packed_in_all = at + size, 0
        piece, start, used = b"", at, 0  # `piece` is what stands at `start`, its first `used` bytes are read
        for _ in range(count if most is None else min(count, most)):
            if len(piece) - used < _LONGEST_ENTRY_BYTES and start + len(piece) < end:
                start, used = start + used, 0
                piece = self._pread(start, min(_PIECE_BYTES, end - start))
            taken, packed = self._add(piece, used)
            packed_in_all += packed
            used += taken
        if start + used != end and most is None:
            raise self._damaged(f"{end - start - used:,} bytes after its list of {count:,} members")
        if packed_in_all > self._size:
            raise self._damaged("its members overlap, as those of a zip bomb do")

    def _add(self, piece: bytes, at: int) -> tuple[int, int]:
        """Notes the entry at this place of `piece`; returns the bytes it takes, and the packed bytes of its member."""
        if len(piece) - at < _ENTRY.size:
            raise self._damaged("its list of members is cut")
        fields = _ENTRY.unpack_from(piece, at)
        signature, flags, method, disk, offset = fields[0], fields[3], fields[4], fields[13], fields[16]
        checksum, packed, size, name_size, extra_size, comment_size = fields[7:13]
        taken = _ENTRY.size + name_size + extra_size + comment_size
        if signature != b"PK\x01\x02" or at + taken > len(piece):
            raise self._damaged("its list of members is cut")
        name_at, extra_at = at + _ENTRY.size, at + _ENTRY.size + name_size
        name = _utf8(piece[name_at:extra_at], bool(flags & _UTF8))
        size, packed, offset = self._true_sizes(piece[extra_at : extra_at + extra_size], size, packed, offset)
        if disk or offset + _LOCAL.size + packed > self._size:
            raise self._damaged(f"member {name[:60]!r} would be at {offset:,} of {self._size:,} bytes")
        if not name.endswith(b"/"):
            self.names.append(name)
            self._offsets.append(offset)
            self._packed.append(packed)
            self._sizes.append(size)
            self._sums.append(checksum)
            self._methods.append(-1 if flags & _ENCRYPTED else method)
        return taken, packed

    def _true_sizes(self, extra: bytes, *stated: int) -> tuple[int, ...]:
        """Size, packed size and offset: from the extra field, of 64 bits, where those of 32 bits are full."""
        wide = iter(())
        while len(extra) >= 4:
            kind, length = struct.unpack_from("<HH", extra)
            if kind == 1:
                wide = iter(struct.unpack_from(f"<{min(length, len(extra) - 4) // 8}Q", extra, 4))
            extra = extra[4 + length :]
        sizes = tuple(next(wide, -1) if value == _IN_ZIP64 else value for value in stated)
        if min(sizes) < 0 or sizes[0] > self._size * 2000:  # deflate packs at most 1,032 times
            raise self._damaged("a member without its size, or with one that cannot be")
        return sizes

    def _place_of_list(self) -> tuple[int, int, int]:
        """Offset, bytes and members of the list."""
        tail_at = max(0, self._size - _END.size - _LONGEST_COMMENT)
        tail = self._pread(tail_at, self._size - tail_at)
        found = tail.rfind(b"PK\x05\x06")
        if found < 0 or found + _END.size > len(tail):
            raise self._damaged("no end of a zip; is it cut?")
        _, disk, list_disk, _, count, size, at, _ = _END.unpack_from(tail, found)
        place_at = tail_at + found - _END64_PLACE.size
        if place_at >= 0:
            signature, _, end_at, _ = _END64_PLACE.unpack(self._pread(place_at, _END64_PLACE.size))
            if signature == b"PK\x06\x07":
                end = _END64.unpack(self._pread(end_at, _END64.size))
                if end[0] != b"PK\x06\x06":
                    raise self._damaged("its zip64 end is not where it says")
                disk, list_disk, count, size, at = end[4], end[5], end[7], end[8], end[9]
        if disk or list_disk:
            raise self._damaged("it is one of several disks")
        return at, size, count

    def _pread(self, offset: int, length: int) -> bytes:
        if offset + length > self._size:
            raise self._damaged(f"it points at byte {offset + length:,} of {self._size:,}")
        data = os.pread(self._file.fileno(), length, offset)
        if len(data) != length:
            raise ValueError(f"{self.path}: was cut while it was read; copy it again")
        return data

    def _damaged(self, what: str) -> ValueError:
        return ValueError(f"{self.path}: not a whole zip file ({what}); copy it again")


def _inflated(packed: bytes, size: int) -> bytes:
    try:
        unpacker = zlib.decompressobj(-15)
        data = unpacker.decompress(packed, size + 1)
        if len(data) == size and not unpacker.eof:
            data += unpacker.decompress(unpacker.unconsumed_tail, 1)
    except zlib.error as error:
        raise EntryError("read", "damaged archive", f"cannot be inflated: {error}") from None
    if not unpacker.eof or len(data) != size:
        raise EntryError("read", "damaged archive", f"does not inflate to the {size:,} bytes that the archive states")
    return data


def _utf8(name: bytes, is_utf8: bool) -> bytes:
    """A name of code page 437, the zip's own, in UTF-8."""
    return name if is_utf8 or name.isascii() else name.decode("cp437").encode("utf-8")
