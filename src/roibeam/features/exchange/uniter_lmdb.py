"""UNITER's LMDB of features: float16 arrays per image, packed by msgpack-numpy or as a compressed .npz.

Written by ChenRocks/UNITER scripts/convert_imgdir.py, read by `DetectFeatLmdb` in data/data.py: in a folder, the LMDB
`feat_th0.2_max100_min10` (msgpack) or `feat_th0.2_max100_min10_compressed` (npz; what its reader takes by default) and
beside it `nbb_th0.2_max100_min10.json`, the number of regions of each image that are used. Other thresholds make other
names; `feat_numbb36` uses 36 of each, `all` all.

An image's key is the name of its .npz file; its id is that without ".npz". A value has features, norm_bb, conf and
soft_labels. `norm_bb` is x1 y1 x2 y2 w h in shares of the image (the reader appends w * h; a seventh column is that).
`soft_labels` has background first (model/pretrain.py: "background class should not be the target").

Not held: the photo's height and width (boxes come back in a photo of 1 x 1 pixels), attributes, a feature of the whole
image, and precision beyond float16: features to 11 bits, boxes to 1/2048 of the image.
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    float32_array,
    rows_of_classes,
    score_array,
)
from roibeam.features.exchange.export_output import remove_others
from roibeam.features.exchange.flat_json import FlatJsonError, flat_items, flat_strings
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.lmdb_files import DATA_FILE_NAME, LmdbFile, LmdbOutput, first_values
from roibeam.features.exchange.npy_files import arrays_from_msgpack, arrays_to_msgpack, npz_bytes, npz_values
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import MAX_REGIONS, RegionRecord

KEY_LIST = b"__keys__"
_SUFFIX = ".npz"
_NAMES = ("features", "norm_bb", "conf", "soft_labels")
_DATABASE = re.compile(r"(?P<kind>all|feat_(?P<rule>th.+?|numbb(?P<count>[0-9]{1,5})))(?P<packed>_compressed)?")
_WRITTEN_RULE = "th0.2_max100_min10"  # defaults of the reader
_MAX_JSON_BYTES = 256 * 2**20
_SHARE_SLACK = 0.01  # a rounded float16 share of a box that overshoots by a pixel
_NOT_STATED = -1


class UniterLmdb(LmdbFile):
    """See `FeatureFile`. Opened by the folder of the LMDB, or the one above it.

    An image that `__keys__` or the json of counts names and the LMDB does not hold is in `letters`.
    """

    list_key, suffix = KEY_LIST, _SUFFIX.encode()
    _has_labels: bool | None = None

    def _open(self) -> None:
        self.path = _database_folder(self.path)
        super()._open()

    def _scan(self) -> None:
        super()._scan()
        self._counts: array[int] | None = None
        self._most = MAX_REGIONS
        counts = self._read_counts()
        key_list = self._read_key_list()
        record = self._first_record("UNITER's LMDB (features and norm_bb in msgpack or npz)")
        self.details |= {
            "layout": self.layout,
            "boxes": "normalised",
            "image_size": ABSENT,
            "classes": "soft_labels" if self._has_labels else ABSENT,
            **self._reading.details(record),
            "key_list": key_list,
            "counts": counts,
        }

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        number = self._numbers[entry]
        layout, values = _arrays(self._entries.value(number))
        if self.layout not in ("", layout):
            raise EntryError("decode", "another layout", f"is of layout {layout}, the first entry is of {self.layout}")
        for name in ("features", "norm_bb", "conf"):
            if name not in values:
                raise EntryError("read", "missing field", f"has no {name!r}")
        has_labels = "soft_labels" in values
        if self._has_labels not in (None, has_labels):
            raise EntryError("decode", "other fields", "has soft_labels or lacks them, unlike the first entry")
        shares = values["norm_bb"]
        columns = 7 if isinstance(shares, np.ndarray) and shares.ndim == 2 and shares.shape[1] == 7 else 6
        boxes = np.ascontiguousarray(float32_array(shares, "norm_bb", columns=columns)[:, :4])
        rows = len(boxes)
        features = self._reading.features(values["features"], "features", rows=rows, columns=self._dim)
        scores = score_array(values["conf"], "conf", rows)
        classes = RegionClasses(np.zeros(rows, np.uint16), scores)
        if has_labels:
            found = self._reading.classes_of(values["soft_labels"], "soft_labels", rows, self._columns)
            classes = found._replace(class_scores=scores)
        used = self._used(number, rows)
        classes = RegionClasses._make(None if part is None else part[:used] for part in classes)
        if boxes.size and not (boxes.min() >= -_SHARE_SLACK and boxes.max() <= 1 + _SHARE_SLACK):
            detail = f"norm_bb reaches from {boxes.min():.3g} to {boxes.max():.3g}, not 0 to 1"
            raise EntryError("record", "boxes outside the image", detail)
        record = self._made(entry, (1, 1), boxes[:used], features[:used], classes, dtype)
        if not self.layout and record.num_regions:
            self.layout, self._has_labels = layout, has_labels
        return record

    def _used(self, number: int, rows: int) -> int:
        """Number of an entry's regions that its readers take."""
        count = min(rows, self._most) if self._counts is None else self._counts[number]
        if count == _NOT_STATED:
            raise EntryError("read", "no count", "the json of counts does not name it, so its readers cannot take it")
        if count > rows:
            raise EntryError("decode", "wrong shape", f"has {rows} regions, its count says {count}")
        return count

    def _read_counts(self) -> str:
        """Fills `_counts` for the LMDB's entries; returns where they come from."""
        found = _DATABASE.fullmatch(self.path.name)
        if found is None or found["kind"] == "all":
            return ABSENT
        if found["count"] is not None:
            self._most = int(found["count"])
            return self.path.name
        path = self.path.parent / f"nbb_{found['rule']}.json"
        if not path.is_file():
            return ABSENT
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"{path}: has over {_MAX_JSON_BYTES:,} bytes; is it a json of counts?")
        self._counts = array("l", [_NOT_STATED]) * len(self._entries.keys)
        try:
            for name, value in flat_items(path.read_bytes()):
                if type(value) is not int or not 0 <= value <= MAX_REGIONS:
                    raise FlatJsonError("a count is no number from 0 to 65535")
                number = self._find(name)
                if number is not None:
                    self._counts[number] = value
        except FlatJsonError as error:
            raise ValueError(f"{path}: {error}; expected are names and counts") from None
        return path.name

    def _read_key_list(self) -> str:
        number = self._entries.find(KEY_LIST)
        if number is None:
            return ABSENT
        try:
            for name in flat_strings(self._entries.value(number)):
                if self._counts is None:  # else noted with the json of counts
                    self._find(name)
        except FlatJsonError as error:
            raise ValueError(f"{self._place_of(KEY_LIST)}: {error}; expected is a list of names") from None
        except EntryError:
            return "not read"
        return KEY_LIST.decode()

    def _find(self, name: str) -> int | None:
        """Position of a name that the file lists; noted when it has none."""
        key = name.encode("utf-8", "surrogatepass")
        number = self._entries.find(key)
        if number is None:
            self._note(key[:600], EntryError("read", "missing", "is listed, but not there"))
        return number


