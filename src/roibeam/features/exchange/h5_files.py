"""HDF5 files of other programs: names found and arrays read with bounds, and files written.

HDF5 can name other files, libraries (filters) and shapes of any size. Only hard links are followed; a dataset keeps its
bytes in the file, as they are or deflated; its size is checked before memory is reserved, and a chunk is inflated to
its own size only. Of an array of all images only the rows of one are read.
"""

import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES, FeatureFile
from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.folders.durable_files import check_regular_file
from roibeam.messages import first_line

_MAX_DIMENSIONS = 4
_MAX_CHUNKS = 100_000
_DEFLATE, _SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE
# Errors of h5py for damaged files, depending on where HDF5 met the damage.
H5_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError, UnicodeDecodeError)


def open_h5(path: Path) -> h5py.File:
    """The file, for reading; ValueError when it is no HDF5 file, or a damaged one."""
    check_regular_file(path)
    try:
        # locking=False: the file may lie on a read-only or network disk, and should have no writer.
        return h5py.File(path, "r", locking=False)
    except FileNotFoundError:
        raise
    except H5_ERRORS as error:
        raise ValueError(f"{path}: is no whole HDF5 file: {first_line(error)}") from None


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
        raise EntryError("decode", "damaged", f"its members cannot be read: {first_line(error)}") from None


