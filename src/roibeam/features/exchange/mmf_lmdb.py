"""MMF's LMDB of features: a pickled dict per image under the path that its .npy file had, without ".npy".

Written by facebookresearch/mmf tools/scripts/features/lmdb_conversion.py, read by `LMDBFeatureReader` in
mmf/datasets/databases/readers/feature_readers.py, which looks for an image's path, or for the number that its name ends
in, and which takes a path for an LMDB only when it ends in ".lmdb". The dict is that of mmf_npy.py. In files made from
ViLBERT-multi-task's .npy, `features` is itself a dict with everything in it.

Layout "background" (the default) has class probabilities with background first, as MMF's ViLBERT wants them
(mmf/configs/models/vilbert/defaults.yaml: v_target_size 1601); "foreground" is what its extractor writes by default.
Without a class distribution both write the score of each region's class. Not held: attributes, a feature of the whole
image; "foreground" gives background back as what is missing to 1, in which the roundings of a row add up.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_record import EntryError, rows_of_classes
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.lmdb_files import PickledEntries, field_names, first_item, write_pickled_entries
from roibeam.features.exchange.mmf_npy import MmfDicts, mmf_dict
from roibeam.features.record.region_record import RegionRecord

_SUFFIX = ".lmdb"


class MmfLmdb(PickledEntries):
    def _scan(self) -> None:
        super()._scan()
        self._dicts = MmfDicts(lambda entry: _features_and_dict(self._item(entry))[1], len(self._ids), self._reading)
        record = self._first_record("MMF's LMDB (a pickled dict with features, bbox, image_height, ...)")
        self._dicts.feature_dim = record.features.shape[1]
        self.layout = "foreground" if self._dicts.form == "foreground" else "background"
        self.details = self._dicts.details | {"key_list": self.key_list}

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        item = self._item(entry)
        self._check_id(entry, item.get("feature_path"))
        return self._dicts.record(self._ids[entry].decode(), *_features_and_dict(item), dtype=dtype)


def _features_and_dict(item: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    features = item.get("features")
    if features is None:
        raise EntryError("read", "missing field", f"has no 'features', only {field_names(item)}")
    return (features.get("features"), features) if isinstance(features, dict) else (features, item)


class MmfLmdbFormat(FeatureFormat):
    name = "mmf-lmdb"
    title = "LMDB of pickled dicts with feature_path and bbox (MMF lmdb_conversion.py)"
    suffixes = (_SUFFIX,)
    layouts = ("background", "foreground")
    file = MmfLmdb
    why_suffix = f"MMF takes a path for an LMDB only when it ends in {_SUFFIX}"
    is_file = takes_empty = False

    def looks_like(self, path: Path) -> bool:
        item = first_item(path)
        return "features" in item and ("feature_path" in item or "bbox" in item) and "boxes" not in item

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        def item(record: RegionRecord) -> dict[str, Any]:
            if ".npy" in record.image_id:
                raise ValueError(f"image id {record.image_id!r}: MMF cuts names at '.npy'; rename the image")
            count_losses(losses, record, rows_of_classes(record), held=("classes",))
            if layout == "foreground" and record.class_distribution is not None:
                losses["rounding of the background probability"] += 1
            features = record.features.astype(np.float32)
            dict_of_image = mmf_dict(record, background=layout == "background")
            return {"feature_path": record.image_id, "features": features} | dict_of_image

        write_pickled_entries(records, path, item)


FORMAT = MmfLmdbFormat()
