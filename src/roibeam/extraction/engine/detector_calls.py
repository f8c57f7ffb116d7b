"""Calls of a detector: photos loaded from their files and grouped, memory that runs out, one caller at a time.

A photo that cannot be loaded, or that fails alone, becomes a `Failure` with its reason.
"""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.extraction.photos.image_ref import Failure, ImageRef, PhotoReadError, box_problem
from roibeam.extraction.regions import Regions

# Too many open files, no memory, a network filesystem that went away: no fault of the image, so the run stops.
_NOT_ABOUT_ONE_FILE = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT)
)


@dataclass(frozen=True, eq=False)
class LoadedPhoto:
    """A decoded photo.

    Attributes:
        image_hw: height and width of the photo, pixels.
        pixels: (height, width, 3) uint8, channel order B, G, R; None if only `prepared` is needed.
        prepared: input of the detector: the pixels, or the result of its own `prepare`.
        boxes: (K, 4) float32, given boxes in photo pixels, checked against the photo; None for proposals.
        batch_key: photos of equal keys may go to the detector together.
    """

    image_hw: tuple[int, int]
    pixels: np.ndarray | None
    prepared: Any
    boxes: np.ndarray | None
    batch_key: Hashable


def exif_orientation(detector: RegionDetector) -> str:
    """EXIF rule of the detector's conventions, "applied" or "ignored"; "applied" without conventions."""
    conventions = getattr(detector, "conventions", None)
    return conventions.exif_orientation if isinstance(conventions, Conventions) else "applied"


class PhotoLoad:
    """Reads, decodes and prepares; called by several threads.

    Args:
        detector: its conventions set the treatment of the EXIF orientation; of a `BatchingDetector`, its
            `batch_key` and its `prepare`, which runs here, beside the detector's own work.
        read_bytes: location -> bytes of the file; raises OSError for unreadable ones (`PhotoReadError` for a reason
            of its own).
        max_pixels: larger photos become failures before they are decoded.
        keep_pixels: whether the pixels are needed beside the result of `prepare`.
    """

    def __init__(
        self, detector: RegionDetector, *, read_bytes: Callable[[str], bytes], max_pixels: int, keep_pixels: bool
    ) -> None:
        self._read_bytes = read_bytes
        self._decode = functools.partial(
            decode_image, max_pixels=max_pixels, exif_orientation=exif_orientation(detector)
        )
        self._prepare: Callable[[np.ndarray], Any] | None = getattr(detector, "prepare", None)
        self._batch_key: Callable[[tuple[int, int]], Hashable] | None = getattr(detector, "batch_key", None)
        self._keep_pixels = keep_pixels or self._prepare is None

    def __call__(self, image: ImageRef, begin_stage: Callable[[str], None]) -> LoadedPhoto | Failure:
        """Calls `begin_stage` with "read", then with "decode", as they start.

        Raises errors that do not concern this file: too many open files, no memory, a lost file system, a bug.
        """
        begin_stage("read")
        try:
            data = self._read_bytes(image.location)
        except FileNotFoundError:
            return Failure(image.image_id, image.location, "read", "not found", "no such file")
        except PhotoReadError as error:
            return Failure(image.image_id, image.location, "read", error.reason, str(error))
        except OSError as error:
            if error.errno in _NOT_ABOUT_ONE_FILE:
                raise
            return Failure(image.image_id, image.location, "read", "unreadable", error.strerror or str(error))
        begin_stage("decode")
        try:
            pixels = self._decode(data)
        except DecodeError as error:
            return Failure(image.image_id, image.location, "decode", error.reason, str(error))
        except MemoryError as error:  # as ENOMEM above: the photo may be good
            raise MemoryError(f"{image.location}: {error}") from None
        image_hw = (pixels.shape[0], pixels.shape[1])
        boxes = None
        if image.boxes is not None:
            boxes = np.array(image.boxes, np.float32).reshape(-1, 4)
            problem = box_problem(boxes, image_hw, image.boxes_hw)
            if problem is not None:
                return Failure(image.image_id, image.location, "detect", *problem)
        prepared: Any = pixels
        if self._prepare is not None:
            try:
                prepared = self._prepare(pixels)
            except (RuntimeError, ValueError) as error:
                return Failure(image.image_id, image.location, "detect", "detector failed", error_line(error))
        key = image_hw if self._batch_key is None else self._batch_key(image_hw)
        return LoadedPhoto(image_hw, pixels if self._keep_pixels else None, prepared, boxes, key)


def error_line(error: BaseException) -> str:
    """An error as one line: its type and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


log = logging.getLogger(__name__)
# CUDA's allocator has an error of its own; these are the words of the CPU's, and of libraries that allocate themselves.
_NO_MEMORY = "out of device memory"
_TOO_MANY = "the detector ran out of memory on %d photos at once; going on with at most %d"
_MEMORY_WORDS = ("can't allocate memory", "out of memory", "_STATUS_ALLOC_FAILED")


class BatchingDetector(RegionDetector, Protocol):
    """Optional members of a detector.

    Attributes:
        preferred_batch: photos in a call, at most; 1 where it is missing.
    """

    @property
    def preferred_batch(self) -> int: ...

    def batch_key(self, image_hw: tuple[int, int], /) -> Hashable:
        """Key of a photo: photos of equal keys go together, such as those that are resized to one size. By default the
        size of the photo itself."""
        ...

    def prepare(self, pixels: np.ndarray, /) -> Any:
        """(height, width, 3) uint8, channel order B, G, R -> input of the detector in their place. Called in the
        threads that decode, so that work without a device, such as resizing, runs while the device computes. Raises
        ValueError or RuntimeError for a photo that it cannot take."""
        ...


@dataclass(frozen=True, eq=False)
class Detected:
    """The detector's result for one photo, and its share of the seconds of the call."""

    regions: Regions
    image_feature: np.ndarray | None
    seconds: float


