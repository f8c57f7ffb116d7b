"""Which relations hold between the objects of a scene, decided by whole numbers.

Only between objects that can be seen well enough to be scored. The opposite ("right of", "below", "behind", "smaller
than") holds the other way round.
"""

from __future__ import annotations

from pipelines.toyworld.scene import Relation, Scene, SceneObject
from pipelines.toyworld.shapes import SHAPES

# Thresholds, chosen so that nobody would argue.
_COVERED_BY_FRONT = 100  # Permille of the one behind.
_TIMES_LARGER = 3
_INSIDE_COVERS_AT_MOST = 200  # Permille of the frame or hoop around.


def find_relations(scene: Scene) -> tuple[Relation, ...]:
    """All that hold, ordered by subject, target, name."""
    covers = {(upper, lower): permille for upper, lower, permille in scene.covers}
    seen = [thing for thing in scene.objects if not thing.ignored]
    found = []
    for a in seen:
        for b in seen:
            if a is b:
                continue
            inside = _inside(a, b, covers)
            enclosed = inside or _inside(b, a, covers)
            names = {
                "left of": not enclosed and _before(a, b, 0),
                "above": not enclosed and _before(a, b, 1),
                "inside": inside,
                "in front of": not enclosed and covers.get((a.number, b.number), 0) >= _COVERED_BY_FRONT,
                "larger than": _full_area(a) >= _TIMES_LARGER * _full_area(b),
            }
            found += [Relation(a.number, name, b.number) for name, holds in names.items() if holds]
    return tuple(found)


def _before(a: SceneObject, b: SceneObject, axis: int) -> bool:
    """Ends before `b` begins (an eighth of the smaller one may overlap) and lies beside it, not askew."""
    across = 1 - axis
    overlap = min(a.box[across] + a.box[across + 2], b.box[across] + b.box[across + 2])
    overlap -= max(a.box[across], b.box[across])
    return 8 * (a.box[axis] + a.box[axis + 2] - b.box[axis]) <= min(
        a.box[axis + 2], b.box[axis + 2]
    ) and 2 * overlap >= min(a.box[across + 2], b.box[across + 2])


def _inside(a: SceneObject, b: SceneObject, covers: dict[tuple[int, int], int]) -> bool:
    """`b` is hollow, and `a` lies within its box less an eighth at each edge, hardly touching it."""
    if not SHAPES[b.category].hollow or a.number < b.number:
        return False
    return covers.get((a.number, b.number), 0) <= _INSIDE_COVERS_AT_MOST and all(
        8 * a.full_box[axis] >= 8 * b.full_box[axis] + b.full_box[axis + 2]
        and 8 * (a.full_box[axis] + a.full_box[axis + 2]) <= 8 * b.full_box[axis] + 7 * b.full_box[axis + 2]
        for axis in (0, 1)
    )


def _full_area(thing: SceneObject) -> int:
    return thing.full_box[2] * thing.full_box[3]
