"""Numpy arrays as bytes: .npy, .npz and msgpack, read without running anything, written as old numpy reads them.

`numpy.load` makes an array of the shape that the header states before it looks for its bytes, and inflates a member of
an .npz to whatever it becomes. Here an array is made of bytes that are there, and the size after inflation is bounded.
Arrays of Python objects are pickles; they go through safe_pickle.py. (numpy/lib/_format_impl.py, _npyio_impl.py.)

msgpack-numpy (lebedov/msgpack-numpy, encode and decode) unpickles the data of a map that says kind "O"; here that is
refused. All of msgpack (github.com/msgpack/msgpack spec.md) but extension types is read, 10,000 parts of a value.

Today's numpy writes the name `numpy._core`, which numpy 1 before 1.26 lacks; here numpy 1's names are written, with
pickle protocol 3 and no times (python/cpython Lib/pickletools.py; numpy/_core/src/multiarray/methods.c).
"""

import io
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES
from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.pickle_values import UnsafePickleError
from roibeam.features.safe_pickle import loads_pickle

_MAX_MEMBERS = 64  # the authors' archives have 6
_ZIP_ENTRY = b"PK\x01\x02"  # starts an entry of a zip's list of members
_MAX_DIMENSIONS = 8
_MAGIC, _LENGTH_BYTES = b"\x93NUMPY", {b"\x01\x00": 2, b"\x02\x00": 4}  # versions; 3 is for names of fields
_HEADER = re.compile(
    rb"\{'descr': '(?P<descr>[<>|=](?:[biufO][0-9]{0,2}|V2))', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,18}L?, ?)*(?:[0-9]{1,18}L?)?)\),? *\} *\n?"
)


def read_file(path: Path) -> bytes:
    """The bytes of a regular file of at most 64 MiB; EntryError for a larger one, a pipe or a device, and one that
    cannot be read."""
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise EntryError("read", "no regular file", "is no regular file")
            if status.st_size > MAX_ENTRY_BYTES:
                detail = f"has {status.st_size:,} bytes, the file of an image has at most {MAX_ENTRY_BYTES:,}"
                raise EntryError("read", "file too large", detail)
            return file.read(status.st_size)  # read() makes room for all bytes requested
    except OSError as error:
        raise EntryError("read", "unreadable", f"cannot be read: {error.strerror or error}") from None


def npy_value(data: bytes, name: str) -> Any:
    """The array in the bytes of an .npy file; for an array of one Python object (a dict, mostly) that object. Raises
    EntryError when the bytes are no such file, are fewer or more than its shape needs, or hold a pickle of anything but
    plain data."""
    dtype, fortran, sides, start = _header(data, name)
    if dtype.hasobject:
        try:
            return loads_pickle(data[start:], source=name)
        except UnsafePickleError as error:
            raise EntryError("decode", "refused pickle", str(error)) from None
    if math.prod(sides) * dtype.itemsize != len(data) - start:
        needed, found = math.prod(sides) * dtype.itemsize, len(data) - start
        detail = f"{name} of shape {sides} needs {needed:,} bytes, {found:,} are there"
        raise EntryError("decode", "wrong byte count", detail)
    array = np.frombuffer(data, dtype, offset=start) if math.prod(sides) else np.empty(0, dtype)
    array = array.reshape(sides, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


def _header(data: bytes, name: str) -> tuple[np.dtype, bool, tuple[int, ...], int]:
    """dtype, Fortran order, shape, and where the content starts.

    Only headers as numpy writes them: its own reader takes any Python literal, through Python's compiler.
    """
    length_bytes = _LENGTH_BYTES.get(data[6:8], 0) if data[:6] == _MAGIC else 0
    start = 8 + length_bytes + int.from_bytes(data[8 : 8 + length_bytes], "little")
    header = data[8 + length_bytes : start]
    found = _HEADER.fullmatch(header) if length_bytes and start <= len(data) and len(header) < 1000 else None
    if found is None or found["shape"].count(b",") > _MAX_DIMENSIONS:
        raise EntryError("decode", "not an npy file", f"{name} is no npy file of an array: {data[:40]!r}")
    try:
        dtype = np.dtype(found["descr"].decode("ascii"))
    except TypeError:
        raise EntryError("decode", "wrong type", f"{name}: {found['descr']!r} is no dtype of numpy") from None
    sides = tuple(int(side.rstrip(b"L")) for side in re.findall(rb"[0-9]+L?", found["shape"]))
    return dtype, found["fortran"] == b"True", sides, start


def npz_values(data: bytes, names: Collection[str]) -> dict[str, Any]:
    """The members of an .npz file that have these names (without ".npy"), as `npy_value` gives them. Raises EntryError
    when the bytes are no such archive, when it holds over 64 members, one name twice, an encrypted or otherwise packed
    member, or when the members of `names` together inflate to over 64 MiB."""
    if data.count(_ZIP_ENTRY) > _MAX_MEMBERS:  # before zipfile makes an object of each
        raise EntryError("decode", "not an npz file", f"has over {_MAX_MEMBERS} members; an image has about 6")
    values: dict[str, Any] = {}
    left = MAX_ENTRY_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name not in names:
                    continue
                if name in values:
                    raise EntryError("decode", "not an npz file", f"holds {name!r} twice; which one is meant?")
                content = _member(archive, member, left)
                left -= len(content)
                values[name] = npy_value(content, name)
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, EntryError):
            raise
        raise EntryError("decode", "not an npz file", f"is no whole npz file: {error}") from None
    return values


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, left: int) -> bytes:
    if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise EntryError("decode", "not an npz file", f"{member.filename!r} is encrypted or packed as numpy never does")
    if member.file_size > left:
        detail = f"{member.filename!r} inflates to {member.file_size:,} bytes; an image has at most {MAX_ENTRY_BYTES:,}"
        raise EntryError("decode", "archive too large", detail)
    with archive.open(member) as file:  # stops at the stated size, whatever the packed bytes would become
        return file.read(member.file_size)


