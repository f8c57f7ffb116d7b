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
from roibeam.features.exchange.entry_record import EntryError, attributes_or_zeros, float32_array, image_size
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


def _image_of(group: h5py.h5g.GroupID, name: bytes, kind: int) -> bytes | None:
    if kind != h5py.h5o.TYPE_GROUP:
        raise EntryError("read", "no group", "is no group of an image")
    return name if has_member(h5py.h5g.open(group, name), b"features") else None


class LxmertH5(H5File):
    layout = "group-per-image"
    _has_classes: bool | None = None  # None: set by the first group

    def _scan(self) -> None:
        self._take_ids(enumerate(self._keys(_image_of)), usable_id)
        record = self._first_record("an HDF5 file with a group per image (features, boxes, img_w, img_h)")
        self._has_classes = has_member(h5py.h5g.open(self._file.id, record.image_id.encode()), b"obj_id")
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

        def value_of(name: str) -> np.ndarray | None:
            return read_dataset(group, name.encode())

        boxes = float32_array(value_of("boxes"), "boxes", rows=len(features), columns=4)
        sides, classes = image_size(value_of, ("img_h", "img_w")), None
        if has_member(group, b"obj_id") if self._has_classes is None else self._has_classes:
            attributes = "attr" if has_member(group, b"attr_id") else None
            classes = self._reading.stated_classes(value_of, len(features), "obj", attributes)
        return self._made(entry, sides, boxes, features, classes, dtype)


class LxmertH5Format(FeatureFormat):
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
                check_name(file, record.image_id)
                arrays = _arrays(record)
                names = 64 * len(record.image_id.encode())
                reserve(sum(each.nbytes for each in arrays.values()) + names + _GROUP_BYTES)
                group = file.create_group(record.image_id)
                for name, array in arrays.items():
                    group[name] = array


def _arrays(record: RegionRecord) -> dict[str, np.ndarray]:
    ids, scores = attributes_or_zeros(record)
    return {
        "features": record.features.astype(np.float32),
        "obj_id": record.class_ids.astype(np.int64),
        "obj_conf": record.class_scores,
        "attr_id": ids.astype(np.int64),
        "attr_conf": scores,
        "boxes": record.boxes,
        "img_w": np.array(record.width),
        "img_h": np.array(record.height),
    }


FORMAT = LxmertH5Format()
