"""What changes with a photo that is mirrored left to right: its boxes, and words of left and right. No torch."""

from __future__ import annotations

import re

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


_SIDES = re.compile(r"\b(left|right)(most|wards?|hand)?\b", re.IGNORECASE)
_OTHER = {"left": "right", "right": "left"}


def swap_left_right(caption: str) -> str:
    """The caption with "left" for "right" and the other way round: whole words, "leftmost", "rightward".

    Words alone are looked at, so "the bus left" becomes "the bus right". VL-BERT's release swaps them for RefCOCO+ and
    VQA, and not in pre-training, where it mirrors photos too.
    """
    return _SIDES.sub(lambda found: _like(found[1], _OTHER[found[1].lower()]) + (found[2] or ""), caption)


def _like(pattern: str, word: str) -> str:
    """The word in the case of the pattern: left, Left or LEFT."""
    if pattern.isupper():
        return word.upper()
    return word.capitalize() if pattern[0].isupper() else word
