"""LXMERT features in HDF5, a group per image, as volta and VL-T5 keep them.

    <image id>/features (K, D) float32     boxes (K, 4) float32, pixels of the original image
               obj_id (K,) int64           obj_conf (K,) float32      0-based, background not counted
               attr_id (K,) int64          attr_conf (K,) float32     the same for attributes
               img_w, img_h                one integer each

Written by e-bug/volta features_extraction/tsv_to_h5.py and detectron2_proposal_maxnms.py; read by its h5_to_lmdb.py and
by j-min/VL-T5 VL-T5/src/vqa_data.py. Not held: class distributions, a feature of the whole image. An id with "/" is a
group in a group.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import usable_id
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    attributes_or_zeros,
    float32_array,
    id_array,
    image_size,
    score_array,
    with_attributes,
    without_classes,
)
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.h5_files import (
    H5_ERRORS,
    OTHER_H5,
    H5File,
    check_name,
    h5_kind,
    h5_output,
    has_member,
    read_dataset,
)
from roibeam.features.record.region_record import RegionRecord

_GROUP_BYTES = 2**15  # of a group and its eight datasets, with the tree of names above it
_CLASSES, _ATTRIBUTES = (b"obj_id", b"obj_conf"), (b"attr_id", b"attr_conf")


def _image_of(group: h5py.h5g.GroupID, name: bytes, kind: int) -> bytes | None:
    if kind != h5py.h5o.TYPE_GROUP:
        raise EntryError("read", "no group", "is no group of an image")
    return name if has_member(h5py.h5g.open(group, name), b"features") else None


class LxmertH5(H5File):
    """A file, opened; see `FeatureFile`."""

    layout = "group-per-image"
    _has_classes: bool | None = None  # None: set by the first group

    def _scan(self) -> None:
        self._take_ids(enumerate(self._keys(_image_of)), usable_id)
        record = self._first_record("an HDF5 file with a group per image (features, boxes, img_w, img_h)")
        self._has_classes = has_member(h5py.h5g.open(self._file.id, record.image_id.encode()), _CLASSES[0])
        if self._has_classes:
            self.details["classes"] = "obj_id"
        if record.attribute_ids is not None:
            self.details["attributes"] = "attr_id"

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        try:
            group = h5py.h5g.open(self._file.id, self._ids[entry])
        except H5_ERRORS as error:
            raise EntryError("read", "damaged", f"cannot be opened: {error}") from None
        features = self._reading.features(read_dataset(group, b"features"), "features", columns=self._dim)
        num_regions = len(features)
        boxes = float32_array(read_dataset(group, b"boxes"), "boxes", rows=num_regions, columns=4)
        height, width = image_size(lambda name: read_dataset(group, name.encode()), ("img_h", "img_w"))
        classes = self._classes(group, num_regions)
        return self._made(entry, (height, width), boxes, features, classes, dtype)

    def _classes(self, group: h5py.h5g.GroupID, num_regions: int) -> RegionClasses:
        has_classes = has_member(group, _CLASSES[0]) if self._has_classes is None else self._has_classes
        classes = without_classes(num_regions)
        if has_classes:
            ids, scores = _ids_and_scores(group, _CLASSES, num_regions)
            classes = RegionClasses(self._reading.class_ids(ids, _CLASSES[0].decode()), scores)
        if has_classes and has_member(group, _ATTRIBUTES[0]):
            classes = with_attributes(classes, *_ids_and_scores(group, _ATTRIBUTES, num_regions))
        return classes


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
    goes_on = False

    def looks_like(self, path: Path) -> bool:
        return h5_kind(path) in (self.name, OTHER_H5)

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        """Features are float32. All eight datasets are always there, since volta's converter takes their names from the
        first group; absent attributes are zeros, as the COCO script of LXMERT has them."""
        with h5_output(path) as (file, reserve):
            for record in records:
                count_losses(losses, record, None, held=("classes", "attributes"))
                reserve(_most_bytes(record))
                _write_group(file, record)


def _most_bytes(record: RegionRecord) -> int:
    """Room to take before a record is written: HDF5 crashes when a disk is full, at the latest when it is closed."""
    return record.num_regions * (4 * record.features.shape[1] + 64) + 64 * len(record.image_id.encode()) + _GROUP_BYTES


def _write_group(file: h5py.File, record: RegionRecord) -> None:
    check_name(file, record.image_id)
    group = file.create_group(record.image_id)
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
