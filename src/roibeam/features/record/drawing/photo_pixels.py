"""A photo, however it is handed over, as the pixels that a record's boxes mean."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from roibeam.features.printable import printable

PhotoLike = str | os.PathLike[str] | bytes | np.ndarray


def photo_pixels(photo: PhotoLike, image_hw: tuple[int, int], image_id: str = "") -> np.ndarray:
    """The photo in the size of its record.

    Args:
        photo: path or content of an image file, or pixels: (height, width, 3) uint8 in the order B, G, R, as
            `cv2.imread` gives them, or (height, width) uint8 for a grey photo.
        image_hw: height and width of the record. A file that says it is to be turned (EXIF) is turned or not, whichever
            gives this size, turned first.
        image_id: of the record, for messages.
    Returns:
        (height, width, 3) uint8, channel order B, G, R.
    Raises:
        ValueError: for a photo of another size, an array of another kind, or a file that is no image.
        OSError: for a file that cannot be read.
    """
    if isinstance(photo, np.ndarray):
        found, name = [_three_channels(photo)], "the photo"
    else:
        name = "the photo" if isinstance(photo, bytes) else printable(os.fspath(photo), 200)
        found = _decoded(photo if isinstance(photo, bytes) else Path(photo).read_bytes(), name)
    for pixels in found:
        if pixels.shape[:2] == image_hw:
            return pixels
    height, width = found[0].shape[:2]
    whose = f"the record {image_id!r}" if image_id else "the record"
    raise ValueError(
        f"{name} has {width} x {height} pixels, {whose} is of a photo of {image_hw[1]} x {image_hw[0]}; hand over the "
        f"photo in the size that it was extracted in"
    )


def _three_channels(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.uint8 and pixels.size and pixels.ndim == 2:
        return np.repeat(pixels[:, :, None], 3, axis=2)
    if pixels.dtype == np.uint8 and pixels.size and pixels.ndim == 3 and pixels.shape[2] in (1, 3):
        return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    raise ValueError(
        f"a photo as an array is (height, width, 3) uint8 in the order B, G, R, or (height, width) uint8; got "
        f"{pixels.shape} {pixels.dtype}"
    )


def _decoded(data: bytes, name: str) -> list[np.ndarray]:
    """Turned as its EXIF says, and as it is stored."""
    import cv2

    content = np.frombuffer(data, np.uint8)
    found = []
    for flags in (cv2.IMREAD_COLOR, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION):
        try:
            pixels = cv2.imdecode(content, flags) if len(content) else None
        except cv2.error as error:
            raise ValueError(f"{name} cannot be decoded: {str(error).strip().splitlines()[-1]}") from None
        if pixels is None:
            raise ValueError(f"{name} is no image that OpenCV reads ({len(data):,} bytes)")
        found.append(np.asarray(pixels))
    return found
