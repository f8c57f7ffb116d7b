"""VL-BERT's precomputed features: a zip with one json per image, its arrays in base64 of float32.

Read by jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py (boxes, classes, features, num_boxes, image_w,
image_h), vqa/data/datasets/vqa.py (boxes, features, num_boxes, image_box_feature) and refcoco/data/datasets/refcoco.py,
through common/utils/zipreader.py, which finds "train_frcnn.zip@/00000000.json" by the member's name. So an image's id
is its member's name without ".json".

Boxes are in pixels of the photo. `classes` are class probabilities, (n, 1601) with background first; the files for VQA
have none, which pre-training cannot do without. `attrs` (n, 401), "no attribute" first, is read for the best attribute
and not written. `image_box_feature` is the feature of the whole image. Members are stored without compression.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.exchange.aside import written_aside
from roibeam.features.exchange.continued import ContinuedFile
from roibeam.features.exchange.entry_file import EntryFile, usable_id
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    array_of_bytes,
    base64_bytes,
    classes_from_rows,
    float32_array,
    float_array,
    region_record,
    rows_of_classes,
    whole_number,
    without_classes,
)
from roibeam.features.exchange.export_losses import NO_REGIONS, count_losses
from roibeam.features.exchange.flat_json import FlatJsonError, JsonScalar, flat_items
from roibeam.features.exchange.reading import Reading
from roibeam.features.exchange.zip_members import ZipMembers
from roibeam.features.exchange.zip_output import ZipOutput
from roibeam.features.printable import printable
from roibeam.features.record.imported import ABSENT
from roibeam.features.record.region_record import MAX_REGIONS, RegionRecord

_SUFFIX = ".json"
_LARGEST_SIDE = 2**31 - 1
_MAX_FIELDS = 100
_LOOKED_AT = 20
_LAYOUTS = ("frcnn",)


class VlbertZip(EntryFile):
    """See `FeatureFile`; which fields the file has is what its first usable member has."""

    def __init__(self, path: Path, reading: Reading | None = None) -> None:
        super().__init__(path, reading)
        self.layout = _LAYOUTS[0]
        self._zip = ZipMembers(path)
        try:
            ids: list[bytes] = []
            self._members = array("q")
            for member, name in enumerate(self._zip.names):
                if name.startswith(b"__MACOSX/"):
                    continue
                try:
                    ids.append(_id_of(name))
                    self._members.append(member)
                except EntryError as error:
                    shown = name.decode("utf-8", "backslashreplace")
                    self._note(shown, f"{path}@/{printable(shown)}", error)
            self._set_ids(ids)
            self._has: frozenset[str] | None = None
            self._widths: dict[str, int] = {}
            record = self._first_record("VL-BERT's (a json with image_w, image_h, num_boxes, boxes, features)")
        except BaseException:
            self._zip.close()
            raise
        self._widths["features"] = record.features.shape[1]
        has: frozenset[str] = self._has or frozenset()
        self.details = {
            "layout": self.layout,
            "boxes": "pixels",
            "classes": "classes" if "classes" in has else ABSENT,
            "attributes": "attrs" if "attrs" in has else ABSENT,
            **self._reading.details(record),
            "feature_dim": record.features.shape[1],
        }

    def _place(self, entry: int) -> str:
        return f"{self.path}@/{printable(self._ids[entry].decode('utf-8'), 600)}{_SUFFIX}"

    def _close(self) -> None:
        self._zip.close()

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        fields = _fields(self._zip.read(self._members[entry]))
        has = frozenset(name for name in ("classes", "attrs") if fields.get(name) is not None)
        if self._has not in (None, has):
            raise EntryError(
                "decode", "other fields", f"has {sorted(has)}, the first member has {sorted(self._has or ())}"
            )
        height = whole_number(fields.get("image_h"), "image_h", 1, _LARGEST_SIDE)
        width = whole_number(fields.get("image_w"), "image_w", 1, _LARGEST_SIDE)
        rows = whole_number(fields.get("num_boxes"), "num_boxes", 0, MAX_REGIONS)
        boxes = float32_array(_array(fields, "boxes", 4 * rows), "boxes", rows=rows, columns=4)
        features = self._reading.features(
            _text(fields, "features"), "features", rows=rows, columns=self._widths.get("features")
        )
        whole = None
        if fields.get("image_box_feature") is not None:
            whole = self._reading.features(_text(fields, "image_box_feature"), "image_box_feature", rows=1)[0]
        classes = self._classes(fields, has, rows)
        image_id = self._ids[entry].decode("utf-8")
        record = region_record(image_id, height, width, boxes, features, classes, dtype=dtype, image_feature=whole)
        if self._has is None and record.num_regions:
            self._has = has
            if isinstance(record.class_distribution, np.ndarray):
                self._widths["classes"] = self._reading.num_columns(record.class_distribution)
        return record

    def _classes(self, fields: dict[str, JsonScalar], has: frozenset[str], num_regions: int) -> RegionClasses:
        classes = without_classes(num_regions)
        if "classes" in has:
            data = base64_bytes(_text(fields, "classes"), "classes")
            rows = array_of_bytes(data, "classes", self._reading.row_dtype(data, num_regions))
            rows = float32_array(rows, "classes", rows=num_regions, columns=self._widths.get("classes"))
            classes = self._reading.classes(rows, "classes")
        if "attrs" in has:
            rows = array_of_bytes(base64_bytes(_text(fields, "attrs"), "attrs"), "attrs", "<f4")
            found = classes_from_rows(float_array(rows, "attrs", rows=num_regions), name="attrs")
            classes = classes._replace(attribute_ids=found.class_ids, attribute_scores=found.class_scores)
        return classes


def _id_of(name: bytes) -> bytes:
    """The image id of a member's name, as zipreader.py looks for it."""
    image_id = name.removesuffix(_SUFFIX.encode())
    if len(image_id) == len(name):
        raise EntryError("read", "no json", f"is no {_SUFFIX} file; is it the zip of the images?")
    if not _is_plain(image_id):
        raise EntryError("read", "bad image id", "its name leads out of a folder; pack it with a plain name")
    return usable_id(image_id)


