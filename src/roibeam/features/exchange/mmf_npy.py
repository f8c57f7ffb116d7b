"""MMF's folder of features: .npy files per image, as MMF's and ViLBERT-multi-task's extractors write them.

    background   <id>.npy: features (K, D); <id>_info.npy: a pickled dict. Written by facebookresearch/mmf
    foreground   tools/scripts/features/extract_features_vmb.py with and without --background, and by
                 frcnn/extract_features_frcnn.py; read by lmdb_conversion.py beside them and by
                 mmf/datasets/databases/readers/feature_readers.py (PaddedFasterRCNNFeatureReader)
    vilbert-mt   <id>.npy: one pickled dict with everything. Written by facebookresearch/vilbert-multi-task
                 script/extract_features.py, read by script/convert_to_lmdb.py beside it and by MMF's reader

The dict is that of `MmfDicts`, which MMF's LMDB holds too. Not held: attributes, a feature of the whole image; in
"vilbert-mt" classes without a class distribution. "foreground" gives background back as what is missing to 1, with the
roundings of a row.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import ImageFolder, first_file, write_file
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    float32_array,
    id_array,
    image_size,
    region_record,
    rows_of_classes,
    score_array,
    without_classes,
)
from roibeam.features.exchange.export_output import ContinuedFolder
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.npy_files import npy_bytes, npy_value, read_file
from roibeam.features.exchange.reading import Reading
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import RegionRecord

_SUM_SLACK = 1e-3
_WIDTHS = {1600: "foreground", 1601: "background"}
_FORMS: dict[str | None, str] = {"first": "background", "last": "background last", "none": "foreground"}
_SIDES = ("image_height", "image_width")
_LOOKED_AT = 8  # entries that decide what the rows of cls_prob are


class MmfDicts:
    """Reader of the dicts of one file.

    Args:
        read: gives the dict of an entry; the first ones decide the form, unreadable ones are passed over.
    Attributes:
        feature_dim: D that every record must have; None until it is set.
        form: of `cls_prob`: "scores", "foreground", "background", "background last", or `ABSENT`.
        columns: values in a row of it; None for "scores".
        has_objects: whether the dicts have `objects`.
        normalised: whether boxes are shares of the image.
    """

    def __init__(self, read: Callable[[int], dict[str, Any]], num_entries: int, reading: Reading) -> None:
        self._reading = reading
        self.feature_dim: int | None = None
        self.form, self.columns = ABSENT, None
        self.has_objects = self.normalised = False
        sums: list[float] = []
        for entry in range(min(num_entries, _LOOKED_AT)):
            try:
                item = read(entry)
            except EntryError:
                continue  # becomes a dead letter when its turn comes
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
        """Facts for `FeatureFile.details`."""
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
        height, width = image_size(item.get, _SIDES)
        columns = 6 if self.normalised else 4
        boxes = float32_array(item["bbox"], "bbox", columns=columns)
        if self.normalised:
            boxes = boxes[:, :4] * np.array([width, height, width, height], np.float32)
        features = self._reading.features(features, "features", rows=len(boxes), columns=self.feature_dim)
        return region_record(image_id, height, width, boxes, features, self._classes(item, len(boxes)), dtype=dtype)

    def _classes(self, item: dict[str, Any], num_regions: int) -> RegionClasses:
        if self.columns is None:
            if not self.has_objects:
                return without_classes(num_regions)
            ids = self._reading.class_ids(id_array(item.get("objects"), "objects", num_regions), "objects")
            if self.form == ABSENT:
                return without_classes(num_regions)._replace(class_ids=ids)
            return RegionClasses(ids, score_array(item.get("cls_prob"), "cls_prob", num_regions))
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


_SUFFIX, _INFO_SUFFIX = ".npy", "_info.npy"


class MmfNpy(ImageFolder):
    suffix, companion = _SUFFIX, _INFO_SUFFIX
    _in_one_file: bool | None = None

    def _scan(self) -> None:
        super()._scan()
        self._dicts = MmfDicts(lambda entry: self._values(entry)[1], len(self._ids), self._reading)
        record = self._first_record("a folder with .npy files per image (features and _info.npy, or one dict)")
        self._dicts.feature_dim = record.features.shape[1]
        foreground = "foreground" if self._dicts.form == "foreground" else "background"
        self.layout = "vilbert-mt" if self._in_one_file else foreground
        self.details = self._dicts.details

    def _values(self, entry: int) -> tuple[Any, dict[str, Any]]:
        """Features and dict of an image's files."""
        path = self.file_of(entry)
        value = npy_value(read_file(path), path.name)
        in_one_file = isinstance(value, dict)
        if self._in_one_file is None:
            self._in_one_file = in_one_file
        if in_one_file != self._in_one_file:
            kinds = ("features with an _info.npy beside them", "one dict with everything")
            detail = f"is {kinds[in_one_file]}, the first file is {kinds[not in_one_file]}"
            raise EntryError("decode", "another layout", detail)
        if in_one_file:
            # convert_to_lmdb.py goes by the image_id inside, every other reader by the file's name: they must agree.
            stated, image_id = value.get("image_id"), self._ids[entry].decode("utf-8")
            if stated is not None and str(stated) not in (image_id, image_id.rpartition("/")[2]):
                detail = (
                    f"says it is of image {str(stated)[:80]!r}; which is meant? Rename the file, or mend its image_id"
                )
                raise EntryError("record", "another image id", detail)
            return value.get("features"), {name: item for name, item in value.items() if name != "objects"}
        info_path = path.with_name(path.name.removesuffix(_SUFFIX) + _INFO_SUFFIX)
        self.check_inside(info_path)
        if not info_path.exists():
            raise EntryError("read", "missing file", f"has no {info_path.name} beside it")
        info = npy_value(read_file(info_path), info_path.name)
        if not isinstance(info, dict):
            raise EntryError("decode", "wrong type", f"{info_path.name} holds a {type(info).__name__}, expected a dict")
        return value, info

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        features, info = self._values(entry)
        return self._dicts.record(self._ids[entry].decode("utf-8"), features, info, dtype=dtype)


