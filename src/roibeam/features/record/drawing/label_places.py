"""Where the labels of boxes stand: near their box, inside the picture, where they hide least of what is in boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

    def overlap(self, other: Rectangle) -> float:
        """The area that both cover."""
        across = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        down = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return max(across, 0.0) * max(down, 0.0)


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
    covered = list(taken)
    objects = [Rectangle(x1, y1, max(x2 - x1, 1e-6), max(y2 - y1, 1e-6)) for x1, y1, x2, y2 in boxes]
    placed = []
    for box, (width, height) in zip(boxes, sizes, strict=True):
        best = Rectangle(frame.x, frame.y, width, height)
        least = float("inf")
        for number, (x, y) in enumerate(_corners(box, width, height, line)):
            x = min(max(x, frame.x), frame.x + frame.width - width)
            y = min(max(y, frame.y), frame.y + frame.height - height)
            place = Rectangle(x, y, width, height)
            harm = _ON_A_LABEL * sum(place.overlap(other) for other in covered) / (width * height)
            if harm >= least:
                continue
            # How much of each object it hides; and a label far from its box is hard to follow.
            harm += sum(place.overlap(each) / (each.width * each.height) for each in objects) + _FAR * number
            if harm < least:
                best, least = place, harm
            if harm == _FAR * number:
                break
        placed.append(best)
        covered.append(best)
    return placed


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
