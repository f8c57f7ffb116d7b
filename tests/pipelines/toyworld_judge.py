"""An independent reading of the toy world's captions: words to claims, claims to boxes."""

import re
from collections.abc import Iterator

from roibeam.pipelines.toyworld import world
from roibeam.pipelines.toyworld.captions import GROUND_PHRASES, NUMBERS, OPENINGS, PLURALS, RELATION_PHRASES
from roibeam.pipelines.toyworld.scene import Scene, SceneObject

NOUN_PHRASE = rf"an? (?:(?:{'|'.join(world.ATTRIBUTES)}) )*(?:{'|'.join(world.CATEGORIES)})"
PHRASES = {phrase: (name, way) for name, both in RELATION_PHRASES.items() for way, phrase in enumerate(both)}
CLAIM = rf"(?: is)? ({'|'.join(PHRASES)}) ({NOUN_PHRASE})"


def matching(scene: Scene, phrase: str) -> Iterator[SceneObject]:
    article, *attributes, category = phrase.split()
    assert article == ("an" if [*attributes, category][0][0] in "aeiou" else "a")
    assert set(attributes) <= set(world.ATTRIBUTES)
    for thing in scene.objects:
        if thing.category == category and set(attributes) <= set(thing.attributes):
            yield thing


def middle(thing: SceneObject) -> tuple[float, float]:
    x, y, width, height = thing.box
    return x + width / 2, y + height / 2


def holds(phrase: str, a: SceneObject, b: SceneObject) -> bool:
    """By the middles and areas of boxes, not by the rules that wrote it."""
    name, way = PHRASES[phrase]
    if way:
        a, b = b, a
    if a is b:
        return False
    (ax, ay), (bx, by) = middle(a), middle(b)
    left, top, width, height = b.full_box
    meet = abs(ax - bx) * 2 < a.full_box[2] + width and abs(ay - by) * 2 < a.full_box[3] + height
    return {
        "left of": ax < bx and abs(ay - by) < bx - ax + 20,
        "above": ay < by and abs(ax - bx) < by - ay + 20,
        "inside": left < ax < left + width and top < ay < top + height and b.category in ("frame", "hoop"),
        "in front of": a.number > b.number and meet,
        "larger than": a.full_box[2] * a.full_box[3] > 2 * width * height,
    }[name]


def is_true(scene: Scene, text: str) -> bool:
    opening = next(o for o in sorted((*OPENINGS, "there are "), key=len, reverse=True) if text.startswith(o))
    words = text.removeprefix(opening)
    if words.split()[0] in NUMBERS.values():
        number, *colour, plural = words.split()
        category = next(c for c in world.CATEGORIES if PLURALS.get(c, c + "s") == plural)
        same = [t for t in scene.objects if t.category == category and set(colour) <= set(t.attributes)]
        return NUMBERS.get(len(same)) == number
    if found := re.fullmatch(rf"({NOUN_PHRASE})", words):
        return any(matching(scene, found[1]))
    if found := re.fullmatch(rf"({NOUN_PHRASE}) and ({NOUN_PHRASE})", words):
        return any(matching(scene, found[1])) and any(matching(scene, found[2]))
    if found := re.fullmatch(rf"({NOUN_PHRASE}) ({'|'.join(GROUND_PHRASES.values())})", words):
        return any(matching(scene, found[1])) and found[2] == GROUND_PHRASES[scene.ground]
    found = re.fullmatch(rf"({NOUN_PHRASE}){CLAIM}(?: that{CLAIM})?", words)
    assert found, f"no sentence of ours: {text!r}"
    first, relation, second, further, third = found.groups()
    return any(
        holds(relation, a, b) and (further is None or any(holds(further, b, c) for c in matching(scene, third)))
        for a in matching(scene, first)
        for b in matching(scene, second)
    )
