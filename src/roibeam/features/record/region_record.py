"""Region record (one image's regions as the detector measured them), and the content digests of records and stores.

A record outlives the detector that wrote it and the model that reads it, so it holds only what was measured: boxes in
pixels, raw features, scores. Location vectors, normalisation and global tokens are made by the models when they read.

A record's digest covers its fields, not its bytes on disk, so it survives another layout, shard size or order. A
store's digest is a digest of record digests: a store that grows, is cut into other shards, or is merged is digested
again from the 32 bytes per record in the shards' indexes, without reading terabytes of features.
"""

from __future__ import annotations

import hashlib
import heapq
import operator
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from roibeam.features.record.notebook import regions_html, regions_png
from roibeam.features.record.region_drawing import MAX_REGIONS as MAX_DRAWN
from roibeam.features.record.region_drawing import PhotoLike, draw_regions, photo_pixels, region_labels, sheet
from roibeam.messages import printable, short_repr


def top_k_of(distribution: str) -> int | None:
    """k of "top-<k>", a whole number from 1; None for any other word."""
    prefix, _, number = distribution.partition("-")
    return int(number) if prefix == "top" and number.isdecimal() and int(number) > 0 else None


MAX_IMAGE_ID_BYTES = 511  # LMDB's largest key
MAX_REGIONS = 65535  # the offset index counts regions in 16 bits
BOX_NUMBERS = 6  # see `box_numbers`
FEATURE_DTYPES = {
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def check_dtype(dtype: str | None) -> None:
    """Raises ValueError for what is no dtype of features; None is one."""
    if dtype is not None and dtype not in FEATURE_DTYPES:
        raise ValueError(f"--dtype {dtype!r}: choose one of {', '.join(FEATURE_DTYPES)}")


@dataclass(frozen=True, eq=False)
class TopKDistribution:
    """The k most probable classes of each region; a lossy stand-in for the full class distribution.

    Class order as in `RegionRecord.class_distribution`: foreground classes first, background last.

    Attributes:
        class_ids: (K, k) uint16, by descending probability; `num_classes` stands for background.
        probabilities: (K, k) float16, 0..1.
        rest: (K,) float16, probability of all classes not listed.
        num_classes: foreground classes; a full row would have `num_classes + 1` entries.
    """

    class_ids: np.ndarray
    probabilities: np.ndarray
    rest: np.ndarray
    num_classes: int

    __repr__ = short_repr

    def dense(self) -> np.ndarray:
        """(K, num_classes + 1) float32; the rest mass is spread evenly over the classes that are not listed."""
        num_regions, top = self.class_ids.shape
        width = self.num_classes + 1
        share = self.rest.astype(np.float32) / max(width - top, 1)
        rows = np.repeat(share[:, None], width, axis=1)
        rows[np.arange(num_regions)[:, None], self.class_ids] = self.probabilities.astype(np.float32)
        return rows


@dataclass(frozen=True, eq=False)
class RegionRecord:
    """Regions of one image; validates itself.

    Attributes:
        image_id: unique in a store; 1 to 511 bytes of UTF-8.
        height, width: pixels of the decoded image (EXIF orientation applied or not as the conventions say).
        boxes: (K, 4) float32, x1 y1 x2 y2 in those pixels.
        features: (K, D) float16, float32 or bfloat16 (`ml_dtypes.bfloat16`); D >= 1.
        class_ids: (K,) uint16, 0-based foreground classes, background not counted.
        class_scores: (K,) float32, 0..1.
        attribute_ids: (K,) uint16, 0-based, "no attribute" not counted; None when the detector has no attribute head.
        attribute_scores: (K,) float32, 0..1; present exactly when `attribute_ids` is.
        class_distribution: None, or (K, C + 1) float16 with background last, or `TopKDistribution`.
        image_feature: (G,) in the dtype of `features`, G >= 1: one feature for the whole image, or None. It is the
            detector's feature of the whole image as one region (then G = D), or comes from another network with a
            width of its own; the store's fingerprint has which.

    K may be 0. Arrays are C-contiguous and little-endian.

    Raises:
        ValueError: naming the record and the field, when a shape, dtype or value is not as above (a feature that is NaN
            or infinite, as a value over 65504 becomes in float16, included).
    """

    image_id: str
    height: int
    width: int
    boxes: np.ndarray
    features: np.ndarray
    class_ids: np.ndarray
    class_scores: np.ndarray
    attribute_ids: np.ndarray | None = None
    attribute_scores: np.ndarray | None = None
    class_distribution: np.ndarray | TopKDistribution | None = None
    image_feature: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_image_id(self.image_id)
        for name in ("height", "width"):  # numpy integers become int, so that a decoded record equals the written one
            try:
                object.__setattr__(self, name, operator.index(getattr(self, name)))
            except TypeError:
                got = getattr(self, name)
                raise ValueError(f"record {self.image_id!r}: {name} must be an integer, got {got!r}") from None
        if self.height < 1 or self.width < 1 or self.height > 2**31 - 1 or self.width > 2**31 - 1:
            raise ValueError(f"record {self.image_id!r}: image size {self.height}x{self.width} is not positive")
        if not isinstance(self.features, np.ndarray):
            raise ValueError(f"record {self.image_id!r}: features must be a numpy array, got {type(self.features)}")
        if self.features.ndim != 2 or self.features.shape[1] < 1 or self.features.dtype not in FEATURE_DTYPES.values():
            raise ValueError(
                f"record {self.image_id!r}: features must be (K, D) in {'|'.join(FEATURE_DTYPES)}, "
                f"got {self.features.shape} {self.features.dtype}"
            )
        num_regions = self.features.shape[0]
        if num_regions > MAX_REGIONS:
            raise ValueError(f"record {self.image_id!r}: {num_regions} regions, at most {MAX_REGIONS} fit a record")
        self._check("boxes", (num_regions, 4), np.float32)
        self._check("class_ids", (num_regions,), np.uint16)
        self._check("class_scores", (num_regions,), np.float32)
        if (self.attribute_ids is None) != (self.attribute_scores is None):
            raise ValueError(f"record {self.image_id!r}: attribute_ids and attribute_scores come together")
        if self.attribute_ids is not None:
            self._check("attribute_ids", (num_regions,), np.uint16)
            self._check("attribute_scores", (num_regions,), np.float32)
        if isinstance(self.class_distribution, TopKDistribution):
            self._check_top_k(self.class_distribution, num_regions)
        elif self.class_distribution is not None:
            columns = self.class_distribution.shape[1] if self.class_distribution.ndim == 2 else -1
            self._check("class_distribution", (num_regions, max(columns, 2)), np.float16)
        if self.image_feature is not None:
            self._check("image_feature", (max(self.image_feature.size, 1),), self.features.dtype)
        self._check_finite("features", self.features)
        if num_regions and not bool((self.boxes[:, 2:] >= self.boxes[:, :2]).all()):
            raise ValueError(f"record {self.image_id!r}: a box has x2 < x1 or y2 < y1; boxes are x1 y1 x2 y2")

    @property
    def num_regions(self) -> int:
        return int(self.features.shape[0])

    @property
    def feature_dtype(self) -> str:
        """Name of the feature dtype: a key of `FEATURE_DTYPES`."""
        return self.features.dtype.name

    def with_box_numbers(self) -> RegionRecord:
        """The record with six numbers of its box behind each feature: (K, D + 6) float32, see `box_numbers`."""
        numbers = box_numbers(self.boxes, height=self.height, width=self.width)
        whole = None if self.image_feature is None else self.image_feature.astype(np.float32)
        features = np.concatenate([self.features.astype(np.float32), numbers], axis=1)
        return replace(self, features=features, image_feature=whole)

    def draw(
        self,
        photo: PhotoLike | None,
        *,
        classes: Sequence[str] | None = None,
        attributes: Sequence[str] | None = None,
        max_regions: int = MAX_DRAWN,
        scale: float = 1.0,
        exif_orientation: str | None = None,
    ) -> np.ndarray:
        """The photo with the regions on it: a box, and its class and score, for each of the best.

            cv2.imwrite("cat.png", record.draw("cat.jpg"))
            PIL.Image.fromarray(record.draw("cat.jpg")[:, :, ::-1])     # what a notebook shows

        Args:
            photo: path or content of an image file, an image of Pillow, or pixels as `cv2.imread` gives them (B, G, R);
                of the size of the record. None draws on a grey sheet.
            classes, attributes: names by id; a record has ids only. `FeatureStore.draw` knows the names of its store.
            max_regions: at most so many, those of the best scores; the best lie on top.
            scale: of the picture against the photo: 2 for a small one, 0.5 for a very large one.
            exif_orientation: "applied" or "ignored", as the detector turned the photo; a record does not know it,
                `FeatureStore.draw` does. None for what gives the record's size, "applied" if both do.
        Returns:
            (scale * height, scale * width, 3) uint8, channel order B, G, R.
        Raises:
            ValueError: when the photo is no image or has another size than the record.
            OSError: when it cannot be read.
        """
        image_hw = (self.height, self.width)
        return draw_regions(
            sheet(image_hw)
            if photo is None
            else photo_pixels(photo, image_hw, self.image_id, exif_orientation=exif_orientation),
            self.boxes,
            labels=region_labels(self, classes, attributes),
            class_ids=self.class_ids,
            scores=self.class_scores,
            max_regions=max_regions,
            scale=scale,
        )

    def __repr__(self) -> str:
        parts = [f"{self.num_regions} regions x {self.features.shape[1]} {self.feature_dtype}"]
        parts += [] if self.attribute_ids is None else ["attributes"]
        parts += [] if self.class_distribution is None else ["class distribution"]
        parts += [] if self.image_feature is None else ["image feature"]
        return f"RegionRecord({printable(repr(self.image_id))}, {self.width}x{self.height}, {', '.join(parts)})"

    def _repr_html_(self) -> str:
        note = "A record has ids only: draw(photo, classes=...) names them and draws on the photo."
        return regions_html(repr(self), self, note=note)

    def _repr_png_(self) -> bytes:
        return regions_png(self)

    def equals(self, other: RegionRecord) -> bool:
        """Whether every field is equal bit for bit (dtype and shape included)."""
        return record_digest(self) == record_digest(other)

    def _check(self, name: str, shape: tuple[int, ...], dtype: np.dtype | type) -> None:
        array = getattr(self, name)
        if not isinstance(array, np.ndarray):
            raise ValueError(f"record {self.image_id!r}: {name} must be a numpy array, got {type(array)}")
        if array.shape != shape or array.dtype != np.dtype(dtype):
            raise ValueError(
                f"record {self.image_id!r}: {name} must be {shape} {np.dtype(dtype).name}, "
                f"got {array.shape} {array.dtype}"
            )
        if array.dtype.kind == "f" or array.dtype == FEATURE_DTYPES["bfloat16"]:
            self._check_finite(name, array)

    def _check_top_k(self, top: TopKDistribution, num_regions: int) -> None:
        k = top.class_ids.shape[1] if top.class_ids.ndim == 2 else -1
        shapes = (top.class_ids.shape, top.probabilities.shape, top.rest.shape)
        dtypes = (top.class_ids.dtype, top.probabilities.dtype, top.rest.dtype)
        if shapes != ((num_regions, k), (num_regions, k), (num_regions,)) or not 1 <= k <= top.num_classes + 1:
            raise ValueError(f"record {self.image_id!r}: top-k distribution of shapes {shapes}, {num_regions} regions")
        if dtypes != (np.dtype(np.uint16), np.dtype(np.float16), np.dtype(np.float16)):
            raise ValueError(f"record {self.image_id!r}: top-k distribution must be uint16, float16, float16: {dtypes}")
        if num_regions and int(top.class_ids.max()) > top.num_classes:
            raise ValueError(f"record {self.image_id!r}: top-k distribution names a class beyond {top.num_classes}")
        self._check_finite("class_distribution", top.probabilities)
        self._check_finite("class_distribution", top.rest)

    def _check_finite(self, name: str, array: np.ndarray) -> None:
        if not _all_finite(array):
            raise ValueError(
                f"record {self.image_id!r}: {name} holds NaN or infinity in {array.dtype}; "
                f"broken weights, or values too large for this dtype (float32 and bfloat16 reach further)"
            )


def box_numbers(boxes: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """Numbers that VisualBERT's release puts behind the features of Flickr30k's regions (uclanlp/visualbert
    dataloaders/flickr_dataset.py): x1 / w, y1 / h, their sums with the next two, width / w, height / h.

    Args:
        boxes: (K, 4) float32, x1 y1 x2 y2 in pixels of an image of that size.
    Returns:
        (K, 6) float32.
    """
    size = np.array([width, height], np.float32)
    start, extent = boxes[:, :2] / size, (boxes[:, 2:] - boxes[:, :2]) / size
    return np.concatenate([start, start + extent, extent], axis=1)


def check_image_id(image_id: str) -> None:
    """Raises ValueError when `image_id` cannot be a key of a store."""
    if not isinstance(image_id, str):
        raise ValueError(f"image id {image_id!r:.80} must be a text, such as '{image_id!s:.80}'")
    try:
        length = len(image_id.encode("utf-8"))
    except UnicodeEncodeError:
        raise ValueError(f"image id {image_id!r} is not valid UTF-8; rename the file") from None
    if not 1 <= length <= MAX_IMAGE_ID_BYTES:
        shortened = image_id if length <= 80 else image_id[:60] + "..."
        raise ValueError(f"image id {shortened!r} has {length} bytes in UTF-8; ids have 1 to {MAX_IMAGE_ID_BYTES}")


# Dtype of floats -> its bits as signed and as unsigned integers, and those of both infinities.
_INTEGERS: dict[np.dtype, tuple[np.dtype, np.dtype, int, int]] = {
    FEATURE_DTYPES["float16"]: (np.dtype(np.int16), np.dtype(np.uint16), 0x7C00, 0xFC00),
    FEATURE_DTYPES["bfloat16"]: (np.dtype(np.int16), np.dtype(np.uint16), 0x7F80, 0xFF80),
    FEATURE_DTYPES["float32"]: (np.dtype(np.int32), np.dtype(np.uint32), 0x7F800000, 0xFF800000),
}


def _all_finite(array: np.ndarray) -> bool:
    # Exponent bits all set means NaN or infinity. Positive numbers are in the order of their bits as integers, and so
    # are negative ones without their sign: the largest of each decides. On integer views this is many times faster than
    # numpy's half-precision arithmetic, it works for bfloat16, and it makes no array.
    if not array.size:
        return True
    signed, unsigned, infinity, minus_infinity = _INTEGERS[array.dtype]
    return int(array.view(signed).max()) < infinity and int(array.view(unsigned).max()) < minus_infinity


DIGEST_BYTES = 32
_RECORD_DOMAIN = b"roibeam-record-1\0"


def record_digest(record: RegionRecord) -> bytes:
    """SHA-256 (32 bytes) over every field that is not None, in the order of `_canonical_fields`.

    Each field contributes: name, NUL, dtype name, NUL, number of axes u8, each axis u64, then the C-ordered
    little-endian bytes. The names are unique and the shapes fix the lengths, so no two different records give the same
    input.
    """
    state = hashlib.sha256(_RECORD_DOMAIN)
    for name, dtype, shape, data in _canonical_fields(record):
        state.update(f"{name}\0{dtype}\0".encode("ascii"))
        state.update(struct.pack(f"<B{len(shape)}Q", len(shape), *shape))
        state.update(data)
    return state.digest()


def content_digest(digests: Iterable[tuple[bytes, bytes]]) -> str:
    """SHA-256 (hex) over (length of the key u32, key, record digest) of records in ascending key order; ValueError when
    keys are not strictly ascending: the same image twice, or shards read in the wrong order."""
    state = hashlib.sha256()
    previous: bytes | None = None
    for key, digest in digests:
        assert len(digest) == DIGEST_BYTES
        if previous is not None and key <= previous:
            image_id = key.decode("utf-8", "replace")
            if key == previous:
                raise ValueError(f"image id {image_id!r} is there twice; ids are unique in a store: remove one shard")
            raise ValueError(f"image id {image_id!r} comes after {previous!r}: keys are not in ascending order")
        previous = key
        state.update(struct.pack("<I", len(key)) + key + digest)
    return state.hexdigest()


def merge_digests(sources: Iterable[Iterable[tuple[bytes, bytes]]]) -> Iterator[tuple[bytes, bytes]]:
    """(key, digest) of several shards as one stream in key order; holds one pair per shard.

    Args:
        sources: per shard, pairs in ascending key order, as `ShardReader.digests` yields them.
    Raises:
        ValueError: when two shards hold the same key, or a source is out of order.
    """
    previous: bytes | None = None
    for key, digest in heapq.merge(*sources, key=lambda pair: pair[0]):
        if previous is not None and key <= previous:
            what = "is in two shards" if key == previous else "is out of key order"
            raise ValueError(f"image id {key.decode('utf-8', 'replace')!r} {what}; remove or re-extract one of them")
        previous = key
        yield key, digest


def _canonical_fields(record: RegionRecord) -> Iterator[tuple[str, str, tuple[int, ...], bytes | memoryview]]:
    image_id = record.image_id.encode("utf-8")
    yield "image_id", "utf8", (len(image_id),), image_id
    yield _integer("height", record.height)
    yield _integer("width", record.width)
    yield _array("boxes", record.boxes)
    yield _array("features", record.features)
    yield _array("class_ids", record.class_ids)
    yield _array("class_scores", record.class_scores)
    if record.attribute_ids is not None and record.attribute_scores is not None:
        yield _array("attribute_ids", record.attribute_ids)
        yield _array("attribute_scores", record.attribute_scores)
    distribution = record.class_distribution
    if isinstance(distribution, TopKDistribution):
        yield _array("top_k.class_ids", distribution.class_ids)
        yield _array("top_k.probabilities", distribution.probabilities)
        yield _array("top_k.rest", distribution.rest)
        yield _integer("top_k.num_classes", distribution.num_classes)
    elif distribution is not None:
        yield _array("class_distribution", distribution)
    if record.image_feature is not None:
        yield _array("image_feature", record.image_feature)


def _integer(name: str, value: int) -> tuple[str, str, tuple[int, ...], bytes]:
    return name, "int64", (), struct.pack("<q", value)


def _array(name: str, array: np.ndarray) -> tuple[str, str, tuple[int, ...], memoryview]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return name, array.dtype.name, array.shape, data