def _is_plain(image_id: bytes) -> bool:
    parts = image_id.split(b"/")
    return not {b"", b".", b".."} & set(parts) and b"\\" not in image_id and b"\0" not in image_id


def _fields(data: bytes) -> dict[str, JsonScalar]:
    fields: dict[str, JsonScalar] = {}
    try:
        for name, value in flat_items(data):
            if name in fields or len(fields) == _MAX_FIELDS:
                raise EntryError("decode", "bad json", f"has the field {printable(name)!r} twice, or too many fields")
            fields[name] = value
    except FlatJsonError as error:
        raise EntryError("decode", "bad json", str(error)) from None
    return fields


def _text(fields: dict[str, JsonScalar], name: str) -> str | memoryview:
    value = fields.get(name)
    if not isinstance(value, (str, memoryview)):
        raise EntryError("decode", "missing field", f"{name} must be text of base64, got {type(value).__name__}")
    return value


def _array(fields: dict[str, JsonScalar], name: str, num_values: int) -> np.ndarray:
    return array_of_bytes(base64_bytes(_text(fields, name), name), name, "<f4", num_values)


class VlbertZipFormat:
    """See `FeatureFormat`."""

    name = "vlbert-zip"
    title = "zip with a json per image (VL-BERT)"
    suffixes = (".zip",)
    layouts = _LAYOUTS

    def looks_like(self, path: Path) -> bool:
        try:
            if not path.is_file():
                return False
            with open(path, "rb") as file:
                if file.read(4) != b"PK\x03\x04":
                    return False
            with ZipMembers(path, most=_LOOKED_AT) as members:
                for number, name in enumerate(members.names):
                    try:
                        if name.endswith(_SUFFIX.encode()) and "num_boxes" in _fields(members.read(number)):
                            return True
                    except EntryError:
                        continue
        except (OSError, ValueError):
            return False
        return False

    def open(self, path: Path, reading: Reading | None = None) -> VlbertZip:
        return VlbertZip(path, reading)

    def write(self, records: Iterable[RegionRecord], path: Path, *, layout: str | None = None) -> dict[str, int]:
        """See `FeatureFormat`; features are float32, lossless from float16 and bfloat16.

        Records without regions are left out: the consumers cannot give 0 regions a shape.
        """
        if layout not in (None, *_LAYOUTS):
            raise ValueError(f"layout {layout!r} of {self.name}: choose one of {', '.join(_LAYOUTS)}")
        if path.suffix != ".zip":
            raise ValueError(f"{path}: VL-BERT finds an archive by '.zip@' in a path; give a name that ends in .zip")
        losses: Counter[str] = Counter()
        seen: set[str] = set()
        with written_aside(path, goes_on=True) as aside, ContinuedFile(aside) as file:
            output = ZipOutput(file)
            for record in records:
                if record.image_id in seen:
                    raise ValueError(f"image id {record.image_id!r} comes twice; ids are unique in a file")
                if not _is_plain(record.image_id.encode("utf-8")):
                    raise ValueError(f"image id {record.image_id!r} cannot be a name in a zip; rename the image")
                if not record.num_regions:
                    losses[NO_REGIONS] += 1
                    continue
                seen.add(record.image_id)
                output.put(f"{record.image_id}{_SUFFIX}".encode(), _json(record, losses))
            output.finish()
        return dict(losses)


def _json(record: RegionRecord, losses: Counter[str]) -> bytes:
    rows = rows_of_classes(record)
    count_losses(losses, record, rows, held=("image_feature",))
    fields: dict[str, Any] = {
        "image_id": record.image_id,
        "image_w": record.width,
        "image_h": record.height,
        "num_boxes": record.num_regions,
        "boxes": _base64(record.boxes),
        "features": _base64(record.features),
    }
    if rows is not None:
        fields["classes"] = _base64(rows)
    if record.image_feature is not None:
        fields["image_box_feature"] = _base64(record.image_feature)
    return json.dumps(fields).encode("ascii")


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode("ascii")


FORMAT = VlbertZipFormat()
