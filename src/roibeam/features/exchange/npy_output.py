"""Bytes of .npy and .npz files that the numpy of old consumers reads, with a dict in them as `numpy.save` puts it.

`numpy.save` of today pickles an object under names (`numpy._core`) that numpy before 1.26 does not have; see
plain_pickle. The bytes depend on nothing but the values: no times are stored.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from roibeam.features.exchange.plain_pickle import plain_pickle

# The pickle of an array of shape () and dtype object: what it holds comes between the two halves. The state of the
# array is (version, shape, dtype, Fortran order, [object]), that of the dtype (version, byte order, no parts, flags).
_OBJECT_ARRAY_START = (
    b"\x80\x03cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01)"
    b"cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R(K\x03X\x01\x00\x00\x00|NNN"
    b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb\x89]("
)
_OBJECT_ARRAY_END = b"etb."
_EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)


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
