"""Referring expressions: a box hits when it overlaps the box of the object that is meant; accuracy over sentences.

Each public code has its own overlap and threshold. `BOX_RULES` has them by name; "refer" is that of the data set's
authors (lichengunc/refer pyEvalDemo.ipynb), which MAttNet shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

HALF = 0.5
Box = Sequence[float]  # x, y, width, height in pixels


def pixel_iou(first: Box, second: Box) -> float:
    """IoU of boxes whose last pixel is x + width - 1. Boxes that share one row or column of pixels have 0.

    Source: lichengunc/refer, lichengunc/MAttNet and ChenRocks/UNITER, alike.

    Raises:
        ValueError: for two boxes without area.
    """
    (x1, y1, w1, h1), (x2, y2, w2, h2) = first, second
    left, top = max(x1, x2), max(y1, y2)
    right, bottom = min(x1 + w1 - 1, x2 + w2 - 1), min(y1 + h1 - 1, y2 + h2 - 1)
    shared = (right - left + 1) * (bottom - top + 1) if left < right and top < bottom else 0
    union = w1 * h1 + w2 * h2 - shared
    if union == 0:
        raise ValueError("two boxes without area have no overlap that can be measured")
    return float(shared / union)


def corner_iou(first: Box, second: Box) -> float:
    """IoU of boxes whose last pixel is x + width, in float64: a little too high, and over 0 for boxes that touch.

    Source: jackroos/VL-BERT, evaluation.
    """
    return _inclusive_iou(first, second, np.float64)


def corner_iou_float32(first: Box, second: Box) -> float:
    """As `corner_iou`, in float32. Source: jackroos/VL-BERT's training label, jiasenlu/vilbert_beta."""
    return _inclusive_iou(first, second, np.float32)


def plain_iou(first: Box, second: Box) -> float:
    """IoU of boxes as areas of the plane, nothing added. Raises ValueError for two boxes without area."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = first, second
    wide, high = min(x1 + w1, x2 + w2) - max(x1, x2), min(y1 + h1, y2 + h2) - max(y1, y2)
    shared = max(wide, 0.0) * max(high, 0.0)
    union = w1 * h1 + w2 * h2 - shared
    if union == 0:
        raise ValueError("two boxes without area have no overlap that can be measured")
    return float(shared / union)


@dataclass(frozen=True)
class BoxRule:
    """Attributes:
    iou: of a predicted box and the object's.
    is_half_a_hit: whether an overlap of exactly one half hits.
    words: for the card.
    """

    iou: Callable[[Box, Box], float]
    is_half_a_hit: bool
    words: str

    def hits(self, predicted: Box, right: Box) -> bool:
        """Two boxes without area are a miss."""
        try:
            overlap = self.iou(predicted, right)
        except ValueError:
            return False
        return overlap >= HALF if self.is_half_a_hit else overlap > HALF


BOX_RULES: Mapping[str, BoxRule] = MappingProxyType(
    {
        "refer": BoxRule(pixel_iou, True, "IoU of pixels >= 0.5 (refer, MAttNet)"),
        "uniter": BoxRule(pixel_iou, False, "IoU of pixels > 0.5 (UNITER)"),
        "vl-bert": BoxRule(corner_iou, True, "IoU with one pixel too many >= 0.5 (VL-BERT, evaluation)"),
        "vl-bert-label": BoxRule(
            corner_iou_float32, False, "IoU with one pixel too many > 0.5, float32 (VL-BERT, training label)"
        ),
        "vilbert": BoxRule(corner_iou_float32, False, "IoU with one pixel too many > 0.5, float32 (ViLBERT)"),
    }
)


def _inclusive_iou(first: Box, second: Box, kind: type[np.floating]) -> float:
    """Corners are added in float64, all else is computed in `kind`."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = first, second
    start_1, start_2 = np.array([x1, y1], dtype=kind), np.array([x2, y2], dtype=kind)
    end_1, end_2 = np.array([x1 + w1, y1 + h1], dtype=kind), np.array([x2 + w2, y2 + h2], dtype=kind)
    one, zero = kind(1), kind(0)
    sides = np.maximum(np.minimum(end_1, end_2) - np.maximum(start_1, start_2) + one, zero)
    area_1, area_2 = np.prod(end_1 - start_1 + one), np.prod(end_2 - start_2 + one)
    shared = np.prod(sides)
    return float(shared / (area_1 + area_2 - shared))
