"""A folder with .npy files per image, as MMF's and ViLBERT-multi-task's extractors write them.

    background   <id>.npy: features (K, D); <id>_info.npy: a pickled dict. Written by facebookresearch/mmf
    foreground   tools/scripts/features/extract_features_vmb.py with and without --background, and by
                 frcnn/extract_features_frcnn.py; read by lmdb_conversion.py beside them and by
                 mmf/datasets/databases/readers/feature_readers.py (PaddedFasterRCNNFeatureReader)
    vilbert-mt   <id>.npy: one pickled dict with everything. Written by facebookresearch/vilbert-multi-task
                 script/extract_features.py, read by script/convert_to_lmdb.py beside it and by MMF's reader

What the dict holds, and in which forms: mmf_dicts.py. That of "vilbert-mt" has features and image_id too, rows of class
probabilities with background first, and an `objects` that is not the regions' class (its argmax runs over a slice of
the rows, not of the columns), so that classes come from the rows.

Not held: attributes, a feature of the whole image; in "vilbert-mt" classes without a class distribution. "foreground"
gives background back as what is missing to 1, in which the roundings of a row add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.exchange.aside import written_aside
from roibeam.features.exchange.continued import ContinuedFolder
from roibeam.features.exchange.entry_record import EntryError, rows_of_classes
from roibeam.features.exchange.export_losses import count_losses
from roibeam.features.exchange.image_files import ImageFolder, first_file, write_file
from roibeam.features.exchange.mmf_dicts import MmfDicts, mmf_dict
from roibeam.features.exchange.npy_bytes import npy_value, read_file
from roibeam.features.exchange.old_numpy import npy_bytes
from roibeam.features.exchange.reading import Reading
from roibeam.features.record.region_record import RegionRecord

_SUFFIX, _INFO_SUFFIX = ".npy", "_info.npy"
_LAYOUTS = ("background", "foreground", "vilbert-mt")
_LOOKED_AT = 8  # files that tell what the rows of cls_prob are


class MmfNpy(ImageFolder):
    """A folder, opened; see `FeatureFile`."""

    def __init__(self, path: Path, reading: Reading | None = None) -> None:
        super().__init__(path, _SUFFIX, companion=_INFO_SUFFIX, reading=reading)
        self._in_one_file: bool | None = None
        self._dicts = MmfDicts(self._first_dicts(), self._reading)
        record = self._first_record("a folder with .npy files per image (features and _info.npy, or one dict)")
        self._dicts.feature_dim = record.features.shape[1]
        foreground = "foreground" if self._dicts.form == "foreground" else "background"
        self.layout = "vilbert-mt" if self._in_one_file else foreground
        self.details = self._dicts.details

    def _first_dicts(self) -> Iterator[dict[str, Any]]:
        for entry in range(min(len(self._ids), _LOOKED_AT)):
            try:
                yield self._values(entry)[1]
            except EntryError:
                continue  # becomes a dead letter when its turn comes

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
            _check_same_image(value.get("image_id"), self._ids[entry].decode("utf-8"))
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


def _check_same_image(value: Any, image_id: str) -> None:
    """convert_to_lmdb.py goes by the image_id inside, every other reader by the file's name: they must agree."""
    if value is not None and str(value) not in (image_id, image_id.rpartition("/")[2]):
        detail = f"says it is of image {str(value)[:80]!r}; which is meant? Rename the file, or mend its image_id"
        raise EntryError("record", "another image id", detail)


class MmfNpyFormat:
    """See `FeatureFormat`."""

    name = "mmf-npy"
    title = "folder with .npy files per image (MMF with _info.npy, ViLBERT multi-task)"
    suffixes: tuple[str, ...] = ()
    layouts = _LAYOUTS

    def looks_like(self, path: Path) -> bool:
        return first_file(path, _SUFFIX, companion=_INFO_SUFFIX) is not None

    def open(self, path: Path, reading: Reading | None = None) -> MmfNpy:
        return MmfNpy(path, reading)

    def write(self, records: Iterable[RegionRecord], path: Path, *, layout: str | None = None) -> dict[str, int]:
        """See `FeatureFormat`; layout "background" by default. Features are float32, lossless from float16 and
        bfloat16."""
        layout = layout or _LAYOUTS[0]
        if layout not in _LAYOUTS:
            raise ValueError(f"layout {layout!r} of {self.name}: choose one of {', '.join(_LAYOUTS)}")
        losses: Counter[str] = Counter()
        held = () if layout == "vilbert-mt" else ("classes",)
        with written_aside(path, folder=True, goes_on=True) as aside, ContinuedFolder(aside) as output:
            for record in records:
                _check_id(record.image_id)
                count_losses(losses, record, rows_of_classes(record), held=held)
                _write_files(record, output, layout)
        return dict(losses)


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


def _check_id(image_id: str) -> None:
    if image_id.endswith("_info") or _SUFFIX in image_id:
        raise ValueError(
            f"image id {image_id!r}: readers of these folders cut names at '.npy', and '_info.npy' is a companion's; "
            f"export to another format, or rename the image"
        )


FORMAT = MmfNpyFormat()
