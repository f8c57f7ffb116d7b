"""The arrays that a user has of one image become a record: cast, and checked where a mistake would look right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Required, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from roibeam.features.exchange.entry_record import EntryError, check_boxes, check_scores, id_array
from roibeam.features.record.region_record import FEATURE_DTYPES, RegionRecord, TopKDistribution
from roibeam.near_names import near_names

_SUM_SLACK = 0.01  # of a row of probabilities; float16 values of 1,601 classes are off by less


class RegionArrays(TypedDict, total=False):
    """What `StoreWriter.write` takes of one image: lists, numpy arrays, or torch tensors on the CPU. K regions, K may
    be 0.

    Attributes:
        height, width: int, pixels of the photo that the boxes were found in.
        boxes: (K, 4), x1 y1 x2 y2 in those pixels; stored as float32.
        features: (K, D) floats; float64 is stored as float32, any other as it is.
        class_ids: (K,) integers from 0, background not counted; stored as uint16.
        class_scores: (K,), 0..1, together with `class_ids`; stored as float32. Without the two, zeros are stored, and
            the store says that they mean nothing.
        attribute_ids, attribute_scores: (K,) likewise, together.
        class_distribution: (K, C + 1) probabilities, background last, or a `TopKDistribution`; stored as float16.
        image_feature: (G,) floats, one feature of the whole image.
    """

    height: Required[int]
    width: Required[int]
    boxes: Required[ArrayLike]
    features: Required[ArrayLike]
    class_ids: ArrayLike | None
    class_scores: ArrayLike | None
    attribute_ids: ArrayLike | None
    attribute_scores: ArrayLike | None
    class_distribution: ArrayLike | TopKDistribution | None
    image_feature: ArrayLike | None


_NEEDED = ("height", "width", "boxes", "features")
_NAMES = tuple(RegionArrays.__annotations__)


def record_of_arrays(image_id: str, given: Mapping[str, Any]) -> RegionRecord:
    """
    Args:
        given: `RegionArrays`.
    Raises:
        ValueError: naming image and array, when one is missing, of another shape or kind, or out of its range.
    """
    _check_names(image_id, given)
    try:
        features = _floats(given["features"], "features")
        if features.ndim != 2:
            raise EntryError("record", "wrong type", f"features must be (K, D), one row a region, got {features.shape}")
        num_regions = len(features)
        boxes = _boxes(given["boxes"], num_regions)
        if boxes.ndim == 2 and len(boxes) != num_regions:
            rows = f"features has {num_regions} rows and boxes has {len(boxes)}"
            raise EntryError("record", "other rows", f"{rows}; each region has a row in both")
        ids, scores = _labels(given, "class", num_regions)
        attribute_ids, attribute_scores = _labels(given, "attribute", num_regions)
        image_feature = given.get("image_feature")
        record = RegionRecord(
            image_id=image_id,
            height=given["height"],
            width=given["width"],
            boxes=boxes,
            features=features,
            class_ids=np.zeros(num_regions, np.uint16) if ids is None else ids,
            class_scores=np.zeros(num_regions, np.float32) if scores is None else scores,
            attribute_ids=attribute_ids,
            attribute_scores=attribute_scores,
            class_distribution=_distribution(given.get("class_distribution")),
            image_feature=None
            if image_feature is None
            else _floats(image_feature, "image_feature", features.dtype.name),
        )
    except EntryError as error:
        raise ValueError(f"record {image_id!r}: {error}") from None
    check_values(record)
    return record


def check_values(record: RegionRecord) -> None:
    """Raises ValueError naming the record whose boxes lie outside its photo or in shares of it, or whose scores do not
    lie in 0..1: a `RegionRecord` checks shapes and dtypes alone, and such values look right in a store."""
    try:
        check_boxes(record.boxes, record.height, record.width)
        _check_pixels(record)
        check_scores(record.class_scores, "class_scores")
        if record.attribute_scores is not None:
            check_scores(record.attribute_scores, "attribute_scores")
    except EntryError as error:
        raise ValueError(f"record {record.image_id!r}: {error}") from None


def caption_texts(image_id: str, captions: str | Iterable[str]) -> tuple[str, ...]:
    """The captions of an image; one text alone is one caption.

    Raises:
        ValueError: for what is no text, or empty.
    """
    if isinstance(captions, Mapping) or not isinstance(captions, Iterable):
        raise ValueError(f"image {image_id!r}: captions are a text or several, got {type(captions).__name__}")
    texts = (captions,) if isinstance(captions, str) else tuple(captions)
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"image {image_id!r}: a caption must be a text that is not empty, got {text!r}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"image {image_id!r}: caption {text!r} is not valid UTF-8") from None
    return texts


def _check_names(image_id: str, given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in _NAMES:
            near = near_names(str(name), _NAMES)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_NAMES)} and captions"
            raise ValueError(f"record {image_id!r}: no array is called {name!r}; {hint}")
    missing = [name for name in _NEEDED if given.get(name) is None]
    if missing:
        raise ValueError(f"record {image_id!r}: {', '.join(missing)} missing; give {', '.join(_NEEDED)}")


def _array(value: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors on a GPU, of bfloat16, with gradient
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EntryError(
            "read",
            "no array",
            f"{name} is no array ({why}); of a tensor give tensor.detach().cpu(), of bfloat16 .float()",
        ) from None


def _floats(value: Any, name: str, dtype: str | None = None) -> np.ndarray:
    """C-contiguous, in `dtype` (None: its own, or float32 where that cannot be stored)."""
    array = _array(value, name)
    known = array.dtype.newbyteorder("=") in FEATURE_DTYPES.values()
    if not known and array.dtype.kind != "f":
        raise EntryError("read", "wrong type", f"{name} must be floats, got {array.dtype} {array.shape}")
    target = FEATURE_DTYPES[dtype] if dtype is not None else array.dtype.newbyteorder("=") if known else np.float32
    with np.errstate(over="ignore"):  # becomes infinite, which the record refuses
        return np.ascontiguousarray(array, target)


def _boxes(value: Any, num_regions: int) -> np.ndarray:
    boxes = _array(value, "boxes")
    if boxes.dtype.kind not in "iuf":
        raise EntryError("read", "wrong type", f"boxes must be numbers, got {boxes.dtype} {boxes.shape}")
    if boxes.size == 0 and num_regions == 0:
        boxes = boxes.reshape(0, 4)
    return np.ascontiguousarray(boxes, np.float32)


def _labels(given: Mapping[str, Any], which: str, num_regions: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Ids and scores of classes or attributes."""
    names = (f"{which}_ids", f"{which}_scores")
    found = [given.get(name) for name in names]
    missing = [each is None for each in found]
    if all(missing):
        return None, None
    if any(missing):
        raise EntryError("read", "missing", f"{names[0]} and {names[1]} come together; ones are fine as scores")
    ids, scores = (_array(each, name) for each, name in zip(found, names, strict=True))
    if ids.size == 0:
        ids = ids.astype(np.uint16)  # an empty list has no integers
    if scores.dtype.kind not in "iuf" or scores.shape != (num_regions,):
        raise EntryError(
            "read", "wrong type", f"{names[1]} must be {num_regions} numbers, got {scores.dtype} {scores.shape}"
        )
    check_scores(scores, names[1])
    return id_array(ids, names[0], num_regions), np.ascontiguousarray(scores, np.float32)


def _distribution(value: Any) -> np.ndarray | TopKDistribution | None:
    if value is None or isinstance(value, TopKDistribution):
        return value
    rows = _floats(value, "class_distribution", "float32")
    check_scores(rows, "class_distribution")
    off = float(np.abs(rows.sum(axis=-1, dtype=np.float64) - 1).max(initial=0)) if rows.ndim == 2 else 0.0
    if off > _SUM_SLACK:
        raise EntryError(
            "record",
            "bad value",
            f"a row of class_distribution sums up to 1 +- {off:.3g}; give those of all classes, background last",
        )
    return rows.astype(np.float16)


def _check_pixels(record: RegionRecord) -> None:
    """Boxes in shares of the image look like boxes of its corner."""
    if min(record.height, record.width) > 1 and 0 < record.boxes.max(initial=0) <= 1:
        raise EntryError(
            "record",
            "boxes in shares",
            f"all boxes lie in 0..1 of an image of {record.width}x{record.height} pixels; give x1 y1 x2 y2 in pixels",
        )
