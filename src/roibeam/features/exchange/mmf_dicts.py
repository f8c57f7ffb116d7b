"""The dict that MMF keeps of an image's regions: bbox, num_boxes, objects, cls_prob, image_height, image_width.

Boxes: (K, 4) in pixels; (K, 6) is VinVL's x1 y1 x2 y2 w h in shares of the image (facebookresearch/mmf
tools/scripts/features/extract_features_vinvl.py), whose features then end in the same six numbers and stay as they are.
All rows are regions: `num_boxes` counts those above a threshold, and no reader uses it.

Classes (extract_features_vmb.py, frcnn/extract_features_frcnn.py of the same folder). Three forms of `cls_prob`:

    scores      (K,), of the class in `objects`                                      frcnn
    foreground  (K, 1600); background is what a row lacks to 1; `objects` from 0     vmb
    background  (K, 1601), background first; `objects` counts it, so 0 is background vmb --background

Rows of 1601 values, or of another width that all sum up to 1, have background, if `Reading.background` does not say
otherwise: "none" is the form "foreground", and where background is last (what detectron2's softmax gives) `objects`
counts from the first class on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    check_scores,
    float32_array,
    id_array,
    region_record,
    rows_of_classes,
    whole_number,
    without_classes,
)
from roibeam.features.exchange.reading import Reading
from roibeam.features.record.imported import ABSENT
from roibeam.features.record.region_record import RegionRecord

_LARGEST_SIDE = 2**31 - 1
_SUM_SLACK = 1e-3
_WIDTHS = {1600: "foreground", 1601: "background"}
_FORMS: dict[str | None, str] = {"first": "background", "last": "background last", "none": "foreground"}
_SIDES = ("image_height", "image_width")


class MmfDicts:
    """How the dicts of one file are to be read.

    Args:
        items: some of them, to know it by; what cannot be read among them tells nothing.
        reading: of the file.
    Attributes:
        feature_dim: D that every record must have; None until it is set.
        form: of `cls_prob`: "scores", "foreground", "background", "background last", or `ABSENT`.
        columns: values in a row of it; None for "scores".
        has_objects: whether the dicts have `objects`.
        normalised: whether boxes are shares of the image.
    """

    def __init__(self, items: Iterable[dict[str, Any]], reading: Reading) -> None:
        self._reading = reading
        self.feature_dim: int | None = None
        self.form, self.columns = ABSENT, None
        self.has_objects = self.normalised = False
        sums: list[float] = []
        for item in items:
            rows, boxes = item.get("cls_prob"), item.get("bbox")
            self.has_objects |= item.get("objects") is not None
            self.normalised |= isinstance(boxes, np.ndarray) and boxes.ndim == 2 and boxes.shape[1] == 6
            if not isinstance(rows, np.ndarray) or rows.dtype.kind != "f" or not rows.size:
                continue
            if rows.ndim == 1:
                self.form = "scores"
            elif rows.ndim == 2:
                self.columns = self.columns or rows.shape[1]
                sums.append(float(rows.sum(axis=1, dtype=np.float64).min()))
        if self.columns is not None:
            complete = "background" if min(sums) > 1 - _SUM_SLACK else "foreground"
            self.form = _FORMS.get(reading.background, _WIDTHS.get(self.columns, complete))

    @property
    def details(self) -> dict[str, Any]:
        """For `FeatureFile.details`."""
        rows = self.columns is not None
        return {
            "boxes": "normalised" if self.normalised else "pixels",
            "classes": "cls_prob" if rows else "objects" if self.has_objects else ABSENT,
            "attributes": ABSENT,
            "background": {"background": "first", "background last": "last"}.get(self.form, ABSENT),
            "num_classes": self.columns - (self.form != "foreground") if self.columns is not None else None,
            "feature_dim": self.feature_dim,
        }

    def record(self, image_id: str, features: Any, item: dict[str, Any], *, dtype: str) -> RegionRecord:
        """The record of an image; EntryError when it gives none."""
        if item.get("bbox") is None:
            raise EntryError("read", "missing field", "has no 'bbox': converted without the _info.npy files?")
        height, width = (whole_number(item.get(name), name, 1, _LARGEST_SIDE) for name in _SIDES)
        columns = 6 if self.normalised else 4
        boxes = float32_array(item["bbox"], "bbox", columns=columns)
        if self.normalised:
            boxes = boxes[:, :4] * np.array([width, height, width, height], np.float32)
        features = self._reading.features(features, "features", rows=len(boxes), columns=self.feature_dim)
        return region_record(image_id, height, width, boxes, features, self._classes(item, len(boxes)), dtype=dtype)

    def _classes(self, item: dict[str, Any], num_regions: int) -> RegionClasses:
        if self.columns is None:
            return self._classes_of_objects(item, num_regions)
        rows = float32_array(item.get("cls_prob"), "cls_prob", rows=num_regions, columns=self.columns)
        classes = self._reading.classes(rows, "cls_prob", background="none" if self.form == "foreground" else "first")
        if not self.has_objects or not num_regions:
            return classes
        stated = id_array(item.get("objects"), "objects", num_regions).astype(np.int64)
        if int(stated.max()) >= rows.shape[1]:
            detail = f"objects has ids up to {stated.max()}, cls_prob has {self.columns} columns"
            raise EntryError("record", "bad value", detail)
        # A region whose best class is background has no other class by `objects`; then it is the best of the row.
        background = {"background": 0, "background last": rows.shape[1] - 1}.get(self.form, -1)
        first = self.form == "background"
        column = np.where(stated == background, classes.class_ids.astype(np.int64) + first, stated)
        scores = np.ascontiguousarray(rows[np.arange(num_regions), column])
        ids = self._reading.stated_ids((column - first).astype(np.uint16), classes)
        return classes._replace(class_ids=ids, class_scores=scores)

    def _classes_of_objects(self, item: dict[str, Any], num_regions: int) -> RegionClasses:
        if not self.has_objects:
            return without_classes(num_regions)
        ids = self._reading.class_ids(id_array(item.get("objects"), "objects", num_regions), "objects")
        if self.form == ABSENT:
            return without_classes(num_regions)._replace(class_ids=ids)
        scores = float32_array(item.get("cls_prob"), "cls_prob", rows=num_regions, columns=1).reshape(-1)
        check_scores(scores, "cls_prob")
        return RegionClasses(ids, scores)


def mmf_dict(record: RegionRecord, *, background: bool) -> dict[str, Any]:
    """The dict of a record; with a class distribution in the form "background" or "foreground", else in "scores"."""
    rows = rows_of_classes(record)
    counted = rows is not None and background
    return {
        "bbox": record.boxes,
        "num_boxes": record.num_regions,
        "image_height": record.height,
        "image_width": record.width,
        "objects": record.class_ids.astype(np.int64) + counted,
        "cls_prob": record.class_scores if rows is None else rows if counted else np.ascontiguousarray(rows[:, 1:]),
    }
