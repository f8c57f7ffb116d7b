"""Which relations hold between the objects of a scene, decided by whole numbers.

Only between objects that can be seen well enough to be scored. The opposite ("right of", "below", "behind", "smaller
than") holds the other way round.
"""

from __future__ import annotations

from roibeam.pipelines.toyworld.scene import Box, Relation, Scene, SceneObject
from roibeam.pipelines.toyworld.shapes import SHAPES

# Thresholds, chosen so that nobody would argue.
_COVERED_BY_FRONT = 100  # Permille of the one behind.
_TIMES_LARGER = 3
_INSIDE_COVERS_AT_MOST = 200  # Permille of the frame or hoop around.


def find_relations(scene: Scene) -> tuple[Relation, ...]:
    """All that hold, ordered by subject, target, name."""
    covers = {(upper, lower): permille for upper, lower, permille in scene.covers}
    seen = [thing for thing in scene.objects if not thing.ignored]
    areas = {thing.number: thing.full_box[2] * thing.full_box[3] for thing in seen}
    found = []
    for a in seen:
        for b in seen:
            if a is b:
                continue
            names = []
            if _inside(a, b, covers):
                names.append("inside")
            elif not _inside(b, a, covers):
                if _before(a.box, b.box, 0):
                    names.append("left of")
                if _before(a.box, b.box, 1):
                    names.append("above")
                if covers.get((a.number, b.number), 0) >= _COVERED_BY_FRONT:
                    names.append("in front of")
            if areas[a.number] >= _TIMES_LARGER * areas[b.number]:
                names.append("larger than")
            found += [Relation(a.number, name, b.number) for name in names]
    return tuple(found)


def _before(a: Box, b: Box, axis: int) -> bool:
    """Ends before `b` begins (an eighth of the smaller one may overlap) and lies beside it, not askew."""
    length, other_length = a[axis + 2], b[axis + 2]
    if 8 * (a[axis] + length - b[axis]) > min(length, other_length):
        return False
    across = 1 - axis
    start, other_start, breadth, other_breadth = a[across], b[across], a[across + 2], b[across + 2]
    overlap = min(start + breadth, other_start + other_breadth) - max(start, other_start)
    return 2 * overlap >= min(breadth, other_breadth)


def _inside(a: SceneObject, b: SceneObject, covers: dict[tuple[int, int], int]) -> bool:
    """`b` is hollow, and `a` lies within its box less an eighth at each edge, hardly touching it."""
    if a.number < b.number or not SHAPES[b.category].hollow:
        return False
    return covers.get((a.number, b.number), 0) <= _INSIDE_COVERS_AT_MOST and all(
        8 * a.full_box[axis] >= 8 * b.full_box[axis] + b.full_box[axis + 2]
        and 8 * (a.full_box[axis] + a.full_box[axis + 2]) <= 8 * b.full_box[axis] + 7 * b.full_box[axis + 2]
        for axis in (0, 1)
    )
