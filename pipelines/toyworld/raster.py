"""Outlines to masks and back, in whole numbers only: which pixels belong to an object never depends on a library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Vertices are in eighths of a pixel; the centre of pixel i lies at 8 i + 4.
SUBPIXEL = 8


def fill(contours: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
    """Pixels whose centre lies inside an odd number of contours, so that a contour inside another is a hole.

    Args:
        contours: each (V, 2) int64, x and y in eighths of a pixel, closed without repeating the first vertex.
    Returns:
        (height, width) bool. Parts outside are cut off.
    """
    starts = np.concatenate(contours)
    ends = np.concatenate([part for contour in contours for part in (contour[1:], contour[:1])])
    downwards = (starts[:, 1] <= ends[:, 1])[:, None]
    upper, lower = np.where(downwards, starts, ends), np.where(downwards, ends, starts)
    dx, dy = (lower - upper).T
    centres = SUBPIXEL * np.arange(height, dtype=np.int64)[:, None] + SUBPIXEL // 2
    rows, edges = np.nonzero(np.logical_and(upper[:, 1] <= centres, centres < lower[:, 1]))
    dx, dy = dx[edges], dy[edges]
    # The edge crosses this row at x = numerator / dy; the first pixel to be toggled is the first centre right of it.
    numerator = upper[edges, 0] * dy + (centres[rows, 0] - upper[edges, 1]) * dx
    columns = ((numerator - SUBPIXEL // 2 * dy) // (SUBPIXEL * dy) + 1).clip(0, width)
    toggles = np.bincount(rows * (width + 1) + columns, minlength=height * (width + 1)).astype(np.uint8)
    # Sums may pass 255 and wrap around: only whether they are odd counts.
    inside = toggles.reshape(height, width + 1).cumsum(axis=1, dtype=np.uint8) & 1
    return inside[:, :width].astype(bool)


def bounds(mask: np.ndarray) -> tuple[int, int, int, int]:
    """x, y, width, height of the pixels that are set; all zero if none is."""
    columns, rows = np.nonzero(mask.any(axis=0))[0], np.nonzero(mask.any(axis=1))[0]
    if not len(rows):
        return 0, 0, 0, 0
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1


def run_lengths(mask: np.ndarray) -> list[int]:
    """COCO's uncompressed run lengths: column by column, zeros first."""
    flat = mask.T.reshape(-1)
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff([0, *changes.tolist(), flat.size]).tolist()
    return [0, *runs] if flat[0] else runs


def outlines(mask: np.ndarray) -> list[list[int]]:
    """Outer borders of the set pixels as polygons along pixel edges, x1 y1 x2 y2 ..., without the borders of holes.

    Pixels that touch only at a corner belong to different outlines. COCO's polygons have no holes either.
    """
    padded = np.pad(mask, 1).astype(np.int8)
    # Edges run with the pixels on their right hand: along tops to the right, along right sides down, and so on.
    follow: dict[tuple[int, int, int], None] = {}
    for direction, inside, outside in (
        (0, padded[1:, :], padded[:-1, :]),
        (1, padded[:, :-1], padded[:, 1:]),
        (2, padded[:-1, :], padded[1:, :]),
        (3, padded[:, 1:], padded[:, :-1]),
    ):
        rows, columns = np.nonzero(inside > outside)
        # The corner where the edge starts, in the pixel coordinates of `mask`.
        shift_x, shift_y = ((-1, 0), (0, -1), (0, 0), (0, 0))[direction]
        for corner in zip((columns + shift_x).tolist(), (rows + shift_y).tolist(), strict=True):
            follow[(*corner, direction)] = None
    found = []
    while follow:
        x, y, direction = next(iter(follow))
        corners: list[int] = []
        doubled_area = 0
        while (x, y, direction) in follow:
            del follow[x, y, direction]
            next_x, next_y = x + (1, 0, -1, 0)[direction], y + (0, 1, 0, -1)[direction]
            doubled_area += x * next_y - next_x * y
            # At a corner that two outlines share, the right turn stays with the same pixel.
            for turn in (1, 0, 3):
                if (next_x, next_y, (direction + turn) % 4) in follow:
                    break
            else:
                turn = 1
            x, y = next_x, next_y
            if turn:
                corners += [x, y]
            direction = (direction + turn) % 4
        if doubled_area > 0:
            found.append(corners)
    return found
