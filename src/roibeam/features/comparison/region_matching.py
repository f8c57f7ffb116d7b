"""Which regions of two records are the same region: one-to-one pairs by overlap of their boxes."""

from __future__ import annotations

import numpy as np

MATCH_IOU = 0.5
# One matrix of overlaps then takes 128 MB, and matching 1.1 GB if all boxes of both sides lie in one place; published
# records have 10 to 300 regions.
MAX_MATCHED_REGIONS = 4096
_CANDIDATES_AT_ONCE = 65536


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
    # Equal boxes have the largest overlap there is, so they are chosen first anyway; here they need no matrix: n equal
    # ones would be n * n candidates.
    pairs = _equal_pairs(left_boxes, right_boxes)
    free_left, free_right = np.ones(len(left_boxes), bool), np.ones(len(right_boxes), bool)
    free_left[[row for row, _ in pairs]] = free_right[[column for _, column in pairs]] = False
    left_rows, right_rows = np.nonzero(free_left)[0], np.nonzero(free_right)[0]
    overlap = _iou(left_boxes[left_rows].astype(np.float64), right_boxes[right_rows].astype(np.float64))
    nearby = np.nonzero(overlap >= MATCH_IOU)
    rows, columns = left_rows[nearby[0]], right_rows[nearby[1]]
    # Last key first: by overlap, then by distance of the rows; what is left stays in row order (the sort is stable).
    order = np.lexsort((np.abs(rows - columns), -overlap[nearby]))
    for start in range(0, len(order), _CANDIDATES_AT_ONCE):
        part = order[start : start + _CANDIDATES_AT_ONCE]
        part = part[free_left[rows[part]] & free_right[columns[part]]]
        for row, column in zip(rows[part].tolist(), columns[part].tolist(), strict=True):
            if free_left[row] and free_right[column]:
                free_left[row] = free_right[column] = False
                pairs.append((row, column))
    return np.array(pairs, np.int64).reshape(-1, 2)


def _equal_pairs(left_boxes: np.ndarray, right_boxes: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of equal boxes, one to one: nearest rows first, of equal distance the upper row on the left first."""
    number_of: dict[tuple[float, ...], int] = {}
    left, right = (
        np.array([number_of.setdefault(tuple(box), len(number_of)) for box in boxes.tolist()], np.int64)
        for boxes in (left_boxes, right_boxes)
    )
    counts = [np.bincount(numbers, minlength=len(number_of)) for numbers in (left, right)]
    remaining = int(np.minimum(*counts).sum())
    free_left, free_right = np.ones(len(left), bool), np.ones(len(right), bool)
    pairs: list[tuple[int, int]] = []
    distance = 0
    while remaining:
        candidates = []
        for step in {distance, -distance}:  # column - row
            first, last = max(0, -step), min(len(left), len(right) - step)
            if first < last:
                here, there = slice(first, last), slice(first + step, last + step)
                fits = (left[here] == right[there]) & free_left[here] & free_right[there]
                candidates += [(row, row + step) for row in (np.nonzero(fits)[0] + first).tolist()]
        for row, column in sorted(candidates):
            if free_left[row] and free_right[column]:
                free_left[row] = free_right[column] = False
                pairs.append((row, column))
                remaining -= 1
        distance += 1
    return pairs


def _iou(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(K, L) float64; 0 where both boxes have no area."""
    across = np.minimum(left[:, None, 2], right[None, :, 2]) - np.maximum(left[:, None, 0], right[None, :, 0])
    inter = np.minimum(left[:, None, 3], right[None, :, 3]) - np.maximum(left[:, None, 1], right[None, :, 1])
    inter = np.maximum(inter, 0) * np.maximum(across, 0)
    areas = [(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) for boxes in (left, right)]
    union = areas[0][:, None] + areas[1][None, :] - inter
    return np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)
