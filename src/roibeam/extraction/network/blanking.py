"""Regions hidden in the network's input: their pixels become the mean colour, which is zero after normalising."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from roibeam.extraction.network.conventions import Conventions


def blank_regions(pixels: Tensor, boxes: Tensor) -> Tensor:
    """A copy of one network input with the given boxes blanked.

    jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py: rows int(y1) to int(y2) and columns int(x1) to
    int(x2), last ones included. Other regions that overlap a blanked box lose the same pixels.

    Args:
        pixels: (3, H, W) or (1, 3, H, W) float32, mean removed.
        boxes: (n, 4), x1 y1 x2 y2 in pixels of the input; what lies outside is left out.
    """
    blanked = pixels.clone()
    for box in boxes.tolist():
        blanked[..., *_pixels_of(box)] = 0
    return blanked


def blank_photo(photo: np.ndarray, boxes: np.ndarray, conventions: Conventions) -> np.ndarray:
    """A copy of a photo with the given boxes in the mean colour, rounded to whole levels.

    Before the resize, so that nothing of what is in a box gets mixed into the pixels beside it. The box itself is not
    exactly zero then: the network's input is blanked as well.

    Args:
        photo: (height, width, 3) uint8, channel order B, G, R.
        boxes: (n, 4), x1 y1 x2 y2 in its pixels; rows and columns as in `blank_regions`.
        conventions: give the mean.
    """
    mean = np.rint(conventions.pixel_mean).astype(np.uint8)
    blanked = photo.copy()
    for box in boxes.tolist():
        blanked[_pixels_of(box)] = mean[::-1] if conventions.channel_order == "rgb" else mean
    return blanked


def _pixels_of(box: list[float]) -> tuple[slice, slice]:
    """Rows and columns."""
    x1, y1, x2, y2 = (max(int(edge), -1) for edge in box)
    return slice(max(y1, 0), y2 + 1), slice(max(x1, 0), x2 + 1)
