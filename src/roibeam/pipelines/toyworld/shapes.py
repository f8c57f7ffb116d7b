"""Shapes of the categories: outlines, details drawn upon them, and outlines filled to masks and traced back.

Colours are no part of a category. Coordinates: x to the right, y down, from -800 to 800 in the frame of the object. All
are whole numbers, curves too: the points of a circle are the rational ones, ((1 - t^2) / (1 + t^2), 2 t / (1 + t^2)).
So the pixels of an object never depend on a library.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

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
    # It does so at x + (SUBPIXEL * row + _HALF - y) * dx / dy. The first pixel whose centre lies to the right changes
    # from outside to inside, or back.
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
    """Straight pieces of all borders. They have the pixels on their right: along tops to the right, and so on.

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
    """Runs of equal numbers other than 0 at `stride`: places before their first and of their last number, and whether
    the numbers are above 0."""
    here, ahead = steps[:-stride], steps[stride:]
    change = here != ahead
    before, last = np.flatnonzero(change & (ahead != 0)), np.flatnonzero(change & (here != 0))
    if stride > 1:  # Down the columns: in their order, each run has its end at the place that its beginning has.
        before, last = (places[np.argsort(places % stride, kind="stable")] for places in (before, last))
    return before, last, ahead[before] > 0


UNIT = 800
Point = tuple[int, int]
DARK, LIGHT = "dark", "light"


@dataclass(frozen=True, eq=False)
class Detail:
    """A polygon upon the body: (V, 2) int64, in a darker or lighter tone of the body's colour."""

    contour: np.ndarray
    tone: str


