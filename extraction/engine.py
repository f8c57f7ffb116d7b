"""The engine: images in, records or failures out, in the order of the images. Knows nothing of Beam, shards or stores.

    for outcome in extract(images, detector):
        if isinstance(outcome, Failure): ...
        else: ...                                 # a RegionRecord

Decoding runs in a few threads ahead of the detector; at most two images for each thread wait, so memory does not grow
with the number of images.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from extraction.conventions import Conventions
from extraction.decode import DEFAULT_MAX_PIXELS, LARGEST_MAX_PIXELS, DecodeError, decode_image
from extraction.detector import RegionDetector
from extraction.global_feature import GLOBAL_NETWORKS, build_global_feature
from extraction.images import Failure, ImageRef
from extraction.regions import Regions
from features.record import FEATURE_DTYPES, RegionRecord, TopKDistribution

MAX_FILE_BYTES = 512 * 2**20
# Too many open files, no memory, a network filesystem that went away: no fault of the image, so the run stops.
_NOT_ABOUT_ONE_FILE = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT)
)
_TORCH_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class ExtractOptions:
    """How images become records.

    Attributes:
        feature_dtype: "float16" (default), "bfloat16" or "float32".
        distribution: class probabilities to keep for each region: "full" (default; all classes and background in
            float16, what VL-BERT's and ViLBERT's losses use), "top-<k>" (the k best and the rest mass) or "none".
        max_pixels: larger images become failures, before they are decoded.
        decode_threads: threads that read and decode ahead of the detector; twice as many images may wait for it.
        image_feature: one more feature for the whole photo: "none" (default), "region" (the detector's own, of a box
            around the photo) or "<network>=<weights>" (see `extraction.global_feature`).
    """

    feature_dtype: str = "float16"
    distribution: str = "full"
    max_pixels: int = DEFAULT_MAX_PIXELS
    decode_threads: int = 2
    image_feature: str = "none"

    def __post_init__(self) -> None:
        if self.feature_dtype not in FEATURE_DTYPES:
            raise ValueError(f"feature dtype {self.feature_dtype!r}: choose one of {', '.join(FEATURE_DTYPES)}")
        if self.distribution not in ("full", "none") and self.top_k is None:
            raise ValueError(f"distribution {self.distribution!r}: choose full, none or top-<k>, such as top-20")
        if self.max_pixels > LARGEST_MAX_PIXELS:
            raise ValueError(f"max_pixels is {self.max_pixels}; at most {LARGEST_MAX_PIXELS} can be decoded")
        for name in ("max_pixels", "decode_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.image_feature not in ("none", "region") and self.global_network is None:
            raise ValueError(
                f"image feature {self.image_feature!r}: choose none, region or <network>=<weights> with a network of "
                f"{', '.join(GLOBAL_NETWORKS)}"
            )

    @property
    def top_k(self) -> int | None:
        """k of "top-<k>", else None."""
        prefix, _, number = self.distribution.partition("-")
        return int(number) if prefix == "top" and number.isdecimal() and int(number) > 0 else None

    @property
    def global_network(self) -> str | None:
        """The spec for `build_global_feature`, if `image_feature` is one."""
        network, _, weights = self.image_feature.partition("=")
        return self.image_feature if network in GLOBAL_NETWORKS and weights else None


def read_local_file(location: str) -> bytes:
    """Reads one local file, refusing what no image of the default pixel limit can be (over 512 MiB)."""
    # Without blocking: a pipe or device named .jpg would otherwise be waited for until somebody writes into it.
    with open(os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES} bytes")
    return data


def extract(
    images: Iterable[ImageRef],
    detector: RegionDetector,
    *,
    options: ExtractOptions | None = None,
    read_bytes: Callable[[str], bytes] = read_local_file,
    global_feature: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Iterator[RegionRecord | Failure]:
    """One outcome for each image, in the order given.

    Args:
        images: consumed lazily, a few ahead of what has been yielded. One with boxes gives a record of exactly those
            regions in their order, clipped to the photo; one without gives what the detector proposes and selects.
        detector: called with one decoded image at a time; its `conventions`, if it has any, say what becomes of the
            EXIF orientation, which is otherwise applied.
        options: None means the defaults of `ExtractOptions`.
        read_bytes: location -> bytes of the file; raises OSError for what cannot be read.
        global_feature: the network that `options.image_feature` names, for callers that keep it; None builds it here.
    Yields:
        RegionRecord, or Failure for an image that cannot be read, decoded, detected on or recorded. Errors that are not
        about one image (too many open files, a failed device, a bug) are raised.
    """
    options = options or ExtractOptions()
    if options.global_network is not None and global_feature is None:
        global_feature = build_global_feature(options.global_network, device=getattr(detector, "device", "cpu"))
    decode = functools.partial(decode_image, max_pixels=options.max_pixels, exif_orientation=exif_orientation(detector))
    waiting: deque[tuple[ImageRef, Future[np.ndarray | Failure]]] = deque()
    with ThreadPoolExecutor(options.decode_threads, thread_name_prefix="decode") as pool:
        try:
            for image in images:
                waiting.append((image, pool.submit(_load, image, read_bytes, decode)))
                if len(waiting) >= 2 * options.decode_threads:
                    yield _finish(*waiting.popleft(), detector, options, global_feature)
            while waiting:
                yield _finish(*waiting.popleft(), detector, options, global_feature)
        finally:
            for _, future in waiting:
                future.cancel()


def exif_orientation(detector: RegionDetector) -> str:
    """ "applied" or "ignored": what the detector's conventions say, "applied" where it has none."""
    conventions = getattr(detector, "conventions", None)
    return conventions.exif_orientation if isinstance(conventions, Conventions) else "applied"