def _arrays(value: bytes) -> tuple[str, dict[str, np.ndarray]]:
    """Layout and arrays of an entry."""
    if value[:2] == b"PK":
        return "compressed", npz_values(value, _NAMES)
    return "msgpack", arrays_from_msgpack(value)


def _database_folder(path: Path) -> Path:
    """The folder of the LMDB, given it or the one above."""
    if not path.is_dir():
        raise ValueError(f"{path}: is no folder; give UNITER's folder with the LMDB and its json")
    if (path / DATA_FILE_NAME).exists():
        return path
    found = sorted(
        each for each in path.iterdir() if _DATABASE.fullmatch(each.name) and (each / DATA_FILE_NAME).exists()
    )
    if len(found) != 1:
        names = ", ".join(each.name for each in found[:5]) or "none"
        raise ValueError(f"{path}: holds {len(found)} LMDBs of UNITER ({names}); give the folder of one")
    return found[0]


class UniterLmdbFormat(FeatureFormat):
    name = "uniter-lmdb"
    title = "LMDB of float16 arrays with its json of counts (UNITER)"
    layouts = ("compressed", "msgpack")
    file = UniterLmdb
    is_file = takes_empty = False

    def looks_like(self, path: Path) -> bool:
        try:
            values = first_values(_database_folder(path), 3)
        except (OSError, ValueError):
            return False
        for key, value in values.items():
            try:
                if key != KEY_LIST and {"features", "norm_bb"} <= _arrays(value)[1].keys():
                    return True
            except EntryError:
                continue
        return False

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        """`path` is the folder above the LMDB. Names are those of the reader's defaults: conf_th 0.2, max_bb 100,
        min_bb 10, but every region of a record is written and counted. An id has at most 507 bytes.

        Raises:
            ValueError: also for a feature that float16 cannot hold.
        """
        counts: dict[str, int] = {}
        pack, ending = (npz_bytes, "_compressed") if layout == "compressed" else (arrays_to_msgpack, "")
        inner = path / f"feat_{_WRITTEN_RULE}{ending}"
        remove_others(path, [inner.name])
        with LmdbOutput(inner) as output:
            for record in records:
                key = record.image_id + _SUFFIX
                output.put(key.encode(), pack(_float16_arrays(record, losses)))
                counts[key] = record.num_regions
            output.put(KEY_LIST, json.dumps(list(counts)).encode())
        (path / f"nbb_{_WRITTEN_RULE}.json").write_text(json.dumps(counts), encoding="utf-8")


def _float16_arrays(record: RegionRecord, losses: Counter[str]) -> dict[str, np.ndarray]:
    rows = rows_of_classes(record)
    count_losses(losses, record, rows)
    sides = np.array([record.width, record.height] * 2, np.float32)
    shares = record.boxes / sides
    boxes = np.concatenate([shares, shares[:, 2:] - shares[:, :2]], axis=1)
    features = record.features.astype(np.float32)
    with np.errstate(over="ignore"):
        halves = features.astype(np.float16)
    if not np.isfinite(halves).all():
        largest = np.abs(features).max()
        raise ValueError(
            f"record {record.image_id!r}: a feature of {largest:.4g} does not fit float16, which UNITER uses"
        )
    losses["image size"] += (record.height, record.width) != (1, 1)
    for name, exact in (("features", features), ("class scores", record.class_scores), ("boxes", shares)):
        losses[f"{name} beyond float16"] += bool((exact.astype(np.float16).astype(np.float32) != exact).any())
    arrays = {"features": halves, "norm_bb": boxes.astype(np.float16), "conf": record.class_scores.astype(np.float16)}
    return arrays if rows is None else arrays | {"soft_labels": rows.astype(np.float16)}


FORMAT = UniterLmdbFormat()
