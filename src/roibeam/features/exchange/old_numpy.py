"""Writes what old Python 3 with old numpy reads: pickles of plain data, and .npy and .npz files with such in them.

`pickle.dumps` and `numpy.save` of today's numpy name `numpy._core`, which the numpy of the consumers (1.x, before 1.26)
does not have. The names written here are those of numpy 1, which numpy 2 still knows. Protocol 3: Python 3.0 and later
(opcodes: python/cpython Lib/pickletools.py; state of an array: numpy/_core/src/multiarray/methods.c, array_setstate).
The bytes depend on nothing but the values: no times are stored.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

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
    """One pickle of None, bool, int (64 bits), float, str, bytes, lists, dicts and numpy arrays of numbers.

    Raises:
        TypeError: for anything else.
    """
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


def npz_bytes(values: Mapping[str, np.ndarray | dict[str, Any]]) -> bytes:
    """A compressed .npz file, as `numpy.savez_compressed` makes it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in values.items():
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH_OF_ZIP)
            member.compress_type = zipfile.ZIP_DEFLATED
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
