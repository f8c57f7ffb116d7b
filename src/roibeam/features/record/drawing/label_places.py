"""Where the labels of boxes stand: near their box, inside the picture, where they hide least of what is in boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Box = tuple[float, float, float, float]
_ON_A_LABEL = 100.0  # against hiding an object: two labels on each other cannot be read
_FAR = 0.004  # against hiding an object, for each place that would be nearer


@dataclass(frozen=True)
class Rectangle:
    """Its upper left corner, width and height; all in one unit."""

    x: float
    y: float
    width: float
    height: float


def place_labels(
    boxes: Sequence[Box],
    sizes: Sequence[tuple[float, float]],
    *,
    frame: Rectangle,
    line: float = 0.0,
    taken: Sequence[Rectangle] = (),
) -> list[Rectangle]:
    """A place for each label: free of the labels before it, then of what lies in boxes, as far as there is room.

    Args:
        boxes: x1, y1, x2, y2, by descending importance: earlier ones get the better places.
        sizes: width and height of each label, not larger than the frame.
        frame: no label leaves it.
        line: by how much labels stand out to the left and right of their box.
        taken: places that labels should not cover.
    """
    areas = np.array([(x1, y1, max(x2, x1 + 1e-6), max(y2, y1 + 1e-6)) for x1, y1, x2, y2 in boxes]).reshape(-1, 4)
    share = 1 / ((areas[:, 2] - areas[:, 0]) * (areas[:, 3] - areas[:, 1]))
    covered = np.empty((len(taken) + len(boxes), 4))  # the labels before each one stand in front of the free rows
    for row, other in enumerate(taken):
        covered[row] = other.x, other.y, other.x + other.width, other.y + other.height
    placed = []
    for row, (box, (width, height)) in enumerate(zip(boxes, sizes, strict=True), len(taken)):
        corners = np.array(list(_corners(box, width, height, line)))
        corners = np.maximum(np.minimum(corners, (frame.x + frame.width - width, frame.y + frame.height - height)),
                             (frame.x, frame.y))  # fmt: skip
        places = np.concatenate([corners, corners + np.array((width, height))], axis=1)
        harm = _ON_A_LABEL / (width * height) * _overlaps(places, covered[:row]).sum(1)
        # How much of each object it hides; and a label far from its box is hard to follow.
        harm += _overlaps(places, areas) @ share + _FAR * np.arange(len(places))
        best = int(harm.argmin())
        covered[row] = places[best]
        placed.append(Rectangle(float(corners[best, 0]), float(corners[best, 1]), width, height))
    return placed


def _overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(N, M): the area that each of (N, 4) and each of (M, 4) rectangles x1, y1, x2, y2 cover together."""
    upper_left = np.maximum(first[:, None, :2], second[:, :2])
    lower_right = np.minimum(first[:, None, 2:], second[:, 2:])
    return np.maximum(lower_right - upper_left, 0).prod(2)


def _corners(box: Box, width: float, height: float, line: float) -> Iterator[tuple[float, float]]:
    """Upper left corners of a label, the best first: around the box, then in its corners."""
    x1, y1, x2, y2 = box
    left, right = x1 - line, x2 + line - width
    yield from ((left, y1 - height), (left, y2), (right, y1 - height), (right, y2), (x2 + line, y1))
    yield from ((left - width + line, y1), (left, y1), (right, y1), (left, y2 - height), (right, y2 - height))
    # Then down along the box, and around it: a label near its box beats one on top of another.
    for step in range(1, 9):
        below, above = y1 + step * height, y1 - (step + 1) * height
        yield from ((left, below), (right, below), (left, above), (right, above))
