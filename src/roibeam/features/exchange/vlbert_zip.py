"""VL-BERT's precomputed features: a zip with one json per image, its arrays in base64 of float32.

Read by jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py (boxes, classes, features, num_boxes, image_w,
image_h), vqa/data/datasets/vqa.py (the same with image_box_feature, the feature of the whole image, and without
classes) and refcoco/data/datasets/refcoco.py, through common/utils/zipreader.py. An image's id is its member's name
without ".json". Boxes are in pixels; `classes` are probabilities (n, 1601), background first; `attrs` (n, 401), "no
attribute" first, is read and not written.

Members are stored without compression. `zipfile` makes 700 bytes of each member and inflates it to whatever it becomes;
`ZipMembers` reads the list as it stands in the file (PKWARE APPNOTE 4.3, 4.4.4, 4.5.3: central directory, zip64),
checks every number against the file and inflates no further than the stated size. Nothing is extracted, so no name
leads out of a folder.
"""

import json
import os
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, Self

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES, FeatureFile, usable_id
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    array_of_bytes,
    base64_bytes,
    base64_text,
    classes_from_rows,
    float32_array,
    float_array,
    image_size,
    rows_of_classes,
    whole_number,
    without_classes,
)
from roibeam.features.exchange.export_output import ContinuedFile
from roibeam.features.exchange.flat_json import FlatJsonError, JsonScalar, flat_items
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import MAX_REGIONS, RegionRecord
from roibeam.messages import printable

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
# one member at such a ratio; members of a feature file may be as small as this.
_LARGEST_RATIO, _RATIO_FREE_BYTES = 200, 2**20


class ZipMembers:
    """A zip file, opened; ValueError when the file is no whole zip, spans several disks, or lists members that overlap.

    Args:
        most: reads no more of the list of members than this many; None reads and checks all of it.
    Attributes:
        names: of the members that are no folders, UTF-8, in the order of the file; a name may come twice.
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
        """The bytes of a member; EntryError for one that is encrypted, packed in an unusual way, larger than 64 MiB or
        inflated over 200 times, and one that differs from the list of members."""
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


_VERSION = 45  # 4.5: zip64
_DATE_1980 = 0x0021  # a fixed time stamp, so that equal records make equal files
_MODE = 0o100644 << 16  # a plain file, readable by all
_BY_UNIX = 3 << 8
_SMALL = _IN_ZIP64


class Writable(Protocol):
    """Output that a zip is written to."""

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
            self._file.write(_END64.pack(b"PK\x06\x06", *fixed))
            self._file.write(_END64_PLACE.pack(b"PK\x06\x07", 0, end, 1))
        count, at = min(self._count, 0xFFFF), min(self._at, _SMALL)
        self._file.write(_END.pack(b"PK\x05\x06", 0, 0, count, count, min(size, _SMALL), at, 0))


_SUFFIX = ".json"
_MAX_FIELDS = 100
_LOOKED_AT = 20


class VlbertZip(FeatureFile):
    """See `FeatureFile`; which fields the file has is what its first usable member has."""

    layout = "frcnn"
    before_name = "@/"
    _has: frozenset[str] | None = None

    def _open(self) -> None:
        self._zip = ZipMembers(self.path)

    def _scan(self) -> None:
        names = ((number, name) for number, name in enumerate(self._zip.names) if not name.startswith(b"__MACOSX/"))
        self._members = self._take_ids(names, _id_of)
        record = self._first_record("VL-BERT's (a json with image_w, image_h, num_boxes, boxes, features)")
        has: frozenset[str] = self._has or frozenset()
        self.details |= {
            "classes": "classes" if "classes" in has else ABSENT,
            "attributes": "attrs" if "attrs" in has else ABSENT,
            **self._reading.details(record),
        }

    def _place(self, entry: int) -> str:
        return self._place_of(self._zip.names[self._members[entry]])

    def _close(self) -> None:
        self._zip.close()

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        fields = _fields(self._zip.read(self._members[entry]))
        has = frozenset(name for name in ("classes", "attrs") if fields.get(name) is not None)
        if self._has not in (None, has):
            raise EntryError(
                "decode", "other fields", f"has {sorted(has)}, the first member has {sorted(self._has or ())}"
            )
        sides = image_size(fields.get, ("image_h", "image_w"))
        rows = whole_number(fields.get("num_boxes"), "num_boxes", 0, MAX_REGIONS)
        boxes = array_of_bytes(base64_bytes(_text(fields, "boxes"), "boxes"), "boxes", "<f4", 4 * rows)
        boxes = float32_array(boxes, "boxes", rows=rows, columns=4)
        features = self._reading.features(_text(fields, "features"), "features", rows=rows, columns=self._dim)
        whole = None
        if fields.get("image_box_feature") is not None:
            whole = self._reading.features(_text(fields, "image_box_feature"), "image_box_feature", rows=1)[0]
        classes = self._classes(fields, has, rows)
        record = self._made(entry, sides, boxes, features, classes, dtype, whole)
        if self._has is None and record.num_regions:
            self._has = has
        return record

    def _classes(self, fields: dict[str, JsonScalar], has: frozenset[str], num_regions: int) -> RegionClasses:
        classes = without_classes(num_regions)
        if "classes" in has:
            classes = self._reading.classes_of(_text(fields, "classes"), "classes", num_regions, self._columns)
        if "attrs" in has:
            rows = array_of_bytes(base64_bytes(_text(fields, "attrs"), "attrs"), "attrs", "<f4")
            found = classes_from_rows(float_array(rows, "attrs", rows=num_regions), name="attrs")
            classes = classes._replace(attribute_ids=found.class_ids, attribute_scores=found.class_scores)
        return classes


def _id_of(name: bytes) -> bytes:
    """The image id of a member's name, as zipreader.py looks for it."""
    image_id = name.removesuffix(_SUFFIX.encode())
    if len(image_id) == len(name):
        raise EntryError("read", "no json", f"is no {_SUFFIX} file; is it the zip of the images?")
    if not _is_plain(image_id):
        raise EntryError("read", "bad image id", "its name leads out of a folder; pack it with a plain name")
    return usable_id(image_id)


