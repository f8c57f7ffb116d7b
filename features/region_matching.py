"""Which regions of two records are the same region: one-to-one pairs by overlap of their boxes."""

from __future__ import annotations

import numpy as np

MATCH_IOU = 0.5
MAX_MATCHED_REGIONS = 4096  # the matrix of overlaps then takes 128 MB; published records have 10 to 300 regions


def match_regions(left_boxes: np.ndarray, right_boxes: np.ndarray) -> np.ndarray:
    """Pairs of regions, one to one, of IoU >= 0.5, best IoU first; of equal IoU the pair of nearest rows.

    Args:
        left_boxes, right_boxes: (K, 4) and (L, 4) float, x1 y1 x2 y2; at most 4,096 each. Equal boxes have IoU 1 even
            when they have no area.
    Returns:
        (P, 2) int64: row on the left, row on the right; in the order they were chosen.
    Raises:
        ValueError: for more boxes.
    """
    for boxes in (left_boxes, right_boxes):
        if len(boxes) > MAX_MATCHED_REGIONS:
            raise ValueError(f"{len(boxes):,} regions in one image; at most {MAX_MATCHED_REGIONS:,} can be matched")
    overlap = _iou(left_boxes.astype(np.float64), right_boxes.astype(np.float64))
    rows, columns = np.nonzero(overlap >= MATCH_IOU)
    # Last key first: by overlap, then by distance of the rows; what is left stays in row order (the sort is stable).
    order = np.lexsort((np.abs(rows - columns), -overlap[rows, columns]))
    free_left, free_right = np.ones(len(left_boxes), bool), np.ones(len(right_boxes), bool)
    pairs = []
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if free_left[row] and free_right[column]:
            free_left[row] = free_right[column] = False
            pairs.append((row, column))
    return np.array(pairs, np.int64).reshape(-1, 2)


def _iou(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(K, L) float64."""
    across = np.minimum(left[:, None, 2], right[None, :, 2]) - np.maximum(left[:, None, 0], right[None, :, 0])
    inter = np.minimum(left[:, None, 3], right[None, :, 3]) - np.maximum(left[:, None, 1], right[None, :, 1])
    inter = np.maximum(inter, 0) * np.maximum(across, 0)
    areas = [(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) for boxes in (left, right)]
    union = areas[0][:, None] + areas[1][None, :] - inter
    overlap = np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)
    equal = np.ones(overlap.shape, bool)
    for edge in range(4):
        equal &= left[:, None, edge] == right[None, :, edge]
    overlap[equal] = 1.0
    return overlap
