"""Loading of one photo: from its file to the detector's input, or to a failure with its reason."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.extraction.photos.image_ref import Failure, ImageRef, PhotoReadError, box_problem

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
        """Raises errors that do not concern this file: too many open files, no memory, a lost file system, a bug.

        Args:
            begin_stage: called with "read", then with "decode", as they start.
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
