"""Conversion of a feature file's arrays of an image to a record, and of a record's classes back to rows.

The files differ in container and names; what must hold of their values does not: boxes lie in the image, ids and scores
are in range, class probabilities sum up to 1 and have background in the first place.
"""

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.record.region_record import FEATURE_DTYPES, MAX_REGIONS, RegionRecord, TopKDistribution

_BOX_SLACK_PX = 1.0  # boxes of the original lie in 0 .. width; published ports overshoot by rounding
_PROBABILITY_SLACK = 1e-3  # float32 softmax of 1601 classes, summed, or its float16 values
_MAX_CLASSES = MAX_REGIONS + 1
_LARGEST_SIDE = 2**31 - 1
FAR_EDGES = "far edges"  # in place of the image size
_LONGEST_NUMBER = 40  # characters
_WHOLE = re.compile(r"([0-9]{1,10})(?:\.0{0,10})?", re.ASCII)  # pandas writes whole numbers as 314.0


class EntryError(ValueError):
    """An entry of a file that gives no record; `stage` and `reason` as in `DeadLetter`."""

    def __init__(self, stage: str, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.stage, self.reason = stage, reason


class RegionClasses(NamedTuple):
    """Classes of K regions as a file has them: fields of `RegionRecord`."""

    class_ids: np.ndarray
    class_scores: np.ndarray
    class_distribution: np.ndarray | None = None
    attribute_ids: np.ndarray | None = None
    attribute_scores: np.ndarray | None = None


def without_classes(num_regions: int) -> RegionClasses:
    """Zeros, for a file that has none."""
    return RegionClasses(np.zeros(num_regions, np.uint16), np.zeros(num_regions, np.float32))


def classes_from_rows(rows: np.ndarray, *, name: str) -> RegionClasses:
    """Classes from probabilities with BACKGROUND FIRST, (K, C + 1) float32: the best foreground class of each region.

    The record's class distribution is the whole row with background moved from the first place to the last. Raises
    EntryError when a row is no distribution."""
    num_regions, width = rows.shape
    if num_regions == 0:
        return without_classes(0)
    if not 2 <= width <= _MAX_CLASSES:
        raise EntryError("decode", "wrong shape", f"{name} has rows of {width} values; 1601 are usual")
    check_scores(rows, name)
    off = float(np.abs(rows.sum(axis=1, dtype=np.float64) - 1).max())
    if not off <= _PROBABILITY_SLACK:
        detail = f"{name}: a row sums up to 1 +- {off:.3g}; probabilities sum up to 1, with --background none up to it"
        raise EntryError("record", "bad value", detail)
    class_ids = rows[:, 1:].argmax(axis=1)
    scores = np.ascontiguousarray(rows[np.arange(num_regions), class_ids + 1])
    return RegionClasses(class_ids.astype(np.uint16), scores, np.roll(rows, -1, axis=1).astype(np.float16))


def with_background(rows: np.ndarray, name: str) -> np.ndarray:
    """Rows without background with one more column in front: what they lack to 1."""
    check_scores(rows, name)
    rest = 1 - rows.sum(axis=1, dtype=np.float64, keepdims=True)
    return np.concatenate([rest.astype(np.float32).clip(0, None), rows], axis=1)


def rows_of_classes(record: RegionRecord) -> np.ndarray | None:
    """The record's class distribution as files have it, (K, C + 1) float32 with BACKGROUND FIRST; None without one.

    A top-k distribution becomes whole rows. A record keeps its distribution in float16 and the score of its class in
    float32; where the two are the same number, the row gets the latter, so that nothing of it is lost. Raises
    ValueError when a row does not sum up to 1, since no reader of such a file would take it."""
    if record.class_distribution is None:
        return None
    if isinstance(record.class_distribution, TopKDistribution):
        rows = record.class_distribution.dense()
    else:
        rows = record.class_distribution.astype(np.float32)
    off = float(np.abs(rows.sum(axis=1, dtype=np.float64) - 1).max(initial=0))
    if off > _PROBABILITY_SLACK:
        raise ValueError(f"record {record.image_id!r}: a row of its class distribution sums up to 1 +- {off:.3g}")
    regions = np.flatnonzero(record.class_ids < rows.shape[1] - 1)
    classes = record.class_ids[regions]
    same = record.class_scores[regions].astype(np.float16) == rows[regions, classes].astype(np.float16)
    rows[regions[same], classes[same]] = record.class_scores[regions[same]]
    return np.roll(rows, 1, axis=1)


def with_attributes(classes: RegionClasses, ids: np.ndarray, scores: np.ndarray) -> RegionClasses:
    """With these attributes, none when all are 0: the COCO script of py-bottom-up-attention writes that there are none
    so."""
    return classes._replace(attribute_ids=ids, attribute_scores=scores) if ids.any() or scores.any() else classes


def attributes_or_zeros(record: RegionRecord) -> tuple[np.ndarray, np.ndarray]:
    """Attribute ids and scores for a file that has them always."""
    none = np.zeros(record.num_regions, np.float32)
    ids, scores = record.attribute_ids, record.attribute_scores
    return none.astype(np.int64) if ids is None else ids, none if scores is None else scores


def float_array(value: Any, name: str, *, rows: int | None = None, columns: int | None = None) -> np.ndarray:
    """A (K, columns) array of floats as it is in the file; a flat one is cut into rows.

    Args:
        rows: None where the file does not say how many; then `columns` is given.
    Raises:
        EntryError: for another kind or shape, naming both.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.dtype.itemsize not in (2, 4, 8):
        raise EntryError("decode", "wrong type", f"{name} must be an array of floats, got {described(value)}")
    if rows is None:
        rows = value.size // columns if columns and value.ndim == 1 else value.shape[0] if value.ndim else 0
    if columns is None:
        columns = value.size // rows if rows else 1
    fits = value.shape == (rows, columns) or (value.ndim == 1 and value.size == rows * columns)
    if columns < 1 or not (fits or (rows == 0 and value.size == 0)):
        raise EntryError("decode", "wrong shape", f"{name} has shape {value.shape}, {(rows, columns)} is expected")
    array = value.reshape(rows, columns)
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))


def float32_array(value: Any, name: str, *, rows: int | None = None, columns: int | None = None) -> np.ndarray:
    """`float_array` in float32."""
    with np.errstate(over="ignore"):  # becomes infinite, which the record refuses
        return float_array(value, name, rows=rows, columns=columns).astype(np.float32, copy=False)


def score_array(value: Any, name: str, num_regions: int) -> np.ndarray:
    """(K,) float32 in 0..1."""
    scores = float32_array(value, name, rows=num_regions, columns=1)[:, 0]
    check_scores(scores, name)
    return scores


def base64_text(array: np.ndarray, kind: str = "<f4") -> str:
    """The values as numbers of `kind` in base64."""
    return base64.b64encode(array.astype(kind).tobytes()).decode("ascii")


def base64_bytes(value: Any, name: str) -> bytes:
    """The bytes of base64, with or without line ends in it or the b'...' that Python 3 writes around bytes as text."""
    try:
        data = value.encode("ascii") if isinstance(value, str) else value
        if data[:1] == b"b" and data[1:2] in (b"'", b'"') and data[-1:] == data[1:2]:
            data = data[2:-1]
            if b"\\" in bytes(data):
                data = bytes(data).replace(b"\\n", b"")
        elif isinstance(data, bytes) and b"\n" in data:  # base64.encodebytes
            data = data.replace(b"\n", b"")
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:  # also for text that is not ASCII
        raise EntryError("decode", "bad base64", f"{name}: {error}") from None


def array_of_bytes(data: bytes, name: str, kind: Any, num_values: int | None = None) -> np.ndarray:
    """A flat array of `kind` (a numpy dtype such as "<f4").

    Args:
        num_values: where it is known, integers may have 4 bytes in place of 8, and floats 2, 4 or 8: the number
            decides.
    """
    dtype = np.dtype(kind)
    if num_values:
        sizes = (4, 8) if dtype.kind == "i" else (2, 4, 8)
        size = len(data) // num_values
        if size in sizes and size * num_values == len(data):
            dtype = np.dtype(f"<{dtype.kind}{size}")
    if len(data) % dtype.itemsize:
        raise EntryError(
            "decode", "wrong byte count", f"{name} has {len(data):,} bytes, not a multiple of {dtype.itemsize}"
        )
    return np.frombuffer(data, dtype)


def id_array(value: Any, name: str, num_regions: int) -> np.ndarray:
    """(K,) uint16 from integers of any width."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or value.shape != (num_regions,):
        raise EntryError("decode", "wrong type", f"{name} must be {num_regions} integers, got {described(value)}")
    if num_regions and not 0 <= int(value.min()) <= int(value.max()) <= np.iinfo(np.uint16).max:
        raise EntryError("record", "bad value", f"{name} has ids from {value.min()} to {value.max()}, not 0 to 65535")
    return value.astype(np.uint16)


def check_scores(values: np.ndarray, name: str) -> None:
    """Refuses values outside 0..1."""
    slack = _PROBABILITY_SLACK
    if values.size and not (float(values.min()) >= -slack and float(values.max()) <= 1 + slack):
        raise EntryError("record", "bad value", f"{name} has values from {values.min()} to {values.max()}, not 0 to 1")


def whole_number(value: Any, name: str, smallest: int, largest: int) -> int:
    """An int, or what stands for one in these files: digits as text (csv; also "314.0"), a numpy integer, an array of
    one."""
    if isinstance(value, np.ndarray) and value.shape in ((), (1,)):
        value = value.reshape(())[()]
    number = None
    if isinstance(value, memoryview):
        value = bytes(value[:_LONGEST_NUMBER])
    if isinstance(value, (str, bytes)) and len(value) < _LONGEST_NUMBER:
        text = value.decode("latin1") if isinstance(value, bytes) else value
        whole = _WHOLE.fullmatch(text.strip())
        number = int(whole[1]) if whole else None
    elif isinstance(value, (float, np.floating)) and not float(value).is_integer():
        pass
    elif isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        number = int(value)
    if number is None or not smallest <= number <= largest:
        raise EntryError(
            "read", "bad number", f"{name} must be an integer from {smallest} to {largest}, got {described(value)}"
        )
    return number


def image_size(value_of: Callable[[str], Any], names: tuple[str, str]) -> tuple[int, int]:
    """Height and width of a photo from the values of these two names."""
    height, width = (whole_number(value_of(name), name, 1, _LARGEST_SIDE) for name in names)
    return height, width


def far_edges(boxes: np.ndarray) -> tuple[int, int]:
    """Height and width of the smallest photo that boxes (K, 4) in pixels lie in, for a file that has none."""
    far = boxes[:, 2:].max(axis=0, initial=1)
    if not (far <= _LARGEST_SIDE).all():  # also NaN
        raise EntryError("record", "bad value", f"boxes reach to {far.max()}")
    return int(np.ceil(far[1])), int(np.ceil(far[0]))


def region_record(
    image_id: str,
    height: int,
    width: int,
    boxes: np.ndarray,
    features: np.ndarray,
    classes: RegionClasses,
    *,
    dtype: str,
    image_feature: np.ndarray | None = None,
) -> RegionRecord:
    """The record, its features in `dtype` (key of `FEATURE_DTYPES`).

    Args:
        boxes: (K, 4) float32 in pixels.
        features: (K, D) float16, float32 or float64.
    Raises:
        EntryError: for boxes outside the image, and for what `RegionRecord` refuses.
    """
    check_boxes(boxes, height, width)
    try:
        with np.errstate(over="ignore"):  # a value over the dtype's range becomes infinite, which the record refuses
            return RegionRecord(
                image_id=image_id,
                height=height,
                width=width,
                boxes=boxes,
                features=features.astype(FEATURE_DTYPES[dtype], copy=False),
                **classes._asdict(),
                image_feature=None if image_feature is None else image_feature.astype(FEATURE_DTYPES[dtype]),
            )
    except ValueError as error:
        raise EntryError("record", "invalid record", str(error)) from None


def check_boxes(boxes: np.ndarray, height: int, width: int) -> None:
    """Refuses boxes outside the image: with height and width swapped every number would still look right."""
    if not len(boxes) or not np.isfinite(boxes).all():
        return  # the record refuses the latter
    lowest, (far_x, far_y) = float(boxes.min()), boxes[:, 2:].max(axis=0).tolist()
    if lowest >= -_BOX_SLACK_PX and far_x <= width + _BOX_SLACK_PX and far_y <= height + _BOX_SLACK_PX:
        return
    reach = f"boxes reach from {lowest:.1f} to x {far_x:.1f}, y {far_y:.1f} in an image of {width}x{height} pixels"
    if lowest >= -_BOX_SLACK_PX and far_x <= height + _BOX_SLACK_PX and far_y <= width + _BOX_SLACK_PX:
        raise EntryError("record", "height and width swapped", f"{reach}; they fit when height and width are swapped")
    raise EntryError("record", "boxes outside the image", f"{reach}; are they in pixels of the original photo?")


def described(value: Any) -> str:
    """Short description of a value, for an error."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, (int, float, str, bytes, np.generic)):
        return f"{type(value).__name__} {repr(value[:40] if isinstance(value, (str, bytes)) else value)[:60]}"
    return type(value).__name__