class MmfNpyFormat(FeatureFormat):
    name = "mmf-npy"
    title = "folder with .npy files per image (MMF with _info.npy, ViLBERT multi-task)"
    layouts = ("background", "foreground", "vilbert-mt")
    file = MmfNpy
    is_file = False

    def looks_like(self, path: Path) -> bool:
        others = first_file(path, ".npz")  # those of captioning have both
        return others is None and first_file(path, _SUFFIX, companion=_INFO_SUFFIX) is not None

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        held = () if layout == "vilbert-mt" else ("classes",)
        with ContinuedFolder(path) as output:
            for record in records:
                if record.image_id.endswith("_info") or _SUFFIX in record.image_id:
                    raise ValueError(
                        f"image id {record.image_id!r}: readers of these folders cut names at '.npy', and '_info.npy' "
                        f"is a companion's; export to another format, or rename the image"
                    )
                count_losses(losses, record, rows_of_classes(record), held=held)
                _write_files(record, output, layout)


def _write_files(record: RegionRecord, output: ContinuedFolder, layout: str) -> None:
    features = record.features.astype(np.float32)
    info = mmf_dict(record, background=layout != "foreground")
    if layout == "vilbert-mt":
        del info["objects"]
        if record.class_distribution is None:
            del info["cls_prob"]  # scores without their classes
        whole = info | {"image_id": record.image_id, "features": features}
        write_file(output, record.image_id, _SUFFIX, npy_bytes(whole))
    else:
        write_file(output, record.image_id, _SUFFIX, npy_bytes(features))
        write_file(output, record.image_id, _INFO_SUFFIX, npy_bytes(info))


FORMAT = MmfNpyFormat()