@dataclass(frozen=True)
class RunningCall:
    """A call that has not returned; `number` counts the calls of a `DetectorCalls`."""

    number: int
    image_ids: tuple[str, ...]


class DetectorCalls:
    """One detector, for all threads of a process that share it: one call at a time, so that memory holds one batch.

    Attributes:
        running: the call that is being computed, or None.
    """

    def __init__(self, detector: RegionDetector) -> None:
        self.detector = detector
        self.running: RunningCall | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._most = max(1, int(getattr(detector, "preferred_batch", 1)))  # photos a call, fewer when memory ran out
        self._warned = False

    @property
    def batch(self) -> int:
        """Photos in a call, at most."""
        return self._most

    def detect(
        self,
        images: Sequence[ImageRef],
        photos: Sequence[LoadedPhoto],
        *,
        whole_image: bool,
        global_feature: Callable[[np.ndarray], np.ndarray] | None,
    ) -> list[Detected | Failure]:
        """One result for each photo.

        If memory runs out, the photos are split, and later calls get no more than fitted, unless one of the photos
        needs too much even alone: then it fails. If the detector fails on several photos at once, each is tried alone,
        so that one bad photo does not fail the others.

        Raises:
            Exception: an error that is not about the photos: a failed device, a bug.
        """

        def call(group: Sequence[int]) -> list[Detected]:
            self.running = RunningCall(next(self._numbers), tuple(images[at].image_id for at in group))
            start = time.monotonic()
            try:
                found = self.detector(
                    [photos[at].prepared for at in group],
                    boxes=[photos[at].boxes for at in group],
                    whole_image=whole_image,
                )
                if len(found) != len(group):
                    raise AssertionError(f"the detector gave {len(found)} results for {len(group)} photos")
                features = [
                    _image_feature(photos[at], regions, global_feature)
                    for at, regions in zip(group, found, strict=True)
                ]
                seconds = (time.monotonic() - start) / len(group)
                return [Detected(*one, seconds) for one in zip(found, features, strict=True)]
            finally:
                self.running = None

        with self._lock:
            results: list[Detected | Failure] = []
            while len(results) < len(photos):
                group = range(len(results), min(len(results) + self._most, len(photos)))
                fitted: list[int] = []
                found = self._detect_group(images, group, call, fitted)
                needs_too_much = any(isinstance(one, Failure) and one.reason == _NO_MEMORY for one in found)
                if fitted and max(fitted) < len(group) and not needs_too_much:
                    self._most = min(self._most, max(fitted))
                    if not self._warned:
                        log.warning(_TOO_MANY, len(group), self._most)
                    self._warned = True
                results += found
            return results

    def _detect_group(
        self, images: Sequence[ImageRef], group: range, call: Callable[[range], list[Detected]], fitted: list[int]
    ) -> Sequence[Detected | Failure]:
        """One result for each photo of the group; if memory ran out, `fitted` gets the sizes that fitted."""
        try:
            return call(group)
        except Exception as error:
            reason, detail = _about_photos(error)
        # Here, not above: while an error is handled, its traceback keeps all tensors of the failed call alive.
        if reason == _NO_MEMORY:
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # free pieces may be enough in one block
            if len(group) > 1:
                results: list[Detected | Failure] = []
                middle = group.start + len(group) // 2
                for part in (range(group.start, middle), range(middle, group.stop)):
                    smaller: list[int] = []
                    results += self._detect_group(images, part, call, smaller)
                    fitted += smaller or [len(part)]
                return results
            try:  # once more, in the memory that was given back
                return call(group)
            except Exception as error:
                reason, detail = _about_photos(error)
        elif len(group) > 1:
            return [result for at in group for result in self._detect_group(images, range(at, at + 1), call, [])]
        image = images[group.start]
        return [Failure(image.image_id, image.location, "detect", reason, detail)]


def _image_feature(
    photo: LoadedPhoto, regions: Regions, global_feature: Callable[[np.ndarray], np.ndarray] | None
) -> np.ndarray | None:
    if global_feature is None:
        return regions.image_feature
    assert photo.pixels is not None, "they are kept if a global feature is requested"
    return global_feature(photo.pixels)


def _about_photos(error: Exception) -> tuple[str, str]:
    """Reason and detail of a failure that may be the photos' fault; raises `error` if it cannot be."""
    is_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if is_memory or (isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_WORDS)):
        return _NO_MEMORY, (str(error).strip().splitlines() or ["no memory"])[0]
    if isinstance(error, RuntimeError | ValueError) and not isinstance(error, torch.AcceleratorError):
        return "detector failed", error_line(error)
    raise error  # a failed device would fail on all later photos too
