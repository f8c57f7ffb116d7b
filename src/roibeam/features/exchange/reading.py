"""Rules for reading the arrays of one feature file, and doubts about them from its first entries.

Two things are in no file: the place of background in rows of class probabilities, and, where arrays are bytes in
base64, the type of the numbers. A wrong reading gives numbers that look like any others. So each format has its rule,
an option replaces it, and the numbers of the first entries are only used to doubt it: nothing is switched by them.
"""

import logging
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    array_of_bytes,
    base64_bytes,
    classes_from_rows,
    described,
    float32_array,
    float_array,
    id_array,
    score_array,
    with_attributes,
    with_background,
    without_classes,
)
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import plural

log = logging.getLogger(__name__)
BACKGROUNDS = ("first", "last", "none")
FILE_DTYPES = {
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "uint8": np.dtype("u1"),
    "big-endian-float16": np.dtype(">f2"),
    "big-endian-float32": np.dtype(">f4"),
    "big-endian-float64": np.dtype(">f8"),
}
_USUAL = "float32"
_DTYPES_OF_ROWS = ("float32", "float64", "float16", "bfloat16")
_WATCHED_BYTES = 2**16  # of the features of an entry
_GROUP = 8  # bytes; a whole number of values of every dtype
_FEWEST_GROUPS = 16
_FEWEST_REGIONS = 8
_LOOKED_AT = 16  # entries
# 5 to 95 % of features that differ from 0 lie within 5 (normal) to 10 (averaged ReLU) powers of 2.
_WIDEST_SPREAD = 16.0
_FARTHEST_MIDDLE = 60.0  # power of 2 of the median feature
_SMALL, _FEWEST_REST = 0.05, 0.005
_WITHOUT_BACKGROUND = (1600, 80)  # classes of the detectors of Visual Genome and COCO
_OPTIONS = "of `roibeam store import`"


