"""Writes pickles of plain data that old Python 3 with old numpy reads.

`pickle.dumps` of today's numpy names `numpy._core`, which the numpy of the consumers (1.x, before 1.26) does not have.
The names written here are those of numpy 1, which numpy 2 still knows. Protocol 3: Python 3.0 and later
(opcodes: python/cpython Lib/pickletools.py; state of an array: numpy/_core/src/multiarray/methods.c, array_setstate).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

_U4 = struct.Struct("<I")
_NONE, _TRUE, _FALSE = b"N", b"\x88", b"\x89"
_MAX_PART_BYTES = 2**32 - 1
_RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
_DTYPE_STATE = b"K\x03" + b"X\x01\x00\x00\x00<" + 3 * _NONE + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"


def plain_pickle(value: Any) -> bytes:
    """One pickle of None, bool, int (64 bits), float, str, bytes, lists, dicts and numpy arrays of numbers.

    Raises:
        TypeError: for anything else.
    """
    parts = [b"\x80\x03"]
    _add(parts, value)
    parts.append(b".")
    return b"".join(parts)


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
