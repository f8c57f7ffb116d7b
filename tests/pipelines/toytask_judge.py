"""An independent reading of the toy tasks' texts: from words to what the scene graph says. Who can read and see."""

from collections.abc import Sequence
from typing import Any

from roibeam.pipelines.toyworld import world
from roibeam.pipelines.toyworld.captions import NUMBERS, PLURALS, RELATION_PHRASES
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.scene import SceneObject

PHRASES = {phrase: (name, way) for name, both in RELATION_PHRASES.items() for way, phrase in enumerate(both)}
KINDS = {"thing": None} | {name: name for name in world.CATEGORIES}
PLURAL_KINDS = {PLURALS.get(name, name + "s"): kind for name, kind in KINDS.items()}
COUNTS = {"no": 0, "one": 1} | {word: count for count, word in NUMBERS.items()}


def things(picture: Picture, words: str, kinds: dict[str, str | None] = KINDS) -> list[SceneObject]:
    """Those that "red ball", "the red ball" or "striped thing" may mean."""
    *attributes, kind = words.removeprefix("the ").removeprefix("an ").removeprefix("a ").split()
    assert set(attributes) <= set(world.ATTRIBUTES), words
    return [
        thing
        for thing in picture.scene.objects
        if kinds[kind] in (None, thing.category) and set(attributes) <= set(thing.attributes)
    ]


def the_one(picture: Picture, words: str) -> SceneObject:
    (found,) = things(picture, words)
    return found


def holds(picture: Picture, first: SceneObject, phrase: str, second: SceneObject) -> bool:
    name, way = PHRASES[phrase]
    ends = (second, first) if way else (first, second)
    return any((each.subject, each.name, each.target) == (ends[0].number, name, ends[1].number)
               for each in picture.relations)  # fmt: skip


def split_at_phrase(words: str) -> tuple[str, str, str] | None:
    """ "red ball above the box" -> its three parts."""
    for phrase in PHRASES:
        before, found, after = f" {words} ".partition(f" {phrase} ")
        if found:
            return before.strip(), phrase, after.strip()
    return None


def answer(picture: Picture, question: str) -> str:
    """Of VQA."""
    words = question.removesuffix("?")
    if words.startswith("How many "):
        return str(len(things(picture, words[9:].removesuffix(" are there"), PLURAL_KINDS)))
    if words.startswith("What color is "):
        return the_one(picture, words[14:]).attributes[0]
    if words.startswith("What pattern is on "):
        thing = the_one(picture, words[19:])
        return next((name for name in thing.attributes if name in world.PATTERNS), "none")
    if words.startswith("Is there "):
        return "yes" if things(picture, words[9:]) else "no"
    parts = split_at_phrase(words)
    if parts is None:
        return the_one(picture, words.removeprefix("What is ")).category
    before, phrase, after = parts
    second = the_one(picture, after)
    if before == "What is":
        (found,) = [thing for thing in picture.scene.objects if holds(picture, thing, phrase, second)]
        return found.category
    first = the_one(picture, before.removeprefix("Is "))
    forth, back = RELATION_PHRASES[PHRASES[phrase][0]]
    other = back if phrase == forth else forth
    assert holds(picture, first, phrase, second) is not holds(picture, first, other, second), question
    return "yes" if holds(picture, first, phrase, second) else "no"


def meant(picture: Picture, expression: str) -> SceneObject:
    """Of RefCOCO+; without the relation there is a choice."""
    parts = split_at_phrase(expression)
    assert parts is not None, expression
    before, phrase, after = parts
    rivals = things(picture, before)
    assert len(rivals) > 1, expression
    others = things(picture, after)
    (found,) = [thing for thing in rivals if any(holds(picture, thing, phrase, other) for other in others)]
    return found


def shows(picture: Picture, words: str) -> bool:
    parts = split_at_phrase(words)
    if parts is None:
        return bool(things(picture, words))
    before, phrase, after = parts
    others = things(picture, after)
    return any(holds(picture, one, phrase, other) for one in things(picture, before) for other in others)


def is_true(left: Picture, right: Picture, statement: str) -> bool:
    """Of NLVR2."""
    words = statement.removesuffix(".")
    sides = {"left": left, "right": right}
    for opening, judge in (
        ("Both images show ", lambda one, other: one and other),
        ("Only one of the images shows ", lambda one, other: one is not other),
        ("At least one of the images shows ", lambda one, other: one or other),
        ("Only the left image shows ", lambda one, other: one and not other),
    ):
        if words.startswith(opening):
            return bool(judge(*(shows(side, words.removeprefix(opening)) for side in (left, right))))
    if words.startswith("There "):
        _, _, number, *rest = words.removesuffix(" in the two images together").split()
        kinds = KINDS if number == "one" else PLURAL_KINDS
        return COUNTS[number] == sum(len(things(side, " ".join(rest), kinds)) for side in (left, right))
    _, name, _, _, *rest = words.split()
    if rest[0] == "more" or " more " in words:
        what = words.partition(" more ")[2].partition(" than the ")[0]
        counts = {side: len(things(picture, what, PLURAL_KINDS)) for side, picture in sides.items()}
        other = "right" if name == "left" else "left"
        assert words.endswith(f"than the {other} image")
        return counts[name] > counts[other]
    return shows(sides[name], words.removeprefix(f"The {name} image shows "))


def true_choices(picture: Picture, question: Sequence[Any], choices: Sequence[Sequence[Any]]) -> list[bool]:
    """Of VCR: which answers to a question are true; for rationales, `question` is empty."""
    return [_is_true_choice(picture, list(question), list(choice)) for choice in choices]


def _is_true_choice(picture: Picture, question: list[Any], choice: list[Any]) -> bool:
    objects = picture.scene.objects
    if choice[:2] == ["It", "is"]:
        (number,) = choice[2]
        if question[0] == "Which":
            return set(question[3:-2]) <= set(objects[number].attributes)
        *phrase, (other,), _ = question[2:]
        return holds(picture, objects[number], " ".join(phrase), objects[other])
    (first,), _, *rest, _ = choice
    place = rest.index("and")
    one, other = rest[:place], rest[place + 1 :]
    if isinstance(one[-1], list):  # two relations of one thing
        return all(holds(picture, objects[first], " ".join(said[:-1]), objects[said[-1][0]]) for said in (one, other))
    return objects[first].colour == one[0] and objects[other[0][0]].colour == other[2]
