"""Input of `StoreWriter`, checked: settings for all records of a store, and the arrays of one image as a record.

Settings are the name of the features, and what class and attribute ids mean. Arrays are cast, and checked where a
mistake would look right. `RecordKind` holds what all records of a store have in common: readers and trainers look at
the first record and rely on it for all.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Required, Self, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from roibeam.features.exchange.entry_record import EntryError, check_boxes, check_scores, id_array
from roibeam.features.exchange.formats import FORMATS
from roibeam.features.record.region_record import FEATURE_DTYPES, RegionRecord, TopKDistribution
from roibeam.features.store_copy import COPY_DTYPES
from roibeam.messages import check_list, first_line, near_names

MOST_CLASSES = 2**16  # ids are uint16


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """
    Attributes:
        feature_space: a name in lower-case letters, digits, `.`, `_` and `-`, such as "my-detector".
        classes, attributes: names in id order, background not among them; None when unknown.
        num_classes: foreground classes; given without names, or equal to their number.
        dtype: features are stored in it, one of `COPY_DTYPES`; None: as they are given.
        shard_bytes: a shard ends with the record that brings it to so many bytes of arrays.
        photos: absolute path of the folder that holds the photos; an image id is the path below it without its
            extension. None when unknown.

    Raises:
        ValueError: saying which of them is what it cannot be.
    """

    feature_space: str
    classes: tuple[str, ...] | None
    attributes: tuple[str, ...] | None
    num_classes: int | None
    dtype: str | None
    shard_bytes: int
    photos: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.feature_space, str) or not re.fullmatch(
            r"[a-z0-9][a-z0-9_.-]{0,99}", self.feature_space
        ):
            raise ValueError(
                f"feature_space {self.feature_space!r}: give a name of lower-case letters, digits, '.', '_' and '-', "
                f"at most 100, such as 'my-detector'"
            )
        if self.feature_space in FORMATS:
            raise ValueError(
                f"feature_space {self.feature_space!r} is the name of features imported from such files; choose a name "
                f"of your own, such as 'my-detector'"
            )
        if self.dtype is not None and self.dtype not in COPY_DTYPES:
            raise ValueError(f"dtype {self.dtype!r}: choose {' or '.join(COPY_DTYPES)}, or None: as they are given")
        if not isinstance(self.shard_bytes, int) or self.shard_bytes < 1:
            raise ValueError(f"shard_bytes {self.shard_bytes!r} must be a positive number of bytes")
        self._check_classes()

    def _check_classes(self) -> None:
        if self.classes is not None and self.classes[0].strip("_").lower() == "background":
            raise ValueError("classes: the first is background; name foreground classes alone, and count ids from them")
        count = self.num_classes
        if count is not None and not (isinstance(count, int) and 1 <= count < MOST_CLASSES):
            raise ValueError(f"num_classes {count!r} must be an integer from 1 to {MOST_CLASSES - 1}")
        if count is not None and self.classes is not None and count != len(self.classes):
            raise ValueError(f"num_classes is {count}, but classes has {len(self.classes):,} names; leave one out")

    @property
    def known_classes(self) -> int | None:
        """Number of foreground classes, if the user gave it."""
        return self.num_classes if self.classes is None else len(self.classes)

    @property
    def source(self) -> dict[str, dict[str, str]]:
        """Photos in the store's config, as an extraction of their folder records them; empty when unknown."""
        if self.photos is None:
            return {}
        return {
            "source": {
                "kind": "folder", "location": self.photos, "image_root": self.photos, "id_rule": "no-extension"
            }
        }  # fmt: skip

    @property
    def plan(self) -> str:
        """Equal for writers that may write one store: JSON, so that a difference can be named."""
        return json.dumps(
            {
                "feature_space": self.feature_space,
                "classes": _digest(self.classes),
                "num_classes": self.known_classes,
                "attributes": _digest(self.attributes),
            },
            sort_keys=True,
        )

    def difference(self, plan: str) -> str:
        """Difference from another plan, such as "feature_space 'a', now 'b'"; "" if there is none, or it is no plan."""
        try:
            before, now = json.loads(plan), json.loads(self.plan)
            names = [name for name in now if before[name] != now[name]]
        except (ValueError, TypeError, KeyError):
            return ""
        return ", ".join(
            f"{name} {before[name]!r}, now {now[name]!r}" if before[name] and now[name] else
            f"{name}, now none" if before[name] else f"no {name}, now some"
            for name in names
        )  # fmt: skip

    def check(self, record: RegionRecord, *, has_classes: bool | None) -> None:
        """ValueError naming the record when its ids are not those of the classes and attributes; `has_classes` is
        whether its class ids were given, None if unknown."""
        where = f"record {record.image_id!r}"
        known = self.known_classes
        if known is not None:
            if has_classes is False and record.num_regions:
                raise ValueError(f"{where}: class_ids and class_scores missing; this writer has {known} classes")
            _check_ids(where, "class_ids", record.class_ids, known)
        if self.attributes is not None:
            if record.attribute_ids is None:
                raise ValueError(f"{where}: attribute_ids and attribute_scores missing; this writer has attributes")
            _check_ids(where, "attribute_ids", record.attribute_ids, len(self.attributes))
        distribution = record.class_distribution
        if known is not None and distribution is not None:
            if isinstance(distribution, TopKDistribution):
                columns = distribution.num_classes
            else:
                columns = distribution.shape[1] - 1
            if columns != known:
                raise ValueError(
                    f"{where}: class_distribution is of {columns} classes and background, this writer has {known} "
                    f"classes"
                )


