"""Arrays from the bytes of .npy and .npz files of strangers: nothing is executed, and no number in them is believed.

`numpy.load` makes an array of the shape that the header states before it looks for its bytes, and inflates a member of
an .npz to whatever it becomes. Here an array is made of bytes that are there, and what an archive may inflate to is
bounded. Arrays of Python objects are pickles; they go through `roibeam.features.safe_pickle.read`, which runs nothing.
(Formats: numpy/lib/_format_impl.py; .npz: a zip of .npy members, numpy/lib/_npyio_impl.py.)
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES
from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.safe_pickle.read import loads_pickle
from roibeam.features.safe_pickle.values import UnsafePickleError

_MAX_MEMBERS = 64  # the authors' archives have 6
_ZIP_ENTRY = b"PK\x01\x02"  # starts an entry of a zip's list of members
_MAX_DIMENSIONS = 8
_MAGIC, _LENGTH_BYTES = b"\x93NUMPY", {b"\x01\x00": 2, b"\x02\x00": 4}  # versions; 3 is for names of fields
_HEADER = re.compile(
    rb"\{'descr': '(?P<descr>[<>|=](?:[biufO][0-9]{0,2}|V2))', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,18}L?, ?)*(?:[0-9]{1,18}L?)?)\),? *\} *\n?"
)


def read_file(path: Path) -> bytes:
    """The bytes of a regular file of at most 64 MiB.

    Raises:
        EntryError: for a larger one, a pipe or a device, and one that cannot be read.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise EntryError("read", "no regular file", "is no regular file")
            if status.st_size > MAX_ENTRY_BYTES:
                detail = f"has {status.st_size:,} bytes, the file of an image has at most {MAX_ENTRY_BYTES:,}"
                raise EntryError("read", "file too large", detail)
            return file.read(status.st_size)  # read() makes room for what it is asked for
    except OSError as error:
        raise EntryError("read", "unreadable", f"cannot be read: {error.strerror or error}") from None


def npy_value(data: bytes, name: str) -> Any:
    """The array in the bytes of an .npy file; for an array of one Python object (a dict, mostly) that object.

    Raises:
        EntryError: when the bytes are no such file, are fewer or more than its shape needs, or hold a pickle of
            anything but plain data.
    """
    dtype, fortran, sides, start = _header(data, name)
    if dtype.hasobject:
        try:
            return loads_pickle(data[start:], source=name)
        except UnsafePickleError as error:
            raise EntryError("decode", "refused pickle", str(error)) from None
    if math.prod(sides) * dtype.itemsize != len(data) - start:
        wanted, found = math.prod(sides) * dtype.itemsize, len(data) - start
        detail = f"{name} of shape {sides} needs {wanted:,} bytes, {found:,} are there"
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
    """The members of an .npz file that have these names (without ".npy"), as `npy_value` gives them.

    Raises:
        EntryError: when the bytes are no such archive, when it holds over 64 members, one name twice, an encrypted or
            otherwise packed member, or when the wanted members together inflate to over 64 MiB.
    """
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