def _load(
    image: ImageRef, read_bytes: Callable[[str], bytes], decode: Callable[[bytes], np.ndarray]
) -> np.ndarray | Failure:
    try:
        data = read_bytes(image.location)
    except FileNotFoundError:
        return Failure(image.image_id, image.location, "read", "not found", "no such file")
    except OSError as error:
        if error.errno in _NOT_ABOUT_ONE_FILE:
            raise
        return Failure(image.image_id, image.location, "read", "unreadable", error.strerror or str(error))
    try:
        return decode(data)
    except DecodeError as error:
        return Failure(image.image_id, image.location, "decode", error.reason, str(error))


def _finish(
    image: ImageRef,
    loaded: Future[np.ndarray | Failure],
    detector: RegionDetector,
    options: ExtractOptions,
    global_feature: Callable[[np.ndarray], np.ndarray] | None,
) -> RegionRecord | Failure:
    pixels = loaded.result()
    if isinstance(pixels, Failure):
        return pixels
    height, width = pixels.shape[:2]
    boxes = None
    if image.boxes is not None:
        boxes = np.array(image.boxes, np.float32).reshape(-1, 4)
        problem = box_problem(boxes, (height, width), image.boxes_hw)
        if problem is not None:
            return Failure(image.image_id, image.location, "detect", *problem)
    try:
        (regions,) = detector([pixels], boxes=[boxes], whole_image=options.image_feature == "region")
        image_feature = regions.image_feature if global_feature is None else global_feature(pixels)
    except torch.OutOfMemoryError as error:
        return Failure(image.image_id, image.location, "detect", "out of device memory", str(error).splitlines()[0])
    except (RuntimeError, ValueError) as error:
        if isinstance(error, torch.AcceleratorError):
            raise  # the device has failed, not the image: all later ones would fail too
        detail = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        return Failure(image.image_id, image.location, "detect", "detector failed", detail)
    if not np.isfinite(regions.features).all():
        return Failure(
            image.image_id, image.location, "record", "non-finite feature", "the detector gave NaN or infinity"
        )
    try:
        return to_record(image.image_id, height, width, regions, options, image_feature)
    except ValueError as error:
        return Failure(image.image_id, image.location, "record", "invalid record", str(error))