@dataclass(frozen=True, eq=False)
class Shape:
    """Drawing of a category.

    Attributes:
        contours: outlines, each (V, 2) int64; one inside another is a hole.
        details: drawn in this order.
        hollow: half the edge of the square in the middle that other objects can be inside of; 0: none.
        turns: whether it may be tilted; round things look the same.
    """

    contours: tuple[np.ndarray, ...]
    details: tuple[Detail, ...] = field(default=())
    hollow: int = 0
    turns: bool = True

    @cached_property
    def points(self) -> np.ndarray:
        """Outlines, then details, one after another."""
        return np.concatenate([*self.contours, *(detail.contour for detail in self.details)])

    @cached_property
    def _slices(self) -> list[slice]:
        """Slices of each outline and detail in `points`."""
        ends = accumulate((len(piece) for piece in (*self.contours, *(d.contour for d in self.details))), initial=0)
        return [slice(start, end) for start, end in pairwise(ends)]

    def parts(self, points: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Splits an array with the layout of `points` into outlines and details."""
        pieces = [points[part] for part in self._slices]
        return pieces[: len(self.contours)], pieces[len(self.contours) :]


def place_points(points: np.ndarray, *, half_edge: int, stretch: int, turn: int, mirrored: bool) -> np.ndarray:
    """Transforms points of a shape's frame to their places around the middle of an object.

    Args:
        points: (V, 2) int64.
        half_edge: size of half the frame, in the unit of the result.
        stretch: hundredths of the width.
        turn: clockwise by the angle whose half has the tangent turn / 32 (8: 28 degrees): an exact rotation.
    Returns:
        (V, 2) int64, rounded down.
    """
    cosine, sine, scale = 1024 - turn * turn, 64 * turn, 1024 + turn * turn
    wide = -stretch if mirrored else stretch
    matrix = np.array([[wide * cosine, wide * sine], [-100 * sine, 100 * cosine]])
    return (points @ (matrix * half_edge)) // (UNIT * 100 * scale)


def _contour(points: Sequence[Point]) -> np.ndarray:
    # Written in hundredths of half the frame, to be readable.
    return np.array(points, dtype=np.int64) * (UNIT // 100)


def _arc(x: int, y: int, radius_x: int, radius_y: int, quarters: Sequence[int]) -> list[Point]:
    """Points along quarter circles: 0 from the right end down to the bottom, 1 on to the left end, 2 to the top, 3."""
    points = []
    for quarter in quarters:
        for step in range(8):
            a, b, scale = 64 - step * step, 16 * step, 64 + step * step
            for _ in range(quarter):
                a, b = -b, a
            points.append((x + _rounded(radius_x * a, scale), y + _rounded(radius_y * b, scale)))
    return points


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def _oval(x: int, y: int, radius_x: int, radius_y: int | None = None) -> list[Point]:
    return _arc(x, y, radius_x, radius_x if radius_y is None else radius_y, range(4))


def _bar(x1: int, y1: int, x2: int, y2: int) -> list[Point]:
    return [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]


def _shape(
    *contours: list[Point],
    dark: Sequence[list[Point]] = (),
    light: Sequence[list[Point]] = (),
    over: Sequence[list[Point]] = (),
    hollow: int = 0,
    turns: bool = True,
) -> Shape:
    """`light` details lie upon `dark` ones, `over` (dark again) upon both."""
    details = [Detail(_contour(points), DARK) for points in dark]
    details += [Detail(_contour(points), LIGHT) for points in light]
    details += [Detail(_contour(points), DARK) for points in over]
    return Shape(tuple(map(_contour, contours)), tuple(details), hollow * (UNIT // 100), turns)


_DISC = _oval(0, 0, 100)
_SQUARE = _bar(-90, -90, 90, 90)
_STAR: list[Point] = [
    (0, -100), (26, -36), (95, -31), (42, 14), (59, 81), (0, 44), (-59, 81), (-42, 14), (-95, -31), (-26, -36),
]  # fmt: skip

SHAPES: dict[str, Shape] = {
    # Four round things, which differ in their details.
    "ball": _shape(
        _DISC,
        dark=[_arc(-92, 0, 60, 92, [3, 0]), _arc(92, 0, 60, 92, [1, 2])],
        light=[_bar(-9, -98, 9, 98)],
        turns=False,
    ),
    "button": _shape(
        _DISC, dark=[_oval(x, y, 17) for x in (-33, 33) for y in (-33, 33)], light=[], turns=False
    ),
    "wheel": _shape(
        _DISC,
        dark=[_DISC],
        light=[_oval(0, 0, 74)],
        over=[
            _bar(-7, -76, 7, 76), _bar(-76, -7, 76, 7), _oval(0, 0, 22),
            [(-57, -47), (-47, -57), (57, 47), (47, 57)], [(47, -57), (57, -47), (-47, 57), (-57, 47)],
        ],
        turns=False,
    ),
    "clock": _shape(
        _DISC,
        light=[_oval(0, 0, 80)],
        over=[
            [(-8, 8), (-8, -62), (8, -62), (8, 8)], [(0, -8), (46, 18), (38, 32), (-8, 8)],
            _bar(-4, -78, 4, -68), _bar(-4, 68, 4, 78), _bar(-78, -4, -68, 4), _bar(68, -4, 78, 4),
        ],
        turns=False,
    ),
    # Three square ones.
    "box": _shape(
        _SQUARE,
        dark=[
            [(-84, -70), (-70, -84), (84, 70), (70, 84)], [(70, -84), (84, -70), (-70, 84), (-84, 70)],
            _bar(-90, -90, 90, -74), _bar(-90, 74, 90, 90), _bar(-90, -90, -74, 90), _bar(74, -90, 90, 90),
        ],
    ),
    "window": _shape(
        _bar(-80, -100, 80, 100),
        light=[_bar(-66, -86, -7, -7), _bar(7, -86, 66, -7), _bar(-66, 7, -7, 86), _bar(7, 7, 66, 86)],
    ),
    "frame": _shape(
        _bar(-95, -95, 95, 95), _bar(-72, -72, 72, 72),
        dark=[
            _bar(-86, -86, 86, -81), _bar(-86, 81, 86, 86), _bar(-86, -86, -81, 86), _bar(81, -86, 86, 86),
        ],
        hollow=70, turns=False,
    ),
    "hoop": _shape(_DISC, _oval(0, 0, 80), hollow=54, turns=False),
    "house": _shape(
        [(0, -100), (90, -25), (72, -25), (72, 95), (-72, 95), (-72, -25), (-90, -25)],
        dark=[[(0, -100), (90, -25), (-90, -25)], _bar(-14, 35, 22, 95)],
        light=[_bar(-56, 5, -26, 40), _bar(34, 5, 60, 40)],
    ),
    "tree": _shape(
        [
            (0, -100), (38, -50), (22, -50), (58, 0), (36, 0), (76, 58), (14, 58), (14, 98), (-14, 98), (-14, 58),
            (-76, 58), (-36, 0), (-58, 0), (-22, -50), (-38, -50),
        ],
        dark=[
            _bar(-14, 58, 14, 98), [(-58, 0), (58, 0), (36, 10), (-36, 10)],
            [(-38, -50), (38, -50), (22, -41), (-22, -41)],
        ],
    ),
    "mushroom": _shape(
        [*_arc(0, 5, 98, 95, [2, 3]), (28, 12), (34, 92), (-34, 92), (-28, 12)],
        light=[_oval(-45, -28, 16, 14), _oval(8, -58, 18, 14), _oval(52, -20, 14, 13), _bar(-26, 12, 26, 86)],
    ),
    "star": _shape(_STAR, light=[[(x * 45 // 100, y * 45 // 100) for x, y in _STAR]]),
    "heart": _shape(
        [*_arc(-46, -38, 50, 50, [2, 3]), *_arc(46, -38, 50, 50, [2, 3]), (92, -12), (0, 92), (-92, -12)],
        light=[_oval(-48, -42, 17, 17)],
    ),
    "moon": _shape(
        # A disc less another disc.
        [*_arc(10, 0, 90, 100, [1, 2]), *reversed(_arc(28, 0, 55, 76, [1, 2]))],
        dark=[_oval(-62, 8, 9), _oval(-48, -42, 7), _oval(-46, 50, 8)],
    ),
    "fish": _shape(
        [*_arc(-22, 0, 78, 52, [1, 2, 3]), (94, -58), (80, 0), (94, 58), *_arc(-22, 0, 78, 52, [0])[1:]],
        dark=[[(-34, -40), (-22, -40), (-12, 0), (-22, 40), (-34, 40), (-22, 0)], _oval(-66, -12, 9)],
        light=[[(62, 0), (86, -38), (76, 0), (86, 38)]],
    ),
    "boat": _shape(
        [(-6, -98), (4, -98), (68, 28), (4, 28), (4, 42), (98, 42), (66, 92), (-66, 92), (-98, 42), (-6, 42)],
        dark=[_bar(-90, 56, 90, 66), _bar(-6, -98, 4, 42)],
        light=[[(8, -74), (56, 22), (8, 22)]],
    ),
    "cup": _shape(
        [(-90, -80), (50, -80), (44, 82), (-84, 82)],
        [*_arc(46, -8, 52, 50, [3, 0]), (46, 22), *reversed(_arc(46, -8, 28, 28, [3, 0])), (46, -58)],
        dark=[_oval(-20, -72, 66, 8)],
        light=[_bar(-76, -20, 36, 10)],
    ),
    "key": _shape(
        [*_arc(0, -52, 48, 48, [1, 2, 3, 0]), (12, -8), (12, 38), (46, 38), (46, 56), (12, 56), (12, 70), (36, 70),
         (36, 88), (12, 88), (12, 98), (-12, 98), (-12, -8)],
        _oval(0, -54, 24),
    ),
    "bell": _shape(
        [*_arc(0, -30, 50, 64, [2, 3]), (56, 36), (88, 62), (20, 62), (16, 92), (-16, 92), (-20, 62), (-88, 62),
         (-56, 36)],
        dark=[[(-56, 36), (56, 36), (66, 48), (-66, 48)], [(-20, 62), (20, 62), (16, 92), (-16, 92)]],
    ),
    "flower": _shape(
        [
            *_arc(0, -58, 40, 42, [2, 3]), *_arc(58, 0, 42, 40, [3, 0]), *_arc(0, 58, 40, 42, [0, 1]),
            *_arc(-58, 0, 42, 40, [1, 2]),
        ],
        dark=[_oval(0, 0, 34)],
        light=[_oval(0, 0, 15)],
        turns=False,
    ),
    "hat": _shape(
        [(-50, -70), (50, -70), (56, 38), (100, 38), (100, 66), (-100, 66), (-100, 38), (-56, 38)],
        dark=[[(-55, 8), (55, 8), (56, 38), (-56, 38)]],
    ),
    "bottle": _shape(
        [(-15, -100), (15, -100), (15, -48), (44, -14), (44, 100), (-44, 100), (-44, -14), (-15, -48)],
        dark=[_bar(-15, -100, 15, -80)],
        light=[_bar(-38, 14, 38, 66)],
    ),
    "umbrella": _shape(
        [
            *_arc(0, 0, 100, 90, [2, 3]), (66, -14), (33, 2), (7, -10), (7, 70), (12, 80), (28, 80), (32, 64), (44, 64),
            (40, 92), (4, 96), (-7, 78), (-7, -10), (-33, 2), (-66, -14),
        ],
        dark=[[(0, -90), (36, -2), (28, 0)], [(0, -90), (-36, -2), (-28, 0)], _bar(-7, -10, 7, 78)],
    ),
    "kite": _shape(
        [(0, -100), (62, -28), (6, 62), (26, 98), (-26, 98), (-6, 62), (-62, -28)],
        light=[[(0, -88), (0, -28), (-52, -28)], [(0, 50), (0, -28), (52, -28)]],
    ),
}  # fmt: skip
