"""M2 Transformer's HDF5 of COCO, with datasets of each image at the root.

    <number>_features (K, D) float32                            <number>_boxes (K, 4) float32, pixels
    <number>_cls_prob (K, 1601) float32, background first       <number>_size (1, 2): height, width

aimagelab/meshed-memory-transformer data/field.py (ImageDetectionsField) looks for the number that ends a photo's file
name, and takes random numbers where it is missing. M2's own file has no sizes: photos are as large as the far edges of
their boxes; luo3300612/image-captioning-DLCT others/extract_region_feature.py writes sizes. Scores in place of rows in
cls_prob are not read. Not held: attributes, classes without a class distribution, a feature of the whole image.

Folders of captioning code: an .npz of features, an .npy of their mean and an .npy of boxes for each image.

    cocobu_att/<number>.npz: feat (K, D) float32               cocobu_box/<number>.npy: (K, 4) float32, pixels
    cocobu_fc/<number>.npy: (D,) float32, mean of the regions

Written by ruotianluo/self-critical.pytorch scripts/make_bu_data.py, read by captioning/data/dataloader.py there and by
AoANet's and SGAE's; some of its files call the features z. Photos are as large as the far edges of their boxes: the
readers take sizes from the captions' json. Not held: image sizes, classes, attributes, a feature of the whole image.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import ImageFolder, first_file, usable_id, write_file
from roibeam.features.exchange.entry_record import FAR_EDGES, EntryError, float32_array, image_size, rows_of_classes
from roibeam.features.exchange.export_output import ContinuedFolder
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.h5_files import H5File, check_name, h5_kind, h5_output, has_member, read_dataset
from roibeam.features.exchange.npy_files import npy_bytes, npy_value, npz_bytes, npz_values, read_file
from roibeam.features.record.region_record import RegionRecord

_FEATURES = b"_features"
_IMAGE_BYTES = 2**14  # of the four datasets of an image, with the tree of names above it


def _image_of(_group: h5py.h5g.GroupID, name: bytes, kind: int) -> bytes | None:
    if kind == h5py.h5o.TYPE_GROUP:
        return None
    return name.removesuffix(_FEATURES) if name.endswith(_FEATURES) else b""


class CaptioningH5(H5File):
    layout = "datasets-per-image"
    _has_rows: bool | None = None  # None: set by the first image

    def _scan(self) -> None:
        self._take_ids(enumerate(self._keys(_image_of)), usable_id)
        sized = any(has_member(self._file.id, name + b"_size") for name in self._ids[:100])
        record = self._first_record("an HDF5 file with <number>_features and _boxes of each image")
        self.details |= {} if sized else {"image_size": FAR_EDGES}
        self._has_rows = isinstance(record.class_distribution, np.ndarray)
        self.details |= {"classes": "cls_prob"} if self._has_rows else {}
        self.details |= self._reading.details(record)

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


H5 = CaptioningH5Format()


_ATT, _BOX = "_att", "_box"
_NAMES = ("feat", "z")


class CaptioningFolders(ImageFolder):
    """Opened by the folder above them or by that of features."""

    suffix = ".npz"
    layout = "att-fc-box"

    def _open(self) -> None:
        self.path = _att_folder(self.path)
        super()._open()
        self._boxes = self.path.with_name(f"{self.path.name.removesuffix(_ATT)}{_BOX}")
        if not self._boxes.is_dir():
            raise ValueError(f"{self.path}: no {self._boxes.name} is beside it; features without boxes are no regions")

    def _scan(self) -> None:
        super()._scan()
        self._first_record("folders of features and boxes (feat in _att, boxes in _box)")
        self.details["image_size"] = FAR_EDGES

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        path = self.file_of(entry)
        values = npz_values(read_file(path), _NAMES)
        features = self._reading.features(values.get("feat", values.get("z")), "feat", columns=self._dim)
        file = self._boxes / path.relative_to(self.path).with_suffix(".npy")
        if not file.resolve().is_relative_to(self._boxes.resolve()) or not file.is_file():
            raise EntryError("read", "missing file", f"has no {file.name} in {self._boxes.name}, or a link out of it")
        boxes = float32_array(npy_value(read_file(file), file.name), "boxes", rows=len(features), columns=4)
        return self._made(entry, None, boxes, features, None, dtype)


def _att_folder(path: Path) -> Path:
    """The folder of features, given it or the one above."""
    found = list(path.glob(f"*{_ATT}")) or [path]
    if len(found) != 1:
        raise ValueError(f"{path}: holds {len(found)} folders that end in {_ATT}, such as cocobu_att; give one")
    return found[0]


class CaptioningFoldersFormat(FeatureFormat):
    name = "captioning-folders"
    title = "folders cocobu_att, cocobu_fc, cocobu_box with files per image (self-critical.pytorch, AoANet, SGAE)"
    layouts = ("att-fc-box",)
    file = CaptioningFolders
    is_file = takes_empty = False
    numbered = True

    def looks_like(self, path: Path) -> bool:
        try:
            file = first_file(_att_folder(path), ".npz")
            return file is not None and bool(npz_values(read_file(file), _NAMES))
        except (ValueError, OSError):
            return False

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        with ContinuedFolder(path) as output:
            for record in records:
                count_losses(losses, record, None)
                losses["image size"] += 1
                features = record.features.astype(np.float32)
                write_file(output, f"cocobu_att/{record.image_id}", ".npz", npz_bytes({"feat": features}))
                write_file(output, f"cocobu_fc/{record.image_id}", ".npy", npy_bytes(features.mean(axis=0)))
                write_file(output, f"cocobu_box/{record.image_id}", ".npy", npy_bytes(record.boxes))


FOLDERS = CaptioningFoldersFormat()
