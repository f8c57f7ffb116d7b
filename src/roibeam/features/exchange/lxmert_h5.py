"""LXMERT features in HDF5, a group per image, as volta and VL-T5 keep them.

    <image id>/features (K, D) float32     boxes (K, 4) float32, pixels of the original image
               obj_id (K,) int64           obj_conf (K,) float32      0-based, background not counted
               attr_id (K,) int64          attr_conf (K,) float32     the same for attributes
               img_w, img_h                one integer each

Written by e-bug/volta features_extraction/tsv_to_h5.py and detectron2_proposal_maxnms.py; read by its h5_to_lmdb.py and
by j-min/VL-T5 VL-T5/src/vqa_data.py. Not held: class distributions, a feature of the whole image. An id with "/" is a
group in a group. HDF5 can name other files, libraries (filters) and shapes of any size. Only hard links are followed; a
dataset keeps its bytes in the file, as they are or deflated; its size is checked before memory is reserved, and a chunk
is inflated to its own size only.
"""

import itertools
import os
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES, FeatureFile, usable_id
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    attributes_or_zeros,
    float32_array,
    id_array,
    image_size,
    region_record,
    score_array,
    with_attributes,
    without_classes,
)
from roibeam.features.exchange.export_output import atomic_path
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.folders.durable_files import check_regular_file
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import RegionRecord
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


def read_dataset(group: h5py.h5g.GroupID, name: bytes) -> np.ndarray | None:
    """The array of a dataset of numbers in `group`; None when there is no such member. Raises EntryError for links,
    other objects, bytes outside the file, other filters, types and sizes, and damage."""
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
        num_bytes = _num_bytes(shape, dtype.itemsize)
        if num_bytes > MAX_ENTRY_BYTES:
            detail = (
                f"{label} of shape {shape} has {num_bytes:,} bytes, an array of an image at most {MAX_ENTRY_BYTES:,}"
            )
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
    except EntryError:
        raise
    except (*H5_ERRORS, zlib.error) as error:
        raise EntryError("decode", "damaged", f"{label} cannot be read: {first_line(error)}") from None


def _chunked(dataset: h5py.h5d.DatasetID, label: str) -> np.ndarray:
    dtype, shape, plan = dataset.dtype, dataset.shape, dataset.get_create_plist()
    chunk = plan.get_chunk()
    filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    if filters not in ([], [_DEFLATE], [_SHUFFLE, _DEFLATE]):
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
_LOOKED_AT = 20
_GROUP_BYTES = 2**15  # of a group and its eight datasets, with the tree of names above it
_AHEAD_BYTES = 2**16
_CLASSES, _ATTRIBUTES = (b"obj_id", b"obj_conf"), (b"attr_id", b"attr_conf")


class LxmertH5(FeatureFile):
    """A file, opened; see `FeatureFile`."""

    layout = "group-per-image"
    _width: int | None = None
    _has_classes: bool | None = None  # None: set by the first group

    def _open(self) -> None:
        self._file = open_h5(self.path)

    def _scan(self) -> None:
        self._found: list[bytes] = []
        self._seen: set[int] = set()
        self._find(self._file.id, b"", 0)
        self._set_ids(self._found)
        self._seen.clear()
        record = self._first_record("an HDF5 file with a group per image (features, boxes, img_w, img_h)")
        self._width = record.features.shape[1]
        self._has_classes = has_member(h5py.h5g.open(self._file.id, record.image_id.encode()), _CLASSES[0])
        self.details = {
            "classes": "obj_id" if self._has_classes else ABSENT,
            "attributes": "attr_id" if record.attribute_ids is not None else ABSENT,
            "feature_dim": self._width,
            "boxes": "pixels",
        }

    def _find(self, group: h5py.h5g.GroupID, prefix: bytes, depth: int) -> None:
        """Notes the groups with `features`, and looks into the others, each once."""
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
                if member_kind(group, name) != h5py.h5o.TYPE_GROUP:
                    raise EntryError("read", "no group", "is no group of an image")
                inner = h5py.h5g.open(group, name)
                if has_member(inner, b"features"):
                    self._found.append(usable_id(key))
                    continue
                address = h5py.h5o.get_info(inner).addr
                if address in self._seen or depth >= _MAX_DEPTH:
                    raise EntryError("read", "link", "is a group that is also elsewhere in the file; not followed")
                self._seen.add(address)
                if not len(list(inner)):
                    raise EntryError("read", "missing array", "is an empty group: was its writer killed?")
                self._find(inner, key + b"/", depth + 1)
            except EntryError as error:
                self._note(key, error)
            except H5_ERRORS as error:
                self._note(key, EntryError("read", "damaged", f"cannot be opened: {error}"))

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        try:
            group = h5py.h5g.open(self._file.id, self._ids[entry])
        except H5_ERRORS as error:
            raise EntryError("read", "damaged", f"cannot be opened: {error}") from None
        features = self._reading.features(read_dataset(group, b"features"), "features", columns=self._width)
        num_regions = len(features)
        boxes = float32_array(read_dataset(group, b"boxes"), "boxes", rows=num_regions, columns=4)
        height, width = image_size(lambda name: read_dataset(group, name.encode()), ("img_h", "img_w"))
        image_id = self._ids[entry].decode("utf-8")
        classes = self._classes(group, num_regions)
        return region_record(image_id, height, width, boxes, features, classes, dtype=dtype)

    def _classes(self, group: h5py.h5g.GroupID, num_regions: int) -> RegionClasses:
        has_classes = has_member(group, _CLASSES[0]) if self._has_classes is None else self._has_classes
        classes = without_classes(num_regions)
        if has_classes:
            ids, scores = _ids_and_scores(group, _CLASSES, num_regions)
            classes = RegionClasses(self._reading.class_ids(ids, _CLASSES[0].decode()), scores)
        if has_classes and has_member(group, _ATTRIBUTES[0]):
            classes = with_attributes(classes, *_ids_and_scores(group, _ATTRIBUTES, num_regions))
        return classes

    def _place_of(self, name: bytes) -> str:
        return f"{self.path}:/{name.decode('utf-8', 'backslashreplace')}"

    def _close(self) -> None:
        self._file.close()


