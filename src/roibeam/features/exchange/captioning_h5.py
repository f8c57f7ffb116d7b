"""M2 Transformer's HDF5 of COCO, with datasets of each image at the root.

    <number>_features (K, D) float32                            <number>_boxes (K, 4) float32, pixels
    <number>_cls_prob (K, 1601) float32, background first       <number>_size (1, 2): height, width

aimagelab/meshed-memory-transformer data/field.py (ImageDetectionsField) looks for the number that ends a photo's file
name, and takes random numbers where it is missing. M2's own file has no sizes: photos are as large as the far edges of
their boxes; luo3300612/image-captioning-DLCT others/extract_region_feature.py writes sizes. Scores in place of rows in
cls_prob are not read. Not held: attributes, classes without a class distribution, a feature of the whole image.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import usable_id
from roibeam.features.exchange.entry_record import FAR_EDGES, float32_array, image_size, rows_of_classes
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.h5_files import H5File, check_name, h5_kind, h5_output, has_member, read_dataset
from roibeam.features.record.region_record import RegionRecord

_FEATURES = b"_features"
_IMAGE_BYTES = 2**14  # of the four datasets of an image, with the tree of names above it


def _image_of(group: h5py.h5g.GroupID, name: bytes, kind: int) -> bytes | None:
    if kind == h5py.h5o.TYPE_GROUP:
        return None
    return name.removesuffix(_FEATURES) if name.endswith(_FEATURES) else b""


class CaptioningH5(H5File):
    """A file, opened; see `FeatureFile`."""

    layout = "datasets-per-image"
    _columns: int | None = None
    _has_rows: bool | None = None  # None: set by the first image

    def _scan(self) -> None:
        self._take_ids(enumerate(self._keys(_image_of)), usable_id)
        sized = any(has_member(self._file.id, name + b"_size") for name in self._ids[:100])
        record = self._first_record("an HDF5 file with <number>_features and _boxes of each image")
        self.details |= {} if sized else {"image_size": FAR_EDGES}
        self._has_rows = isinstance(record.class_distribution, np.ndarray)
        self.details |= {"classes": "cls_prob"} if self._has_rows else {}
        self.details |= self._reading.details(record)
        if isinstance(record.class_distribution, np.ndarray):
            self._columns = self._reading.num_columns(record.class_distribution)

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        name = self._ids[entry]
        features, boxes, rows, sides = (
            read_dataset(self._file.id, name + ending) for ending in (_FEATURES, b"_boxes", b"_cls_prob", b"_size")
        )
        features = self._reading.features(features, "features", columns=self._dim)
        boxes = float32_array(boxes, "boxes", rows=len(features), columns=4)
        size = classes = None
        if sides is not None:
            size = image_size(dict(zip("hw", sides.reshape(-1).tolist(), strict=False)).get, ("h", "w"))
        if self._has_rows or (self._has_rows is None and rows is not None and rows.ndim == 2):
            classes = self._reading.classes_of(rows, "cls_prob", len(features), self._columns)
        return self._made(entry, size, boxes, features, classes, dtype)


class CaptioningH5Format(FeatureFormat):
    """See `FeatureFormat`."""

    name = "captioning-h5"
    title = "HDF5 with <number>_features, _boxes and _cls_prob of each image (captioning: M2, DLCT)"
    suffixes = (".hdf5", ".h5")
    layouts = ("datasets-per-image",)
    file = CaptioningH5
    goes_on, numbered = False, True

    def looks_like(self, path: Path) -> bool:
        return h5_kind(path) == self.name

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        """Features are float32; without a class distribution an image has no cls_prob."""
        with h5_output(path) as (file, reserve):
            for record in records:
                rows = rows_of_classes(record)
                count_losses(losses, record, rows)
                check_name(file, f"{record.image_id}_features")
                arrays = {"features": record.features.astype(np.float32), "boxes": record.boxes}
                arrays |= {} if rows is None else {"cls_prob": rows}
                arrays["size"] = np.array([[record.height, record.width]])
                reserve(sum(each.nbytes for each in arrays.values()) + _IMAGE_BYTES)
                for part, array in arrays.items():
                    file[f"{record.image_id}_{part}"] = array


FORMAT = CaptioningH5Format()