def read_dataset(group: h5py.h5g.GroupID, name: bytes, rows: tuple[int, int] | None = None) -> np.ndarray | None:
    """The array of a dataset of numbers in `group`; None when there is no such member.

    Args:
        rows: first and last + 1 of those to read, of an array of all images.
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
        dataset = h5py.h5d.open(group, name)
        dtype, shape, plan = dataset.dtype, dataset.shape, dataset.get_create_plist()
        if dtype.kind not in "iuf" or dtype.itemsize > 8:
            raise EntryError("decode", "wrong type", f"{label} holds {dtype}, expected numbers")
        first, last = rows or (0, shape[0] if shape else 0)
        if rows and not (shape and 0 <= first <= last <= shape[0]):
            raise EntryError("decode", "wrong shape", f"{label} of shape {shape} has no rows {first} to {last}")
        wanted = (last - first, *shape[1:]) if shape else ()
        num_bytes, needed = _num_bytes(wanted, dtype.itemsize), _num_bytes(shape, dtype.itemsize)
        if num_bytes > MAX_ENTRY_BYTES:
            detail = f"{label} of shape {wanted} has {num_bytes:,} bytes, that of an image at most {MAX_ENTRY_BYTES:,}"
            raise EntryError("decode", "array too large", detail)
        layout = plan.get_layout()
        if layout not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED) or plan.get_external_count():
            raise EntryError("read", "bytes elsewhere", f"{label} keeps its bytes in other files; not read")
        if layout == h5py.h5d.CHUNKED and rows is None:
            return _chunked(dataset, label)
        if rows and plan.get_nfilters():  # HDF5 would inflate chunks to whatever they become
            raise EntryError("decode", "other filter", f"{label} of all images is packed: repack the file without")
        if layout != h5py.h5d.CHUNKED and num_bytes and dataset.get_storage_size() != needed:
            detail = f"{label} of shape {shape} needs {needed:,} bytes, {dataset.get_storage_size():,} are stored"
            raise EntryError("decode", "wrong byte count", detail)
        array, space = np.empty(wanted, dtype), dataset.get_space()
        if shape and num_bytes:
            space.select_hyperslab((first,) + (0,) * (len(shape) - 1), wanted)
        if num_bytes:
            dataset.read(h5py.h5s.create_simple(wanted) if shape else h5py.h5s.ALL, space, array)
        return array.astype(dtype.newbyteorder("="), copy=False)
    except EntryError:
        raise
    except (*H5_ERRORS, zlib.error) as error:
        raise EntryError("decode", "damaged", f"{label} cannot be read: {first_line(error)}") from None


def _chunked(dataset: h5py.h5d.DatasetID, label: str) -> np.ndarray:
    dtype, shape, plan = dataset.dtype, dataset.shape, dataset.get_create_plist()
    chunk = plan.get_chunk()
    filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    if filters not in ([], [_DEFLATE], [_SHUFFLE, _DEFLATE]):
        detail = f"{label} is packed by HDF5 filters {filters}; read are deflate (gzip) and shuffle: repack the file"
        raise EntryError("decode", "other filter", detail)
    chunk_bytes = _num_bytes(chunk, dtype.itemsize)
    starts = [range(0, side, step) for side, step in zip(shape, chunk, strict=True)]
    if chunk_bytes > MAX_ENTRY_BYTES or np.prod([len(each) for each in starts], dtype=float) > _MAX_CHUNKS:
        raise EntryError("decode", "array too large", f"{label} has chunks of {chunk}, {chunk_bytes:,} bytes each")
    array = np.empty(shape, dtype)
    for start in itertools.product(*starts):
        place = dataset.get_chunk_info_by_coord(start)
        if not place.size or place.size > chunk_bytes + chunk_bytes // 100 + 100:  # deflate adds 0.03 % at most
            detail = f"{label}: a chunk of {chunk_bytes:,} bytes has {place.size:,}"
            raise EntryError("decode", "wrong byte count", detail)
        skipped, data = dataset.read_direct_chunk(start)
        for number, each in reversed(list(enumerate(filters))):
            if not skipped >> number & 1:
                # At most one byte more than the chunk has is inflated: more is an error, and not made.
                inflate = zlib.decompressobj().decompress
                data = inflate(data, chunk_bytes + 1) if each == _DEFLATE else _unshuffled(data, dtype.itemsize)
        if len(data) != chunk_bytes:
            detail = f"{label}: a chunk of {chunk} needs {chunk_bytes:,} bytes, it has {len(data):,}"
            raise EntryError("decode", "wrong byte count", detail)
        target = array[tuple(slice(at, at + step) for at, step in zip(start, chunk, strict=True))]
        source = np.frombuffer(data, dtype).reshape(chunk)
        target[...] = source[tuple(slice(0, side) for side in target.shape)]  # chunks at the border reach over it
    return array.astype(dtype.newbyteorder("="), copy=False)


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


_MAX_DEPTH = 255  # ids have at most 511 bytes
_AHEAD_BYTES = 2**16
OTHER_H5 = "other-h5"
# Group, name of a member, its kind -> end of the key of an image; b"" for what is no image's, None to look into it.
ImageOf = Callable[[h5py.h5g.GroupID, bytes, int], bytes | None]


class H5File(FeatureFile):
    def _open(self) -> None:
        self._file = open_h5(self.path)

    def _keys(self, image_of: ImageOf) -> list[bytes]:
        """Keys of images that have groups or datasets of their own."""
        found: list[bytes] = []
        self._find(image_of, self._file.id, b"", found, set())
        return found

    def _find(
        self, image_of: ImageOf, group: h5py.h5g.GroupID, prefix: bytes, found: list[bytes], seen: set[int]
    ) -> None:
        """Notes the keys of images, and looks into other groups, each once."""
        try:
            names = list(group)
        except H5_ERRORS as error:
            damage = EntryError("read", "damaged", f"group cannot be listed: {error}")
            self._note(prefix or b"/", damage, self._place_of(prefix))
            return
        for name in names:
            key = prefix + name
            try:
                if not is_hard(group, name):
                    raise EntryError("read", "link", "is a link to another place or file; not followed")
                image = image_of(group, name, member_kind(group, name))
                if image is not None:
                    found.extend([prefix + image] if image else [])
                    continue
                inner = h5py.h5g.open(group, name)
                address = h5py.h5o.get_info(inner).addr
                if address in seen or prefix.count(b"/") >= _MAX_DEPTH:
                    raise EntryError("read", "link", "is a group that is also elsewhere in the file; not followed")
                seen.add(address)
                if not len(list(inner)):
                    raise EntryError("read", "missing array", "is an empty group: was its writer killed?")
                self._find(image_of, inner, key + b"/", found, seen)
            except EntryError as error:
                self._note(key, error)
            except H5_ERRORS as error:
                self._note(key, EntryError("read", "damaged", f"cannot be opened: {error}"))

    def _place_of(self, name: bytes) -> str:
        return f"{self.path}:/{name.decode('utf-8', 'backslashreplace')}"

    def _close(self) -> None:
        self._file.close()


def is_dataset(group: h5py.h5g.GroupID, name: bytes) -> bool:
    """Whether a group has a dataset of this name in the same file, and one that is not damaged."""
    try:
        found = group.links.exists(name) and is_hard(group, name)
        return bool(found and member_kind(group, name) == h5py.h5o.TYPE_DATASET)
    except H5_ERRORS:
        return False


def h5_kind(path: Path) -> str:
    """Name of the exchange format whose names an HDF5 file has, `OTHER_H5` or "" for other files. Never raises."""
    if not path.is_file() or not h5py.is_hdf5(path):
        return ""

    def kind_by(name: bytes) -> str | None:
        if name.endswith(b"_features") and is_dataset(root, name):
            return "captioning-h5"
        return "lxmert-h5" if name.endswith(b"/features") else None

    try:
        with open_h5(path) as file:
            root = file.id
            has = {
                name for name in (b"features", b"image_features", b"image_ids", b"image_id") if is_dataset(root, name)
            }
            is_listed = b"features" in has and len(has) > 1
            if is_listed or (b"image_features" in has and not has_member(root, b"image_boxes")):
                return "array-h5"
            return root.links.visit(kind_by) or OTHER_H5
    except H5_ERRORS:
        return "lxmert-h5"


@contextmanager
def h5_output(path: Path) -> Iterator[tuple[h5py.File, Callable[[int], None]]]:
    """A new file at an empty one, and a function that takes room for so many bytes: HDF5 crashes when a disk is full,
    at the latest when it is closed."""
    with h5py.File(path, "w", locking=False) as file, path.open("r+b") as reserving:
        reserved = 0

        def reserve(num_bytes: int) -> None:
            nonlocal reserved
            needed = file.id.get_filesize() + num_bytes
            if needed > reserved:
                os.posix_fallocate(reserving.fileno(), reserved, needed + _AHEAD_BYTES - reserved)
                reserved = needed + _AHEAD_BYTES

        yield file, reserve
        file.flush()
        size = file.id.get_filesize()
    os.truncate(path, size)


def check_name(file: h5py.File, name: str) -> None:
    """Raises ValueError when `name`, made of an image id, cannot be one of an HDF5 file, or is there already."""
    parts = name.split("/")
    if any(part in ("", ".") for part in parts) or "\0" in name:
        raise ValueError(f"image id of {name!r} cannot be the name of an HDF5 group (an empty part, '.' or NUL)")
    above = ("/".join(parts[:at]) for at in range(1, len(parts)))
    if name in file or any(isinstance(file.get(each), h5py.Dataset) for each in above):
        raise ValueError(f"image id of {name!r} is the name of a group already; is another id its beginning?")