def _ids_and_scores(
    group: h5py.h5g.GroupID, names: tuple[bytes, bytes], num_regions: int
) -> tuple[np.ndarray, np.ndarray]:
    ids = id_array(read_dataset(group, names[0]), names[0].decode(), num_regions)
    return ids, score_array(read_dataset(group, names[1]), names[1].decode(), num_regions)


class LxmertH5Format(FeatureFormat):
    """See `FeatureFormat`."""

    name = "lxmert-h5"
    title = "HDF5 with a group per image (LXMERT features of volta and VL-T5)"
    suffixes = (".h5", ".hdf5")
    layouts = ("group-per-image",)
    file = LxmertH5

    def looks_like(self, path: Path) -> bool:
        return path.is_file() and bool(h5py.is_hdf5(path))

    def write(self, records: Iterable[RegionRecord], path: Path, *, layout: str | None = None) -> dict[str, int]:
        """See `FeatureFormat`. Features are float32. All eight datasets are always there, since volta's converter takes
        their names from the first group; absent attributes are zeros, as the COCO script of LXMERT has them."""
        self.layout_named(layout)
        losses: Counter[str] = Counter()
        with atomic_path(path) as aside:
            with h5py.File(aside, "w", locking=False) as file, aside.open("r+b") as reserving:
                reserved = 0
                for record in records:
                    count_losses(losses, record, None, held=("classes", "attributes"))
                    needed = file.id.get_filesize() + _most_bytes(record)
                    if needed > reserved:
                        os.posix_fallocate(reserving.fileno(), reserved, needed + _AHEAD_BYTES - reserved)
                        reserved = needed + _AHEAD_BYTES
                    _write_group(file, record)
                file.flush()
                num_bytes = file.id.get_filesize()
            os.truncate(aside, num_bytes)
        return dict(losses)


def _most_bytes(record: RegionRecord) -> int:
    """Room to take before a record is written: HDF5 crashes when a disk is full, at the latest when it is closed."""
    return record.num_regions * (4 * record.features.shape[1] + 64) + 64 * len(record.image_id.encode()) + _GROUP_BYTES


def _write_group(file: h5py.File, record: RegionRecord) -> None:
    if any(part in ("", ".") for part in record.image_id.split("/")) or "\0" in record.image_id:
        raise ValueError(
            f"image id {record.image_id!r} cannot be the name of an HDF5 group (an empty part, '.' or NUL)"
        )
    if record.image_id in file:
        raise ValueError(f"image id {record.image_id!r} is the name of a group already; is another id its beginning?")
    try:
        group = file.create_group(record.image_id)
    except ValueError as error:
        raise ValueError(f"image id {record.image_id!r}: HDF5 makes no group of this name: {error}") from None
    ids, scores = attributes_or_zeros(record)
    group["features"] = record.features.astype(np.float32)
    group["obj_id"] = record.class_ids.astype(np.int64)
    group["obj_conf"] = record.class_scores
    group["attr_id"] = ids.astype(np.int64)
    group["attr_conf"] = scores
    group["boxes"] = record.boxes
    group["img_w"] = record.width
    group["img_h"] = record.height


FORMAT = LxmertH5Format()
