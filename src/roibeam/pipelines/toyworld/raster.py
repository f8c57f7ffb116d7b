"""Outlines to masks and back, in whole numbers only: which pixels belong to an object never depends on a library."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

# Vertices are in eighths of a pixel; the centre of pixel i lies at 8 i + 4.
SUBPIXEL = 8
_HALF = SUBPIXEL // 2


def fill(contours: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
    """Pixels whose centre lies inside an odd number of contours, so that a contour inside another is a hole.

    Args:
        contours: each (V, 2) int64, x and y in eighths of a pixel, closed without repeating the first vertex.
    Returns:
        (height, width) bool. Parts outside are cut off.
    """
    starts = np.concatenate(contours)
    following = np.arange(1, len(starts) + 1)
    last = -1
    for contour in contours:
        first, last = last + 1, last + len(contour)
        following[last] = first
    (x, y), (dx, dy) = starts.T, (starts[following] - starts).T
    # The first row whose centre is not above the vertex. An edge crosses the centres of the rows between those of its
    # two ends, so a level edge crosses none.
    row = np.minimum(np.maximum((y + (SUBPIXEL - 1 - _HALF)) // SUBPIXEL, 0), height)
    end_row = row[following]
    counts = abs(end_row - row)
    edges = np.arange(len(starts)).repeat(counts)
    rows = np.arange(len(edges)) + (np.minimum(row, end_row) + counts - counts.cumsum())[edges]
    # It does so at x + (SUBPIXEL * row + _HALF - y) * dx / dy. What changes there from outside to inside, or back, is
    # the first pixel whose centre lies to the right.
    numerators = ((x + _HALF) * dy + (_HALF - y) * dx)[edges] + (SUBPIXEL * dx)[edges] * rows
    columns = numerators // (SUBPIXEL * dy)[edges]
    # In reading order. Each row has an even number of changes, so the next one begins outside.
    changes = np.zeros(len(edges) + 2, np.int64)
    changes[1:-1] = rows * width + np.minimum(np.maximum(columns, 0), width)
    changes[-1] = height * width
    changes.sort()
    inside = np.zeros(len(changes) - 1, bool)
    inside[1::2] = True
    return inside.repeat(changes[1:] - changes[:-1]).reshape(height, width)


def bounds(mask: np.ndarray) -> tuple[int, int, int, int]:
    """x, y, width, height of the pixels that are set in a bool mask; all zero if none is."""
    left, top, width, height = cv2.boundingRect(mask.view(np.uint8))
    return left, top, width, height


def run_lengths(mask: np.ndarray) -> list[int]:
    """COCO's uncompressed run lengths: column by column, zeros first."""
    flat = mask.T.reshape(-1)
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff([0, *changes.tolist(), flat.size]).tolist()
    return [0, *runs] if flat[0] else runs


def outlines(mask: np.ndarray) -> list[np.ndarray]:
    """Outer borders of the set pixels as polygons along pixel edges, without the borders of holes.

    Pixels that touch only at a corner belong to different outlines. COCO's polygons have no holes either.

    Returns:
        Each (V, 2) int64, x and y in pixels, clockwise.
    """
    sides, tops = _sides(mask)
    found = []
    for start in tops:
        numbers: list[int] = []
        number, direction = start, _RIGHT
        # Nothing on a second visit: an outline takes its sides away.
        while (number := sides.pop(number + direction, -1)) >= 0:
            numbers.append(number)
            # At a corner that two outlines share, the right turn stays with the same pixel.
            right_turn = (direction + 1) % 4
            direction = right_turn if number + right_turn in sides else (direction + 3) % 4
        if numbers:
            corners = _coordinates(np.array(numbers), mask.shape[1])
            x, y = corners.T
            # The second side and every other one is upright. The border of a hole runs the other way round.
            area = x[::2] @ (y[1::2] - y[::2])
            if area > 0:
                found.append(corners)
    return found


_RIGHT, _DOWN, _LEFT, _UP = range(4)


def _coordinates(numbers: np.ndarray, width: int) -> np.ndarray:
    """(V, 2): x and y of corners, whose numbers are 4 * (y * (width + 2) + x): room for a direction."""
    y, x = np.divmod(numbers // 4, width + 2)
    return np.stack([x, y], axis=1)


def _sides(mask: np.ndarray) -> tuple[dict[int, int], list[int]]:
    """The straight pieces of all borders. They have the pixels on their right: along tops to the right, and so on.

    Returns:
        For the number of the corner where a side starts + its direction, the number of the corner where it ends; and
        the numbers of the corners where tops start, in reading order.
    """
    height, width = mask.shape
    padded = np.zeros((height + 2, width + 2), np.int8)
    padded[1:-1, 1:-1] = mask
    flat, stride = padded.reshape(-1), width + 2
    left, right, is_top = _runs(flat[stride:] - flat[:-stride], 1)
    above, below, is_left = _runs(flat[1:] - flat[:-1], stride)
    starts = 4 * np.concatenate([np.where(is_top, left, right), np.where(is_left, below, above)])
    ends = 4 * np.concatenate([np.where(is_top, right, left), np.where(is_left, above, below)])
    directions = np.concatenate([np.where(is_top, _RIGHT, _LEFT), np.where(is_left, _UP, _DOWN)])
    return dict(zip((starts + directions).tolist(), ends.tolist(), strict=True)), (4 * left[is_top]).tolist()


def _runs(steps: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of equal numbers other than 0 that follow each other at `stride`: the places before the first one and of the last
    one, and whether the numbers are above 0."""
    here, ahead = steps[:-stride], steps[stride:]
    change = here != ahead
    before, last = np.flatnonzero(change & (ahead != 0)), np.flatnonzero(change & (here != 0))
    if stride > 1:  # Down the columns: in their order, each run has its end at the place that its beginning has.
        before, last = (places[np.argsort(places % stride, kind="stable")] for places in (before, last))
    return before, last, ahead[before] > 0
