"""A folder with one .npz per image, as MILVLG's extractors and readers have it.

    layout    x        image size         who writes it, who reads it
    milvlg    (K, D)   image_h, image_w   MILVLG/bottom-up-attention.pytorch utils/extract_utils.py (save_roi_features)
    openvqa   (D, K)   image_h, image_w   read by MILVLG/openvqa openvqa/datasets/vqa/vqa_loader.py (load_img_feats)
    gqa       (K, D)   height, width      MILVLG/openvqa data/gqa/gqa_feat_preproc.py, read by gqa_loader.py

`bbox` is (K, 4) in pixels of the original image. Only "milvlg" has classes: `info`, a pickled dict, holds objects_id
and attrs_id (0-based, background not counted) with objects_conf and attrs_conf. No layout has class distributions or a
feature of the whole image. Files of the extractor's mode "bboxes" have no x and give no record.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import ImageFolder, first_file, write_file
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    float32_array,
    float_array,
    image_size,
    without_classes,
)
from roibeam.features.exchange.export_output import ContinuedFolder
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.npy_files import npz_bytes, npz_values, read_file
from roibeam.features.record.region_record import MAX_REGIONS, RegionRecord

_SUFFIX = ".npz"
_NAMES = ("x", "bbox", "image_h", "image_w", "height", "width", "info")


class MilvlgNpz(ImageFolder):
    suffix = _SUFFIX
    _has_classes: bool | None = None  # None: set by the first file

    def _scan(self) -> None:
        super()._scan()
        record = self._first_record("a folder with an .npz per image (x, bbox, image_h, image_w)")
        info = npz_values(read_file(self.path / f"{record.image_id}{_SUFFIX}"), ("info",)).get("info", {})
        self._has_classes = self.layout == "milvlg" and "objects_id" in info
        if self._has_classes:
            self.details["classes"] = "info.objects_id"
        if record.attribute_ids is not None:
            self.details["attributes"] = "info.attrs_id"

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        values = npz_values(read_file(self.file_of(entry)), _NAMES)
        if "x" not in values or "bbox" not in values:
            missing = "x" if "x" not in values else "bbox"
            raise EntryError("decode", "missing array", f"has no {missing}; files of bboxes alone have no features")
        boxes = float32_array(values["bbox"], "bbox", columns=4)
        values["x"] = self._reading.typed(values["x"], "x")
        layout = self._layout_of(values, len(boxes))
        if self.layout and layout != self.layout:
            raise EntryError("decode", "another layout", f"is of layout {layout}, the first file is of {self.layout}")
        features = values["x"].T if layout == "openvqa" else values["x"]
        features = float_array(features, "x", rows=len(boxes), columns=self._dim)
        sides = ("height", "width") if layout == "gqa" else ("image_h", "image_w")
        classes = self._classes(values.get("info", {}), len(boxes))
        record = self._made(entry, image_size(values.get, sides), boxes, features, classes, dtype)
        self.layout = self.layout or layout
        return record

    def _classes(self, info: Any, num_regions: int) -> RegionClasses:
        if not isinstance(info, dict):
            raise EntryError("decode", "wrong type", f"info is a {type(info).__name__}, expected a dict")
        if not ("objects_id" in info if self._has_classes is None else self._has_classes):
            return without_classes(num_regions)
        attributes = "info.attrs" if "attrs_id" in info else None
        return self._reading.stated_classes(
            lambda name: info.get(name.removeprefix("info.")), num_regions, "info.objects", attributes
        )

    def _layout_of(self, values: dict[str, Any], num_boxes: int) -> str:
        x = values["x"]
        if not isinstance(x, np.ndarray) or x.ndim != 2 or num_boxes not in x.shape or num_boxes > MAX_REGIONS:
            shape = x.shape if isinstance(x, np.ndarray) else type(x).__name__
            detail = f"x is {shape}, with {num_boxes} boxes it is ({num_boxes}, D) or (D, {num_boxes})"
            raise EntryError("decode", "wrong shape", detail)
        if "info" in values:
            return "milvlg"
        if "image_h" not in values:
            return "gqa"
        # As many boxes as values in a row: the other files decide which side is which.
        unclear = x.shape[0] == x.shape[1] == num_boxes and bool(self.layout)
        return self.layout if unclear else "openvqa" if x.shape[1] == num_boxes else "milvlg"


class MilvlgNpzFormat(FeatureFormat):
    name = "milvlg-npz"
    title = "folder with an .npz per image (MILVLG bottom-up-attention.pytorch, openvqa)"
    layouts = ("milvlg", "openvqa", "gqa")
    file = MilvlgNpz
    is_file = False

    def looks_like(self, path: Path) -> bool:
        file = first_file(path, _SUFFIX)
        if file is None:
            return False
        try:
            return {"x", "bbox"} & npz_values(read_file(file), ("x", "bbox")).keys() != set()
        except EntryError:
            return True  # no other format's files end so; opening it finds their errors

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        """Features are float32, packed as the extractor packs them."""
        held = ("classes", "attributes") if layout == "milvlg" else ()
        with ContinuedFolder(path) as output:
            for record in records:
                count_losses(losses, record, None, held=held)
                write_file(output, record.image_id, _SUFFIX, npz_bytes(_arrays(record, layout)))


def _arrays(record: RegionRecord, layout: str) -> dict[str, Any]:
    features = record.features.astype(np.float32)
    x = np.ascontiguousarray(features.T) if layout == "openvqa" else features
    height, width = np.array(record.height), np.array(record.width)
    if layout == "gqa":
        return {"x": x, "bbox": record.boxes, "height": height, "width": width}
    num_boxes = np.array(record.num_regions)
    arrays = {"x": x, "bbox": record.boxes, "num_bbox": num_boxes, "image_h": height, "image_w": width}
    return arrays if layout == "openvqa" else arrays | {"info": _info(record)}


def _info(record: RegionRecord) -> dict[str, Any]:
    """`info` as the extractor writes it; without attributes it has none there either."""
    info: dict[str, Any] = {
        "image_id": record.image_id,
        "image_h": record.height,
        "image_w": record.width,
        "num_boxes": record.num_regions,
        "objects_id": record.class_ids.astype(np.int64),
        "objects_conf": record.class_scores,
    }
    if record.attribute_ids is not None and record.attribute_scores is not None:
        info |= {"attrs_id": record.attribute_ids.astype(np.int64), "attrs_conf": record.attribute_scores}
    return info


FORMAT = MilvlgNpzFormat()
