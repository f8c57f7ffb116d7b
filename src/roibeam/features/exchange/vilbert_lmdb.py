"""ViLBERT's LMDB of features: a pickled dict per image, three layouts.

    beta        jiasenlu/vilbert_beta script/convert_trainval_lmdb.py: a line of the bottom-up-attention TSV; image_id,
                image_h, image_w, num_boxes as text, boxes and features (and cls_prob) as base64 of float32
    multi-task  facebookresearch/vilbert-multi-task script/convert_to_lmdb.py (12-in-1): the same names, the arrays are
                arrays; rows count, `num_boxes` is not read
    volta       e-bug/volta data/mscoco/convert_coco_lmdb.py: a line of LXMERT's TSV; img_id, img_h, img_w, objects_id,
                objects_conf, attrs_id, attrs_conf, num_boxes, boxes, features, cls_prob; also made of arrays
                (h5_to_lmdb.py)

Readers of what is written here: `ImageFeaturesH5Reader` in vilbert/datasets/_image_features_reader.py of the first two,
volta/datasets/_image_features_reader.py of the third. They want 2048 values per region.

Boxes are in pixels of the photo. Class probabilities (`cls_prob`) have background first. Not held: a feature of the
whole image; in the first two attributes, and classes other than those in cls_prob.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    array_of_bytes,
    attributes_or_zeros,
    base64_bytes,
    base64_text,
    float32_array,
    image_size,
    rows_of_classes,
    whole_number,
)
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.lmdb_files import PickledEntries, field_names, first_item, write_pickled_entries
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import MAX_REGIONS, RegionRecord

_OPTIONAL = ("cls_prob", "objects_id", "attrs_id")


class VilbertLmdb(PickledEntries):
    """See `FeatureFile`; the layout and which classes the file has are those of its first usable entry."""

    def _scan(self) -> None:
        super()._scan()
        self._has: frozenset[str] = frozenset()
        record = self._first_record("ViLBERT's LMDB (a pickled dict with boxes, features, image_h, image_w)")
        self.details |= {
            "classes": next((name for name in ("objects_id", "cls_prob") if name in self._has), ABSENT),
            "attributes": "attrs_id" if "attrs_id" in self._has else ABSENT,
            **self._reading.details(record),
            "key_list": self.key_list,
        }

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        item = self._item(entry)
        layout, prefix = _layout_of(item)
        if self.layout not in ("", layout):
            raise EntryError("decode", "another layout", f"is of layout {layout}, the first entry is of {self.layout}")
        self._check_id(entry, item.get(prefix + "_id"))
        sides = image_size(item.get, (prefix + "_h", prefix + "_w"))
        stated = None
        if layout != "multi-task" and item.get("num_boxes") is not None:
            stated = whole_number(item["num_boxes"], "num_boxes", 0, MAX_REGIONS)
        boxes = float32_array(_values(item, "boxes", "<f4", 4 * (stated or 0)), "boxes", columns=4)
        if stated not in (None, len(boxes)):
            raise EntryError("decode", "wrong byte count", f"has {len(boxes)} boxes, num_boxes says {stated}")
        features = self._reading.features(item["features"], "features", rows=len(boxes), columns=self._dim)
        has = frozenset(name for name in _OPTIONAL if item.get(name) is not None)
        if self.layout and has != self._has:
            raise EntryError("decode", "other fields", f"has {sorted(has)}, the first entry has {sorted(self._has)}")
        classes = self._classes(item, has, len(boxes))
        record = self._made(entry, sides, boxes, features, classes, dtype)
        if not self.layout and record.num_regions:
            self.layout, self._has = layout, has
        return record

    def _classes(self, item: dict[str, Any], has: frozenset[str], num_regions: int) -> RegionClasses:
        def value_of(name: str) -> Any:
            if item.get(name) is None:
                raise EntryError("read", "missing field", f"has ids but no {name!r}")
            return _values(item, name, "<i8" if name.endswith("_id") else "<f4", num_regions)

        rows = None
        if "cls_prob" in has:
            rows = self._reading.classes_of(item["cls_prob"], "cls_prob", num_regions, self._columns)
        classes, attributes = (kind if f"{kind}_id" in has else None for kind in ("objects", "attrs"))
        return self._reading.stated_classes(value_of, num_regions, classes, attributes, rows)


def _layout_of(item: dict[str, Any]) -> tuple[str, str]:
    """Name of the layout, and how names of the image's fields begin in it."""
    for name in ("boxes", "features"):
        if item.get(name) is None:
            raise EntryError("read", "missing field", f"has no {name!r}, only {field_names(item)}")
    if "img_h" in item:
        return "volta", "img"
    return ("multi-task" if isinstance(item["features"], np.ndarray) else "beta"), "image"


def _values(item: dict[str, Any], name: str, kind: str, num_values: int) -> Any:
    """A field as it is, or out of its base64."""
    value = item[name]
    if isinstance(value, (str, bytes)):
        return array_of_bytes(base64_bytes(value, name), name, kind, num_values)
    return value


class VilbertLmdbFormat(FeatureFormat):
    name = "vilbert-lmdb"
    title = "LMDB of pickled dicts (vilbert_beta, vilbert-multi-task, volta)"
    suffixes = (".lmdb",)
    layouts = ("multi-task", "beta", "volta")
    file = VilbertLmdb
    is_file = takes_empty = False

    def looks_like(self, path: Path) -> bool:
        item = first_item(path)
        return "boxes" in item and "features" in item and ("image_h" in item or "img_h" in item)

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        item = _volta_item if layout == "volta" else _beta_item if layout == "beta" else _multi_task_item
        write_pickled_entries(records, path, lambda record: item(record, losses))


def _multi_task_item(record: RegionRecord, losses: Counter[str]) -> dict[str, Any]:
    rows = rows_of_classes(record)
    count_losses(losses, record, rows)
    item = {
        "image_id": record.image_id,
        "image_h": record.height,
        "image_w": record.width,
        "num_boxes": record.num_regions,
        "boxes": record.boxes,
        "features": record.features.astype(np.float32),
    }
    return item if rows is None else item | {"cls_prob": rows}


def _beta_item(record: RegionRecord, losses: Counter[str]) -> dict[str, Any]:
    item = _multi_task_item(record, losses)
    return {name: base64_text(value) if isinstance(value, np.ndarray) else str(value) for name, value in item.items()}


def _volta_item(record: RegionRecord, losses: Counter[str]) -> dict[str, Any]:
    rows = rows_of_classes(record)
    count_losses(losses, record, rows, held=("classes", "attributes"))
    ids, scores = attributes_or_zeros(record)
    item = {
        "img_id": record.image_id,
        "img_h": str(record.height),
        "img_w": str(record.width),
        "objects_id": base64_text(record.class_ids, "<i8"),
        "objects_conf": base64_text(record.class_scores),
        "attrs_id": base64_text(ids, "<i8"),
        "attrs_conf": base64_text(scores),
        "num_boxes": str(record.num_regions),
        "boxes": base64_text(record.boxes),
        "features": base64_text(record.features),
    }
    return item if rows is None else item | {"cls_prob": base64_text(rows)}


FORMAT = VilbertLmdbFormat()
