"""Captions that are true of a scene, in lower-case words without punctuation.

Each tells less than the scene graph, so that many are true of other scenes too. All claims are of the kind "there is",
but for numbers: "two balls" means exactly two.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from roibeam.pipelines.toyworld.randomness import IntegerStream, Weights
from roibeam.pipelines.toyworld.scene import Relation, Scene, SceneObject
from roibeam.pipelines.toyworld.world import COLOURS, PATTERNS

CAPTIONS_PER_SCENE = 5
MIN_VISIBLE = 450  # Permille; a caption names nothing that is hidden more.
PLURALS = {"fish": "fish", "box": "boxes"}
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
GROUND_PHRASES = {
    "grass": "on the grass",
    "sand": "on the sand",
    "water": "on the water",
    "tiles": "on the tiles",
    "wood": "on the wooden floor",
    "bricks": "on the brick wall",
}
# Phrases of a relation from its subject, and from its target.
RELATION_PHRASES = {
    "left of": ("to the left of", "to the right of"),
    "above": ("above", "below"),
    "inside": ("inside", "around"),
    "in front of": ("in front of", "behind"),
    "larger than": ("larger than", "smaller than"),
}
OPENINGS, OPENING_WEIGHTS = ("", "there is ", "a picture of "), (70, 18, 12)
KINDS = {"relation": 42, "two relations": 14, "pair": 13, "ground": 13, "number": 12, "one": 6}
RELATION_WEIGHTS = {"left of": 4, "above": 4, "inside": 12, "in front of": 8, "larger than": 1}
# In percent: a relation from its target; "is" before it; a colour named; another attribute named.
REVERSE_CHANCE, VERB_CHANCE, COLOUR_CHANCE, OTHER_CHANCE = 40, 35, 78, 42
_PURPOSE = 3
_TRIES = 30
_KIND_NAMES = tuple(KINDS)
_KIND_WEIGHTS, _OPENING_WEIGHTS = Weights(tuple(KINDS.values())), Weights(OPENING_WEIGHTS)


@dataclass(frozen=True)
class SceneCaption:
    """Text with its `kind`, the sentence's pattern, and `objects`, numbers of the objects in the order of its words."""

    text: str
    kind: str
    objects: tuple[int, ...]


def write_captions(scene: Scene, relations: tuple[Relation, ...]) -> tuple[SceneCaption, ...]:
    """Returns up to five different captions, at least one."""
    writer = _Writer(scene, relations)
    captions: dict[str, SceneCaption] = {}
    tries = 0
    while len(captions) < CAPTIONS_PER_SCENE and (tries < _TRIES or not captions):
        tries += 1
        caption = writer.write()
        if caption is not None:
            captions.setdefault(caption.text, caption)
    return tuple(captions.values())


class _Writer:
    def __init__(self, scene: Scene, relations: tuple[Relation, ...]) -> None:
        self._stream = IntegerStream(scene.seed, _PURPOSE, scene.index)
        self._scene = scene
        self._clear = clear_objects(scene)
        numbers = {thing.number for thing in self._clear}
        self._relations = [r for r in relations if r.subject in numbers and r.target in numbers]
        self._weights = Weights([RELATION_WEIGHTS[relation.name] for relation in self._relations])
        self._groups = countable_groups(scene)

    def write(self) -> SceneCaption | None:
        """Returns one caption, or None if the kind that was drawn does not fit the scene."""
        kind = _KIND_NAMES[self._stream.weighted(_KIND_WEIGHTS)]
        opening = OPENINGS[self._stream.weighted(_OPENING_WEIGHTS)]
        if kind == "number":
            if not self._groups:
                return None
            colour, category, numbers = self._stream.pick(self._groups)
            words = [NUMBERS[len(numbers)], colour, plural(category)]
            return SceneCaption(plural_opening(opening) + " ".join(word for word in words if word), "number", numbers)
        things = [self._stream.pick(self._clear)]
        text = self._noun_phrase(things[0])
        if kind == "relation" or kind == "two relations":
            if not self._relations:
                return None
            relation = self._relations[self._stream.weighted(self._weights)]
            text, things = self._related(relation, verb=kind == "relation" and not opening)
            if kind == "two relations":
                first, second = (thing.number for thing in things)
                further = [r for r in self._relations if r.subject == second and r.target != first]
                if not further:
                    return None
                last = self._stream.pick(further)
                things.append(self._scene.objects[last.target])
                text += f" that is {RELATION_PHRASES[last.name][0]} {self._noun_phrase(things[-1])}"
        elif kind == "pair":
            others = [thing for thing in self._clear if thing.category != things[0].category]
            if not others:
                return None
            things.append(self._stream.pick(others))
            text += f" and {self._noun_phrase(things[1])}"
        elif kind == "ground":
            text += f" {GROUND_PHRASES[self._scene.ground]}"
        return SceneCaption(opening + text, kind, tuple(thing.number for thing in things))

    def _related(self, relation: Relation, *, verb: bool) -> tuple[str, list[SceneObject]]:
        ends = [self._scene.objects[relation.subject], self._scene.objects[relation.target]]
        forth, back = RELATION_PHRASES[relation.name]
        reverse = self._stream.percent(REVERSE_CHANCE)
        if reverse:
            ends.reverse()
        words = (" is " if verb and self._stream.percent(VERB_CHANCE) else " ") + (back if reverse else forth)
        return f"{self._noun_phrase(ends[0])}{words} {self._noun_phrase(ends[1])}", ends

    def _noun_phrase(self, thing: SceneObject) -> str:
        chosen = [name for name in thing.attributes if self._stream.percent(attribute_chance(name))]
        return noun_phrase(chosen, thing.category)


def clear_objects(scene: Scene) -> list[SceneObject]:
    """Returns the objects that a caption may name."""
    return [thing for thing in scene.objects if thing.visible >= MIN_VISIBLE]


def attribute_chance(name: str) -> int:
    """Probability that a caption names an attribute of a thing, in percent."""
    return COLOUR_CHANCE if name in COLOURS else OTHER_CHANCE


def noun_phrase(attributes: Sequence[str], category: str) -> str:
    """Article, attributes (size, state, pattern, colour in this order, however they are given), category."""
    ordered = sorted(
        attributes, key=lambda name: (name in COLOURS, name in PATTERNS, name not in ("small", "large"), name)
    )
    words = " ".join([*ordered, category])
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def plural_opening(opening: str) -> str:
    """Returns the form of an opening before a number."""
    return opening.replace("there is", "there are")


def plural(category: str) -> str:
    return PLURALS.get(category, category + "s")


def countable_groups(scene: Scene) -> list[tuple[str, str, tuple[int, ...]]]:
    """(colour or "", category, numbers) of groups of two to six objects, all of them visible."""
    groups: list[tuple[str, str, tuple[int, ...]]] = []
    for key, count in Counter(
        key for thing in scene.objects for key in (("", thing.category), (thing.colour, thing.category))
    ).items():
        if count in NUMBERS:
            members = [t for t in scene.objects if t.category == key[1] and key[0] in ("", t.colour)]
            if all(thing.visible >= MIN_VISIBLE for thing in members):
                groups.append((*key, tuple(thing.number for thing in members)))
    return groups