def box_problem(
    boxes: np.ndarray, image_hw: tuple[int, int], boxes_hw: tuple[int, int] | None
) -> tuple[str, str] | None:
    """Why these boxes are not regions of this photo: a word for counting and a line for a person, or None.

    Annotations reach past the edge by a rounding error, and published codes clip them without a word. Here a box may do
    so by one pixel and a hundredth of the side; beyond that the photo is another one, or has been resized, and features
    of clipped boxes would be wrong without anybody noticing.

    Args:
        boxes: (K, 4) float32, x1 y1 x2 y2.
        image_hw: of the decoded photo, pixels.
        boxes_hw: of the image that the boxes were drawn on, if known.
    """
    height, width = image_hw
    slack = np.array([height, width]) * 0.01 + 1
    if boxes_hw is not None and bool((np.abs(np.subtract(boxes_hw, image_hw)) > slack).any()):
        drawn_on, found = f"{boxes_hw[1]}x{boxes_hw[0]}", f"{width}x{height}"
        return "boxes of another image size", (
            f"the boxes are of an image of {drawn_on} pixels (width x height), this one has {found}: "
            f"another photo, resized, or turned by its EXIF tag"
        )
    # Written so that NaN fails every test.
    is_box = np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] >= boxes[:, :2]).all(axis=1)
    limit = np.array([width, height]) + slack[::-1]
    is_inside = (boxes >= np.tile(-slack[::-1], 2)).all(axis=1) & (boxes <= np.tile(limit, 2)).all(axis=1)
    for is_good, reason, what in (
        (is_box, "not a box", "expected finite x1 y1 x2 y2 with x2 >= x1 and y2 >= y1; x, y, width, height perhaps?"),
        (is_inside, "box outside the photo", f"the photo has {width}x{height} pixels; is it another or a resized one?"),
    ):
        if not is_good.all():
            first = int(np.argmin(is_good))
            numbers = " ".join(f"{edge:g}" for edge in boxes[first].tolist())
            return reason, f"box {first} of {len(boxes)} (from 0) is {numbers}; {what}"
    return None


def to_record(
    image_id: str,
    height: int,
    width: int,
    regions: Regions,
    options: ExtractOptions,
    image_feature: np.ndarray | None = None,
) -> RegionRecord:
    """Regions of one image of height x width pixels as the record that is stored, in the dtypes of `options`.

    Raises:
        ValueError: if the regions break a rule of RegionRecord; a feature too large for float16 is one.
    """
    has_attributes = regions.attribute_ids is not None and regions.attribute_scores is not None
    return RegionRecord(
        image_id=image_id,
        height=height,
        width=width,
        boxes=np.ascontiguousarray(regions.boxes, dtype=np.float32),
        features=_cast(regions.features, options.feature_dtype),
        class_ids=regions.class_ids.astype(np.uint16),
        class_scores=regions.class_scores.astype(np.float32),
        attribute_ids=np.asarray(regions.attribute_ids).astype(np.uint16) if has_attributes else None,
        attribute_scores=np.asarray(regions.attribute_scores).astype(np.float32) if has_attributes else None,
        class_distribution=_distribution(regions.class_probabilities, options),
        image_feature=None if image_feature is None else _cast(image_feature, options.feature_dtype),
    )


def _cast(features: np.ndarray, dtype: str) -> np.ndarray:
    # torch casts about a hundred times faster than numpy's half-precision loop.
    cast = torch.from_numpy(np.ascontiguousarray(features)).to(_TORCH_DTYPES[dtype])
    if dtype == "bfloat16":
        return cast.view(torch.uint16).numpy().view(FEATURE_DTYPES["bfloat16"])
    return cast.numpy()


def _distribution(probabilities: np.ndarray, options: ExtractOptions) -> np.ndarray | TopKDistribution | None:
    """(K, C + 1) float32, background last -> what the record keeps of it."""
    if options.distribution == "none":
        return None
    if options.top_k is None:
        return _cast(probabilities, "float16")
    width = probabilities.shape[1]
    if options.top_k > width:
        raise ValueError(f"distribution {options.distribution!r} asks for more than the {width} classes there are")
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, : options.top_k]
    best = np.take_along_axis(probabilities, order, axis=1)
    rest = np.clip(1.0 - best.sum(axis=1, dtype=np.float64), 0.0, 1.0)
    return TopKDistribution(order.astype(np.uint16), _cast(best, "float16"), rest.astype(np.float16), width - 1)
