"""Arrays from HDF5 files of strangers, through h5py, without what HDF5 does on a file's word.

An HDF5 file can name other files to read (external links, external storage, virtual datasets), libraries to load
(filters), and shapes and chunks of any size. Here links are followed only when they are hard, that is, point into the
file; a dataset must keep its bytes in the file, as they are or deflated; its size is checked before memory is asked
for, and a deflated chunk is inflated here, to its own size and no further.
"""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path

import h5py
import numpy as np

from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES
from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.folders.durable_files import check_regular_file

_MAX_DIMENSIONS = 4
_MAX_CHUNKS = 100_000
_DEFLATE, _SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE
# What h5py raises for damaged files, depending on where HDF5 met the damage.
H5_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError, UnicodeDecodeError)


def open_h5(path: Path) -> h5py.File:
    """The file, for reading.

    Raises:
        ValueError: when it is no HDF5 file, or a damaged one.
    """
    check_regular_file(path)
    try:
        # locking=False: the file may lie on a read-only or network disk, and nobody should be writing it.
        return h5py.File(path, "r", locking=False)
    except FileNotFoundError:
        raise
    except H5_ERRORS as error:
        raise ValueError(f"{path}: is no whole HDF5 file: {_first_line(error)}") from None


def is_hard(group: h5py.h5g.GroupID, name: bytes) -> bool:
    """Whether a member of a group lies in the same file, rather than behind a soft or external link."""
    return bool(group.links.get_info(name).type == h5py.h5l.TYPE_HARD)


def member_kind(group: h5py.h5g.GroupID, name: bytes) -> int:
    """`h5py.h5g.GROUP`, `DATASET` or another kind of a member that `is_hard`."""
    return int(h5py.h5o.get_info(group, name).type)


def has_member(group: h5py.h5g.GroupID, name: bytes) -> bool:
    """Whether a group has a member of this name, whatever it is; EntryError when the group is damaged."""
    try:
        return bool(group.links.exists(name))
    except H5_ERRORS as error:
        raise EntryError("decode", "damaged", f"its members cannot be read: {_first_line(error)}") from None


def read_dataset(group: h5py.h5g.GroupID, name: bytes) -> np.ndarray | None:
    """The array of a dataset of numbers in `group`; None when there is no such member.

    Raises:
        EntryError: for links, other objects, bytes outside the file, other filters, types and sizes, and damage.
    """
    label = name.decode("utf-8", "backslashreplace")
    try:
        if not group.links.exists(name):
            return None
        if not is_hard(group, name):
            raise EntryError("read", "link", f"{label} is a link to another place or file; not followed")
        if member_kind(group, name) != h5py.h5o.TYPE_DATASET:
            raise EntryError("decode", "wrong type", f"{label} is no dataset")
        return _array(h5py.h5d.open(group, name), label)
    except EntryError:
        raise
    except (*H5_ERRORS, zlib.error) as error:
        raise EntryError("decode", "damaged", f"{label} cannot be read: {_first_line(error)}") from None


def _array(dataset: h5py.h5d.DatasetID, label: str) -> np.ndarray:
    dtype, shape, plan = dataset.dtype, dataset.shape, dataset.get_create_plist()
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise EntryError("decode", "wrong type", f"{label} holds {dtype}, expected numbers")
    num_bytes = _num_bytes(shape, dtype.itemsize)
    if num_bytes > MAX_ENTRY_BYTES:
        detail = f"{label} of shape {shape} has {num_bytes:,} bytes, an array of an image at most {MAX_ENTRY_BYTES:,}"
        raise EntryError("decode", "array too large", detail)
    layout = plan.get_layout()
    if layout not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED) or plan.get_external_count():
        raise EntryError("read", "bytes elsewhere", f"{label} keeps its bytes in other files; not read")
    if layout == h5py.h5d.CHUNKED:
        return _chunked(dataset, label)
    if num_bytes and dataset.get_storage_size() != num_bytes:
        detail = f"{label} of shape {shape} needs {num_bytes:,} bytes, {dataset.get_storage_size():,} are stored"
        raise EntryError("decode", "wrong byte count", detail)
    array = np.empty(shape, dtype)
    if num_bytes:
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _chunked(dataset: h5py.h5d.DatasetID, label: str) -> np.ndarray:
    dtype, shape, plan = dataset.dtype, dataset.shape, dataset.get_create_plist()
    chunk = plan.get_chunk()
    filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    if any(each not in (_DEFLATE, _SHUFFLE) for each in filters) or filters not in (
        [],
        [_DEFLATE],
        [_SHUFFLE, _DEFLATE],
    ):
        detail = (
            f"{label} is packed by the HDF5 filters {filters}; read are deflate (gzip) and shuffle: repack the file"
        )
        raise EntryError("decode", "other filter", detail)
    chunk_bytes = _num_bytes(chunk, dtype.itemsize)
    starts = [range(0, side, step) for side, step in zip(shape, chunk, strict=True)]
    if chunk_bytes > MAX_ENTRY_BYTES or np.prod([len(each) for each in starts], dtype=float) > _MAX_CHUNKS:
        raise EntryError("decode", "array too large", f"{label} has chunks of {chunk}, {chunk_bytes:,} bytes each")
    array = np.empty(shape, dtype)
    for start in itertools.product(*starts):
        place = dataset.get_chunk_info_by_coord(start)
        if not place.size or place.size > chunk_bytes + chunk_bytes // 100 + 100:  # deflate adds 0.03 % at most
            raise EntryError(
                "decode", "wrong byte count", f"{label}: a chunk of {chunk_bytes:,} bytes has {place.size:,}"
            )
        skipped, data = dataset.read_direct_chunk(start)
        for number, each in reversed(list(enumerate(filters))):
            if not skipped >> number & 1:
                data = _inflated(data, chunk_bytes) if each == _DEFLATE else _unshuffled(data, dtype.itemsize)
        if len(data) != chunk_bytes:
            detail = f"{label}: a chunk of {chunk} needs {chunk_bytes:,} bytes, it has {len(data):,}"
            raise EntryError("decode", "wrong byte count", detail)
        target = array[tuple(slice(at, at + step) for at, step in zip(start, chunk, strict=True))]
        source = np.frombuffer(data, dtype).reshape(chunk)
        target[...] = source[tuple(slice(0, side) for side in target.shape)]  # chunks at the border reach over it
    return array.astype(dtype.newbyteorder("="), copy=False)


def _inflated(data: bytes, num_bytes: int) -> bytes:
    """At most one byte over what is wanted: more is wrong, and not made."""
    return zlib.decompressobj().decompress(data, num_bytes + 1)


def _unshuffled(data: bytes, itemsize: int) -> bytes:
    if len(data) % itemsize:
        return b""
    return np.frombuffer(data, np.uint8).reshape(itemsize, -1).T.tobytes()


def _num_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    if len(shape) > _MAX_DIMENSIONS:
        return MAX_ENTRY_BYTES + 1
    total = itemsize
    for side in shape:
        total *= int(side)
    return total


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
