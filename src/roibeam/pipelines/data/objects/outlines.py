"""Outlines of objects as masks over the cells of their regions. No torch.

As jackroos/VL-BERT common/utils/mask.py does, and rowanz/r2c dataloaders/mask_utils.py before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.objects.regions_at_boxes import regions_at_boxes

MASK_SIDE = 14  # cells of a mask, across and down, as of the map that RoIAlign gives
Outline = tuple[np.ndarray, ...] | None  # polygons (P, 2), x y in pixels of the photo; None for the whole box


def masks_of_regions(record: RegionRecord, boxes: np.ndarray, outlines: Sequence[Outline], side: int) -> np.ndarray:
    """(K, side, side) float32 for the regions of a record: 1 in cells inside an object's outline, and in all cells of a
    region that is no object.

    Args:
        boxes: (n, 4), x1 y1 x2 y2 in pixels of the photo, of the objects.
        outlines: of each.
    Raises:
        ValueError: when a box is not among the record's.
    """
    masks = np.ones((record.num_regions, side, side), np.float32)
    for number, region in enumerate(regions_at_boxes(record, boxes)):
        outline = outlines[number]
        if outline is not None:
            masks[region] = outline_mask(outline, boxes[number], side)
    return masks


def outline_mask(polygons: Sequence[np.ndarray], box: np.ndarray, side: int = MASK_SIDE) -> np.ndarray:
    """(side, side) float32, 1 in cells whose number lies in or on one of the polygons, scaled to the box.

    Args:
        polygons: (P, 2) each, x y in pixels of the photo.
        box: (4,), x1 y1 x2 y2 in the same pixels; x2 and y2 are the last pixels inside.
    """
    mask = np.zeros((side, side), np.float32)
    corner = box[:2].astype(np.float32)
    scale = np.float32(side) / (box[2:].astype(np.float32) - corner + 1)
    for polygon in polygons:
        scaled = ((polygon.astype(np.float32) - corner) * scale).clip(0, side - 1)
        mask[_cells_inside(scaled.astype(np.float64), side)] = 1
    return mask


def _cells_inside(polygon: np.ndarray, side: int) -> np.ndarray:
    """(side, side) bool by row and column: crossings of a ray to the right and to the left, which differ on an edge."""
    rows, columns = np.mgrid[:side, :side]
    x, y = polygon[:, 0, None, None] - columns, polygon[:, 1, None, None] - rows
    before_x, before_y = np.roll(x, 1, axis=0), np.roll(y, 1, axis=0)
    rise = before_y - y
    flat = rise == 0
    with np.errstate(invalid="ignore"):
        crossing = (x * before_y - before_x * y) / np.where(flat, 1, rise)
    right = (((y > 0) != (before_y > 0)) & (crossing > 0)).sum(axis=0) % 2
    left = (((y < 0) != (before_y < 0)) & (crossing < 0)).sum(axis=0) % 2
    vertex = ((x == 0) & (y == 0)).any(axis=0)
    return np.asarray(vertex | (right != left) | (right == 1))
