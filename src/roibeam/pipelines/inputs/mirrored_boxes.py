"""Where boxes are in the mirror image of their photo. No torch."""

from __future__ import annotations

import numpy as np


def mirrored_boxes(boxes: np.ndarray, width: float, *, pixel: float = 1.0) -> np.ndarray:
    """(..., 4) boxes x1 y1 x2 y2 of the photo mirrored left to right: x becomes width - pixel - x.

    Args:
        boxes: (..., 4), pixels of the photo.
        width: of the photo, in pixels.
        pixel: width of a pixel of the image that is mirrored, in those of the photo. VL-BERT mirrors the resized photo.
    """
    mirrored = np.array(boxes)
    mirrored[..., 0] = width - pixel - boxes[..., 2]
    mirrored[..., 2] = width - pixel - boxes[..., 0]
    return mirrored