def _is_plain(image_id: bytes) -> bool:
    parts = image_id.split(b"/")
    return not {b"", b".", b".."} & set(parts) and b"\\" not in image_id and b"\0" not in image_id


def _fields(data: bytes) -> dict[str, JsonScalar]:
    fields: dict[str, JsonScalar] = {}
    try:
        for name, value in flat_items(data):
            if name in fields or len(fields) == _MAX_FIELDS:
                raise EntryError("decode", "bad json", f"has the field {printable(name)!r} twice, or too many fields")
            fields[name] = value
    except FlatJsonError as error:
        raise EntryError("decode", "bad json", str(error)) from None
    return fields


def _text(fields: dict[str, JsonScalar], name: str) -> str | memoryview:
    value = fields.get(name)
    if not isinstance(value, (str, memoryview)):
        raise EntryError("decode", "missing field", f"{name} must be text of base64, got {type(value).__name__}")
    return value


class VlbertZipFormat(FeatureFormat):
    name = "vlbert-zip"
    title = "zip with a json per image (VL-BERT)"
    suffixes = (".zip",)
    layouts = ("frcnn",)
    file = VlbertZip
    why_suffix = "VL-BERT finds an archive by '.zip@' in a path"
    takes_empty = False  # the consumers cannot give 0 regions a shape

    def looks_like(self, path: Path) -> bool:
        try:
            if not path.is_file():
                return False
            with open(path, "rb") as file:
                if file.read(4) != b"PK\x03\x04":
                    return False
            with ZipMembers(path, most=_LOOKED_AT) as members:
                for number, name in enumerate(members.names):
                    try:
                        if name.endswith(_SUFFIX.encode()) and "num_boxes" in _fields(members.read(number)):
                            return True
                    except EntryError:
                        continue
        except (OSError, ValueError):
            return False
        return False

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        with ContinuedFile(path) as file:
            output = ZipOutput(file)
            for record in records:
                if not _is_plain(record.image_id.encode("utf-8")):
                    raise ValueError(f"image id {record.image_id!r} cannot be a name in a zip; rename the image")
                output.put(f"{record.image_id}{_SUFFIX}".encode(), _json(record, losses))
            output.finish()


def _json(record: RegionRecord, losses: Counter[str]) -> bytes:
    rows = rows_of_classes(record)
    count_losses(losses, record, rows, held=("image_feature",))
    fields: dict[str, Any] = {
        "image_id": record.image_id,
        "image_w": record.width,
        "image_h": record.height,
        "num_boxes": record.num_regions,
        "boxes": base64_text(record.boxes),
        "features": base64_text(record.features),
    }
    if rows is not None:
        fields["classes"] = base64_text(rows)
    if record.image_feature is not None:
        fields["image_box_feature"] = base64_text(record.image_feature)
    return json.dumps(fields).encode("ascii")


FORMAT = VlbertZipFormat()
