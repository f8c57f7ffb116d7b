"""Folders of captioning code: an .npz of features, an .npy of their mean and an .npy of boxes for each image.

    cocobu_att/<number>.npz: feat (K, D) float32               cocobu_box/<number>.npy: (K, 4) float32, pixels
    cocobu_fc/<number>.npy: (D,) float32, mean of the regions

Written by ruotianluo/self-critical.pytorch scripts/make_bu_data.py, read by captioning/data/dataloader.py there and by
AoANet's and SGAE's; some of its files call the features z. Photos are as large as the far edges of their boxes: the
readers take sizes from the captions' json. Not held: image sizes, classes, attributes, a feature of the whole image.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import ImageFolder, first_file, write_file
from roibeam.features.exchange.entry_record import FAR_EDGES, EntryError, float32_array
from roibeam.features.exchange.export_output import ContinuedFolder
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.npy_files import npy_bytes, npy_value, npz_bytes, npz_values, read_file
from roibeam.features.record.region_record import RegionRecord

_ATT, _BOX = "_att", "_box"
_NAMES = ("feat", "z")


class CaptioningFolders(ImageFolder):
    """The folders, opened by the one above them or by that of features; see `FeatureFile`."""

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
    """See `FeatureFormat`."""

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


FORMAT = CaptioningFoldersFormat()