def checked_names(names: Iterable[str] | None, what: str) -> tuple[str, ...] | None:
    """Names of classes or attributes; ValueError for one text in place of several, no name, or what is no text."""
    if names is None:
        return None
    check_list(names, what)
    found = tuple(names)
    for number, name in enumerate(found):
        if not isinstance(name, str) or not name:
            raise ValueError(f"{what}: name {number} is {name!r}, not a text")
    if not 1 <= len(found) < MOST_CLASSES:
        raise ValueError(
            f"{what} has {len(found):,} names; give 1 to {MOST_CLASSES - 1:,}, or None when they are unknown"
        )
    return found


def _check_ids(where: str, name: str, ids: np.ndarray, count: int) -> None:
    if len(ids) and int(ids.max()) >= count:
        raise ValueError(f"{where}: {name} has {int(ids.max())}, this writer has {count}, 0 to {count - 1}")


def _digest(names: tuple[str, ...] | None) -> str | None:
    if names is None:
        return None
    return f"{len(names)} names, SHA-256 {hashlib.sha256(json.dumps(names).encode('ascii')).hexdigest()[:16]}"


@dataclass(frozen=True)
class RecordKind:
    """Attributes:
    feature_dim, feature_dtype: of the region features.
    attributes: whether records have any.
    class_distribution: "none", "full of 80 classes", "top-3 of 80 classes".
    image_feature: width of the feature of the whole image; 0 for none.
    """

    feature_dim: int
    feature_dtype: str
    attributes: bool
    class_distribution: str
    image_feature: int

    @classmethod
    def of(cls, record: RegionRecord) -> Self:
        distribution = record.class_distribution
        form = "none"
        if isinstance(distribution, TopKDistribution):
            form = f"top-{distribution.class_ids.shape[1]} of {distribution.num_classes} classes"
        elif distribution is not None:
            form = f"full of {distribution.shape[1] - 1} classes"
        return cls(
            feature_dim=record.features.shape[1],
            feature_dtype=record.feature_dtype,
            attributes=record.attribute_ids is not None,
            class_distribution=form,
            image_feature=0 if record.image_feature is None else record.image_feature.size,
        )

    def check(self, other: RecordKind, image_id: str) -> None:
        """ValueError when `other`, of a record that came later, differs; names what does."""
        mine, yours = asdict(self), asdict(other)
        differ = [f"{name} {yours[name]!r}, not {mine[name]!r}" for name in mine if mine[name] != yours[name]]
        if differ:
            raise ValueError(
                f"record {image_id!r}: has {', '.join(differ)} as the records before it; all records of a store have "
                f"the same (of an image without regions give (0, ...) arrays, such as np.zeros((0, D), dtype))"
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """ValueError naming `where` for anything but what `to_json` gives."""
        if not isinstance(value, dict) or value.keys() != {each.name for each in fields(cls)}:
            raise ValueError(f"{where}: was not written by StoreWriter, or was changed; choose a new folder")
        return cls(**value)


_SUM_SLACK = 0.01  # of a row of probabilities; float16 values of 1,601 classes are off by less


class RegionArrays(TypedDict, total=False):
    """Input of `StoreWriter.write` for one image: lists, numpy arrays, or torch tensors on the CPU. K regions, K may be
    0.

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
        # Boxes in shares of the image look like boxes of its corner.
        if min(record.height, record.width) > 1 and 0 < record.boxes.max(initial=0) <= 1:
            size = f"{record.width}x{record.height}"
            detail = f"all boxes lie in 0..1 of an image of {size} pixels; give x1 y1 x2 y2 in pixels"
            raise EntryError("record", "boxes in shares", detail)
        check_scores(record.class_scores, "class_scores")
        if record.attribute_scores is not None:
            check_scores(record.attribute_scores, "attribute_scores")
    except EntryError as error:
        raise ValueError(f"record {record.image_id!r}: {error}") from None


def caption_texts(image_id: str, captions: str | Iterable[str]) -> tuple[str, ...]:
    """The captions of an image; one text alone is one caption. Raises ValueError for what is no text, or empty."""
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
        raise EntryError(
            "read",
            "no array",
            f"{name} is no array ({first_line(error)}); for a tensor give tensor.detach().cpu(), for bfloat16 .float()",
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