class Reading:
    """The rules for one file; watches its arrays until `settle` is called.

    Args:
        background: place of background in rows of class probabilities, one of `BACKGROUNDS`; in a file that has class
            ids alone "first" means that they count background as 0. None: that of the format.
        feature_dtype: key of `FILE_DTYPES`: what the bytes of the features are; None: float32 in base64, and elsewhere
            the file's own dtype.
    Attributes:
        doubts: against a rule that no option gave, each with the option that decides; doubts about an option are
            logged.
    Raises:
        ValueError: for a word that is none of these.
    """

    def __init__(self, background: str | None = None, feature_dtype: str | None = None) -> None:
        if background not in (None, *BACKGROUNDS):
            raise ValueError(f"--background {background!r}: choose one of {', '.join(BACKGROUNDS)}")
        if feature_dtype not in (None, *FILE_DTYPES):
            raise ValueError(f"--feature-dtype {feature_dtype!r}: choose one of {', '.join(FILE_DTYPES)}")
        self.background, self.feature_dtype = background, feature_dtype
        self.doubts: list[str] = []
        self._settled, self._usual = False, "first"
        self._seen_dtype: str | None = None
        self._row_dtype: np.dtype | None = None
        self._bytes: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []
        self._apart: list[np.ndarray] = []

    @property
    def dtype_name(self) -> str:
        """Name of the dtype of features in base64."""
        return self.feature_dtype or _USUAL

    @property
    def dtype(self) -> np.dtype:
        """Dtype of features in base64."""
        return FILE_DTYPES[self.dtype_name]

    def row_dtype(self, data: bytes, num_regions: int) -> np.dtype:
        """Dtype of class probabilities in base64: that in which the first rows of the file sum up to 1."""
        if self._row_dtype is None and num_regions:
            fits = (name for name in _DTYPES_OF_ROWS if _sums_to_one(data, num_regions, FILE_DTYPES[name]))
            name = next(fits, _USUAL)
            self._row_dtype = FILE_DTYPES[name]
            if name != _USUAL:
                log.info("class probabilities are %s in this file: read so, each row sums up to 1", name)
        return self._row_dtype or FILE_DTYPES[_USUAL]

    def features(self, value: Any, name: str, *, rows: int | None = None, columns: int | None = None) -> np.ndarray:
        """`float_array` of an array, or of one in base64, whose bytes are read as `feature_dtype`."""
        if isinstance(value, (str, bytes, memoryview)):
            data = base64_bytes(value, name)
            self.watch(data, self.dtype_name)
            values = self.plain(array_of_bytes(data, name, self.dtype))
        else:
            values = self.typed(value, name)
        return float_array(values, name, rows=rows, columns=columns)

    def typed(self, value: object, name: str) -> np.ndarray:
        """The array in the dtype that its bytes are, see `plain`."""
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiuV" or not value.ndim:
            raise EntryError("decode", "wrong type", f"{name} must be an array of floats, got {described(value)}")
        if self.feature_dtype is not None and value.dtype != self.dtype:
            width = value.shape[-1] * value.dtype.itemsize
            if width % self.dtype.itemsize:
                detail = f"{name}: rows of {width:,} bytes hold no whole number of {self.feature_dtype}"
                raise EntryError("decode", "wrong byte count", detail)
            value = np.ascontiguousarray(value).view(self.dtype)
        elif value.dtype.kind in "iuV" and self.feature_dtype is None:
            detail = f"{name} must be an array of floats, got {described(value)}; --feature-dtype {_OPTIONS} says what"
            raise EntryError("decode", "wrong type", f"{detail} numbers its bytes are, such as bfloat16 or uint8")
        if not self._settled and value.dtype.newbyteorder("=").name in FILE_DTYPES:
            data = value.reshape(-1)[: _WATCHED_BYTES // value.dtype.itemsize].tobytes()
            self.watch(data, self.feature_dtype or value.dtype.newbyteorder("=").name)
        return self.plain(value)

    @staticmethod
    def plain(features: np.ndarray) -> np.ndarray:
        """Numbers that float32 holds and `float_array` does not take (bfloat16, uint8, big-endian) as float32."""
        if features.dtype.kind == "f" and features.dtype.isnative:
            return features
        return features.astype(np.float64 if features.dtype.itemsize == 8 else np.float32)

    def watch(self, data: bytes, dtype: str) -> None:
        """Keeps some bytes of an entry's features, stated as `dtype`, until `settle`."""
        self._seen_dtype = self._seen_dtype or dtype
        if not self._settled and dtype == self._seen_dtype:
            data = data[: min(len(data), _WATCHED_BYTES) // _GROUP * _GROUP]
            self._bytes.append(np.frombuffer(data, np.uint8).reshape(-1, _GROUP))

    def classes(self, rows: np.ndarray, name: str, *, background: str = "first") -> RegionClasses:
        """`classes_from_rows` of rows as the file has them, with `background` where the format has it."""
        self._usual, place = background, self.background or background
        if not self._settled and rows.size and place != "none":
            self._rows.append(rows)
        if place == "none":
            rows = with_background(rows, name)
        return classes_from_rows(np.roll(rows, 1, axis=1) if place == "last" else rows, name=name)

    def classes_of(self, value: Any, name: str, num_regions: int, columns: int | None) -> RegionClasses:
        """`classes` of rows that are an array, or one in base64."""
        if isinstance(value, (str, bytes, memoryview)):
            data = base64_bytes(value, name)
            value = array_of_bytes(data, name, self.row_dtype(data, num_regions))
        return self.classes(float32_array(value, name, rows=num_regions, columns=columns), name)

    def stated_ids(self, ids: np.ndarray, classes: RegionClasses) -> np.ndarray:
        """Ids that a file has beside rows of probabilities, as a store counts them; watched for being one off."""
        if not self._settled:
            self._apart.append(ids.astype(np.int64) - classes.class_ids)
        return ids

    def details(self, record: RegionRecord) -> dict[str, Any]:
        """Position of background and number of classes by a record of the file, for `FeatureFile.details`."""
        rows = record.class_distribution
        return {
            "background": ABSENT if rows is None else self.background or self._usual,
            "num_classes": rows.shape[1] - 1 if isinstance(rows, np.ndarray) else None,
        }

    def num_columns(self, distribution: np.ndarray) -> int:
        """Values in a row of the file, by the class distribution of one of its records."""
        return distribution.shape[1] - (self.background == "none")

    def stated_classes(
        self,
        value_of: Callable[[str], Any],
        num_regions: int,
        classes: str | None,
        attributes: str | None,
        rows: RegionClasses | None = None,
    ) -> RegionClasses:
        """Classes of a file that has arrays of ids and of scores.

        Args:
            value_of: the array of a name.
            classes, attributes: how the two names begin, "objects" for objects_id and objects_conf; None for none.
            rows: classes by the rows of probabilities that the file has besides.
        """

        def both(kind: str) -> tuple[np.ndarray, np.ndarray]:
            ids, scores = f"{kind}_id", f"{kind}_conf"
            return id_array(value_of(ids), ids, num_regions), score_array(value_of(scores), scores, num_regions)

        found = rows or without_classes(num_regions)
        if classes is not None:
            ids, scores = both(classes)
            has_rows = found.class_distribution is not None
            ids = self.stated_ids(ids, found) if has_rows else self.class_ids(ids, f"{classes}_id")
            found = found._replace(class_ids=ids, class_scores=scores)
        return found if attributes is None else with_attributes(found, *both(attributes))

    def class_ids(self, ids: np.ndarray, name: str) -> np.ndarray:
        """Ids of a file that has no rows of probabilities, as a store counts them: without background."""
        if self.background != "first":
            return ids
        if not ids.all():
            detail = f"{name} has class 0 in {int((ids == 0).sum())} regions, which --background first calls background"
            raise EntryError("record", "background", detail)
        return ids - np.uint16(1)

    def check(self, source: object) -> None:
        """Raises ValueError with the first of `doubts`."""
        if self.doubts:
            raise ValueError(f"{source}: {self.doubts[0]}")

    def settle(self) -> None:
        """Ends the watching, and fills `doubts`."""
        if not self._settled:
            self._settled = True
            given = (self.feature_dtype, self.background)
            found = (self._dtype_doubt(), self._background_doubt() or self._ids_doubt())
            for doubt, option in zip(found, given, strict=True):
                if doubt is not None and option is None:
                    self.doubts.append(doubt)
                elif doubt is not None:
                    log.warning("%s", doubt)
            self._bytes, self._rows, self._apart = [], [], []

    def _dtype_doubt(self) -> str | None:
        if self._seen_dtype is None or not self._bytes:
            return None
        likely = likely_dtypes(np.concatenate(self._bytes), self._seen_dtype)
        if not likely:
            return None
        if self.feature_dtype is not None:
            return f"--feature-dtype {self.feature_dtype}: the bytes of the features look like {' or '.join(likely)}"
        options = " or ".join(f"--feature-dtype {name}" for name in (*likely, self._seen_dtype))
        return (
            f"its features are read as {self._seen_dtype}, but their bytes look like {' or '.join(likely)}, which are "
            f"other numbers; give their type with {options} {_OPTIONS}"
        )

    def _ids_doubt(self) -> str | None:
        apart = np.concatenate(self._apart) if self._apart else np.zeros(0, np.int64)
        for step, word in ((-1, "low"), (1, "high")):
            if len(apart) >= _FEWEST_REGIONS and (apart == step).mean() >= 0.8:
                off = f"{(apart == step).sum()} of the {plural(len(apart), 'region')} that were looked at"
                return (
                    f"its class ids are one too {word} for its rows of class probabilities in {off}: one of them "
                    "counts background, the other does not; give its position in the rows with --background first or "
                    f"--background last {_OPTIONS}, or leave the ids out of the file"
                )
        return None

    def _background_doubt(self) -> str | None:
        width = self._rows[0].shape[1] if self._rows else 0
        rows = np.concatenate([each for each in self._rows if each.shape[1] == width]) if self._rows else self._rows
        if len(rows) < _FEWEST_REGIONS or width < 3:
            return None
        rows, place = np.asarray(rows, np.float64), self.background or self._usual
        likely, sign = likely_background(rows[:, ::-1] if place == "last" else rows)
        if likely is None or place == "last" != likely:
            return None
        if place == "last":
            likely, sign = "first", sign.replace("the last", "the first")
        if self.background is not None:
            return f"--background {place}: the class probabilities look as if it were {likely}"
        return (
            f"its rows of {width} class probabilities are read with background in the {place} column, but {sign} the "
            f"{plural(len(rows), 'region')} that were looked at; in the wrong reading every class id is one off. Say "
            f"which it is with --background {place} or --background {likely} {_OPTIONS}"
        )


def _sums_to_one(data: bytes, num_regions: int, dtype: np.dtype) -> bool:
    if len(data) % (num_regions * dtype.itemsize):
        return False
    with np.errstate(all="ignore"):
        sums = np.frombuffer(data, dtype).reshape(num_regions, -1).astype(np.float64).sum(axis=1)
    return bool(np.abs(sums - 1).max() < 0.01)


def spread_out(num_entries: int, *, but: int) -> list[int]:
    """A few entries of the whole file to look at besides `but`."""
    step = max(num_entries // _LOOKED_AT, 1)
    return [entry for entry in range(0, num_entries, step)[:_LOOKED_AT] if entry != but]


def likely_background(rows: np.ndarray) -> tuple[str | None, str]:
    """Column of background in rows of class probabilities, if not the first, and the sign of it.

    A detector's doubt goes to background: where another class is the best, background has much of the rest.
    """
    width = rows.shape[1]
    best, second = np.argsort(rows, axis=1)[:, :-3:-1].T
    top = rows.max(axis=1)
    rest = np.where(np.arange(width) == best[:, None], np.nan, rows)
    if not np.isfinite(rows).all() or float((1 - top).mean()) < _FEWEST_REST:
        return None, ""  # annotations: each row is 1 at one class
    others = float(np.nanmean(rest[:, 1:-1]))
    (first_mean, first_most), (last_mean, last_most) = (_mean_and_most(rest[:, column]) for column in (0, width - 1))
    among_best = [float(((best == column) | (second == column)).mean()) for column in (0, width - 1)]
    if among_best[1] >= 0.5 and last_mean > 4 * max(first_mean, others) and first_most < 0.5:
        return "last", f"the last is the largest or second largest in {100 * among_best[1]:.0f} % of"
    is_ordinary = max(first_mean, last_mean) < 2 * others and max(first_most, last_most) < _SMALL
    if width in _WITHOUT_BACKGROUND and not (among_best[0] >= 0.5 and first_mean > 4 * others):
        return "none", f"{width} is a known number of classes without background, and no column looks like it in"
    if is_ordinary and width - 1 not in _WITHOUT_BACKGROUND and float(top[best == 0].mean() if 0 in best else 0) > 0.5:
        return "none", "no column looks like background, and the first is the largest in some, of"
    return None, ""


def likely_dtypes(groups: np.ndarray, stated: str) -> list[str]:
    """Dtypes that bytes of features look like, if not `stated`: keys of `FILE_DTYPES`, the likeliest first.

    A value's high byte (sign and exponent) differs from its low bytes, and values are alike in all columns: bytes of
    one place in a value have one distribution. So the size of a value is the smallest distance at which they are alike.

    Args:
        groups: (N, 8) uint8, bytes that follow each other.
    """
    groups = groups[groups.any(axis=1)]
    if len(np.unique(groups[:1000], axis=0)) < _FEWEST_GROUPS:
        return []
    size = _GROUP
    for step in (4, 2, 1):
        if size == 2 * step and _alike(groups.reshape(-1, size), step):
            size = step
    itemsize, is_sane = FILE_DTYPES[stated].itemsize, _is_sane(groups, stated)
    halves = groups.reshape(-1, itemsize).any(axis=1).reshape(-1, _GROUP // itemsize)
    if is_sane and size >= itemsize and halves.any(axis=0).all():
        return []
    if size == 1:
        return ["uint8"] if itemsize == 4 and not is_sane else []
    names = [name for name, dtype in FILE_DTYPES.items() if dtype.itemsize == size and name != stated]
    # Read as float16, bfloat16 looks tidy too, not the other way round.
    names.sort(key=lambda name: (name.startswith("big"), not _is_sane(groups, name), name != "bfloat16"))
    sane = [name for name in names if _is_sane(groups, name)]
    return names[:2] if sane and size == 2 and not sane[0].startswith("big") else sane[:1]


def _alike(values: np.ndarray, step: int) -> bool:
    """Whether the first `step` bytes of values, in turn, are distributed as the others are."""
    values = values[values.any(axis=1)]
    counts = np.stack([np.bincount(each >> 4, minlength=16) for each in values.T]) / len(values)
    # 16 bins of few values differ by this by chance; unlike bytes differ by 0.8.
    limit = min(0.25 + (5 / len(values)) ** 0.5, 0.5)
    return bool(0.5 * np.abs(counts[:step] - counts[step:]).sum(axis=1).max() < limit)


def _is_sane(groups: np.ndarray, name: str) -> bool:
    """Whether the values lie as features do: finite, and most of them within few powers of 2, not far from 1."""
    with np.errstate(all="ignore"):
        values = np.abs(groups.reshape(-1).view(FILE_DTYPES[name]).astype(np.float64))
    if not np.isfinite(values).all():
        return False
    values = values[values > 0]
    if not len(values):
        return False
    low, middle, high = np.percentile(np.log2(values), [5, 50, 95])
    return bool(high - low <= _WIDEST_SPREAD and abs(middle) <= _FARTHEST_MIDDLE)


def _mean_and_most(values: np.ndarray) -> tuple[float, float]:
    """Mean and largest of the values that are numbers; zeros where none is."""
    values = values[~np.isnan(values)]
    return (float(values.mean()), float(values.max())) if len(values) else (0.0, 0.0)
