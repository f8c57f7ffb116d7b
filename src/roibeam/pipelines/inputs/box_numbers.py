"""Six numbers of its box behind each feature, as VisualBERT's release feeds the regions of Flickr30k."""

from __future__ import annotations

import numpy as np
import torch

from roibeam.features.record.region_record import box_numbers


def with_box_numbers(features: torch.Tensor, boxes: np.ndarray, width: int, height: int) -> torch.Tensor:
    """(R, D + 6) float32 of (R, D) features and their boxes (R, 4) in pixels of an image of that size."""
    numbers = box_numbers(boxes, height=height, width=width)
    return torch.cat([features.float(), torch.from_numpy(numbers)], dim=1)
