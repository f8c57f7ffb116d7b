"""A photo, however it is handed over, as the pixels that a record's boxes mean."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from roibeam.features.printable import printable

if TYPE_CHECKING:
    from PIL.Image import Image

_Photo = str | os.PathLike[str] | bytes | np.ndarray
PhotoLike: TypeAlias = "_Photo | Image"


def photo_pixels(
    photo: PhotoLike, image_hw: tuple[int, int], image_id: str = "", *, exif_orientation: str | None = None
) -> np.ndarray:
    """The photo in the size of its record.

    Args:
        photo: path or content of an image file, an image of Pillow, which is not turned, or pixels: (height, width, 3)
            uint8 in the order B, G, R, as `cv2.imread` gives them, or (height, width) uint8 for a grey photo.
        image_hw: height and width of the record.
        image_id: of the record, for messages.
        exif_orientation: "applied" or "ignored", as the record's photo was turned; None for what gives this size,
            "applied" if both do.
    Returns:
        (height, width, 3) uint8, channel order B, G, R.
    Raises:
        ValueError: for a photo of another size, an array of another kind, or a file that is no image.
        OSError: for a file that cannot be read.
    """
    photo = _without_pillow(photo)
    if isinstance(photo, np.ndarray):
        found, name = [_three_channels(photo)], "the photo"
    else:
        name = "the photo" if isinstance(photo, bytes) else printable(os.fspath(photo), 200)
        data = photo if isinstance(photo, bytes) else Path(photo).read_bytes()
        orientations = ("applied", "ignored") if exif_orientation is None else (exif_orientation,)
        found = [_decoded(data, name, orientation) for orientation in orientations]
    for pixels in found:
        if pixels.shape[:2] == image_hw:
            return pixels
    height, width = found[0].shape[:2]
    whose = f"the record {image_id!r}" if image_id else "the record"
    raise ValueError(
        f"{name} has {width} x {height} pixels, {whose} is of a photo of {image_hw[1]} x {image_hw[0]}; hand over the "
        f"photo in the size that it was extracted in"
    )


def _without_pillow(photo: PhotoLike) -> _Photo:
    """An image of Pillow as pixels. Whoever hands over one has imported Pillow."""
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(photo, pillow.Image):
        return np.asarray(photo.convert("RGB"))[:, :, ::-1]
    return cast("_Photo", photo)


def _three_channels(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.uint8 and pixels.size and pixels.ndim == 2:
        return np.repeat(pixels[:, :, None], 3, axis=2)
    if pixels.dtype == np.uint8 and pixels.size and pixels.ndim == 3 and pixels.shape[2] in (1, 3):
        return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    raise ValueError(
        f"a photo as an array is (height, width, 3) uint8 in the order B, G, R, or (height, width) uint8; got "
        f"{pixels.shape} {pixels.dtype}"
    )


def _decoded(data: bytes, name: str, orientation: str) -> np.ndarray:
    import cv2

    flags = cv2.IMREAD_COLOR | (cv2.IMREAD_IGNORE_ORIENTATION if orientation == "ignored" else 0)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
    except cv2.error as error:
        raise ValueError(f"{name} cannot be decoded: {str(error).strip().splitlines()[-1]}") from None
    if pixels is None:
        raise ValueError(f"{name} is no image that OpenCV reads ({len(data):,} bytes)")
    return np.asarray(pixels)
