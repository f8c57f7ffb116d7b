"""Six numbers of its box behind each feature, as VisualBERT's release feeds the regions of Flickr30k."""

from __future__ import annotations

import numpy as np
import torch

BOX_NUMBERS = 6  # left, top, right, bottom, width, height, as shares of the image


def with_box_numbers(features: torch.Tensor, boxes: np.ndarray, width: int, height: int) -> torch.Tensor:
    """(R, D + 6) float32 of (R, D) features and their boxes (R, 4) in pixels of an image of that size.

    x1 / w, y1 / h, their sums with the next two, width / w, height / h.
    """
    size = np.array([width, height], np.float32)
    start, extent = boxes[:, :2] / size, (boxes[:, 2:] - boxes[:, :2]) / size
    numbers = np.concatenate([start, start + extent, extent], axis=1)
    return torch.cat([features.float(), torch.from_numpy(numbers)], dim=1)