_U4 = struct.Struct("<I")
_NONE, _TRUE, _FALSE = b"N", b"\x88", b"\x89"
_MAX_PART_BYTES = 2**32 - 1
_RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
_DTYPE_STATE = b"K\x03" + b"X\x01\x00\x00\x00<" + 3 * _NONE + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
# The pickle of an array of shape () and dtype object: what it holds comes between the two halves. The state of the
# array is (version, shape, dtype, Fortran order, [object]), that of the dtype (version, byte order, no parts, flags).
_OBJECT_ARRAY_START = (
    b"\x80\x03cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01)"
    b"cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R(K\x03X\x01\x00\x00\x00|NNN"
    b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb\x89]("
)
_OBJECT_ARRAY_END = b"etb."
_EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)


def plain_pickle(value: Any) -> bytes:
    """One pickle of None, bool, int (64 bits), float, str, bytes, lists, dicts and numpy arrays of numbers; TypeError
    for anything else."""
    parts = [b"\x80\x03"]
    _add(parts, value)
    parts.append(b".")
    return b"".join(parts)


def npy_bytes(value: np.ndarray | dict[str, Any]) -> bytes:
    """An .npy file of an array of numbers, or of a dict of plain data (read with `allow_pickle=True` and `.item()`)."""
    stream = io.BytesIO()
    if isinstance(value, np.ndarray):
        npy_format.write_array(stream, value, version=(1, 0), allow_pickle=False)
    else:
        npy_format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": ()})
        stream.write(_OBJECT_ARRAY_START + plain_pickle(value)[2:-1] + _OBJECT_ARRAY_END)
    return stream.getvalue()


def npz_bytes(values: Mapping[str, np.ndarray | dict[str, Any]], *, compressed: bool = True) -> bytes:
    """An .npz file, as `numpy.savez_compressed` makes it, or `numpy.savez`."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in values.items():
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH_OF_ZIP)
            member.compress_type = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
            archive.writestr(member, npy_bytes(value))
    return stream.getvalue()


def _add(parts: list[bytes], value: Any) -> None:
    if value is None:
        parts.append(_NONE)
    elif isinstance(value, bool):
        parts.append(_TRUE if value else _FALSE)
    elif isinstance(value, int):
        parts.append(_integer(value))
    elif isinstance(value, float):
        parts.append(b"G" + struct.pack(">d", value))
    elif isinstance(value, str):
        parts.extend(_sized(b"X", value.encode("utf-8")))
    elif isinstance(value, bytes):
        parts.extend(_sized(b"B", value))
    elif isinstance(value, list):
        parts.append(b"](")
        for item in value:
            _add(parts, item)
        parts.append(b"e")
    elif isinstance(value, dict):
        parts.append(b"}(")
        for key, item in value.items():
            _add(parts, key)
            _add(parts, item)
        parts.append(b"u")
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        _add_array(parts, value)
    else:
        raise TypeError(f"a plain pickle holds no {type(value).__name__}")


def _add_array(parts: list[bytes], array: np.ndarray) -> None:
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    code = f"{array.dtype.kind}{array.dtype.itemsize}"
    parts.append(_RECONSTRUCT + b"(K\x01(" + b"".join(map(_integer, array.shape)) + b"t")
    parts.append(b"cnumpy\ndtype\n" + b"".join(_sized(b"X", code.encode())) + _FALSE + _TRUE + b"\x87R(" + _DTYPE_STATE)
    parts.append(_FALSE)  # C order
    parts.extend(_sized(b"B", array.tobytes()))
    parts.append(b"tb")


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    if not -(2**63) <= value < 2**63:
        raise TypeError("a plain pickle holds no integer of more than 64 bits")
    return b"\x8a\x08" + struct.pack("<q", value)


def _sized(opcode: bytes, data: bytes) -> tuple[bytes, bytes]:
    if len(data) > _MAX_PART_BYTES:
        raise TypeError("a plain pickle holds no part of 4 GB")
    return opcode + _U4.pack(len(data)), data


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
    """The arrays of a dict; its other values are left out. Arrays are read-only views of `data`. Raises EntryError for
    anything that is no such dict."""
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
            found: dict[str, Any] = {}
            for _ in range(self._count(code & 0x0F, _MAPS.get(code))):
                key = self.value(depth + 1)
                name = self._text(key) if isinstance(key, memoryview) else key
                if not isinstance(name, str) or name in found:
                    raise EntryError("decode", "bad msgpack", "has a map with a key that is no name, or comes twice")
                found[name] = self.value(depth + 1)
            return found
        if code < 0xA0 or code in _LISTS:
            return [self.value(depth + 1) for _ in range(self._count(code & 0x0F, _LISTS.get(code)))]
        if code < 0xC0 or code in _STRINGS:
            return self._text(self._take(self._count(code & 0x1F, _STRINGS.get(code))))
        if code in _BINS:
            return self._take(self._count(0, _BINS[code]))
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        raise EntryError("decode", "bad msgpack", f"has a value of type 0x{code:02x} at byte {self.at - 1}; refused")

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
