"""Questions about a picture in the manner of VCR: four answers and four rationales, of which one is right.

Wrong choices are hard: they name things of the same picture, and say of them what is true of others there. What a
choice says twice, such as two colours, comes right and wrong in all four combinations, so that no choice stands in the
middle of the others. Things are named by their numbers in the scene. A larger number lies upon a smaller one, so no
choice lets this tell what is in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roibeam.pipelines.toyworld.captions import noun_phrase
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.scene import SceneObject
from roibeam.pipelines.toyworld.tasks.blind_reader import Keys
from roibeam.pipelines.toyworld.tasks.known_picture import INVERSE, Description, KnownPicture, colours_of, shuffled
from roibeam.pipelines.toyworld.world import COLOURS

Tokens = tuple[str | list[int], ...]  # as VCR writes a text: words, and the numbers of the things that are meant
CHOICES = 4
_SIDES = ("to the left of", "to the right of", "above", "below")
_SIZES = ("larger than", "smaller than")  # which a reader without the picture can often guess
_UPON = {"in front of": 1, "behind": -1, "inside": 1, "around": -1}


@dataclass(frozen=True)
class Choice:
    """A text, and the facts that it claims, for a reader without the picture (see `blind_reader`)."""

    tokens: Tokens
    facts: tuple[Keys, ...]


@dataclass(frozen=True)
class VcrRow:
    """A question with its choices; `answer` and `rationale` are the places of the right ones."""

    question: Tokens
    answers: tuple[Choice, ...]
    answer: int
    rationales: tuple[Choice, ...]
    rationale: int


def ask(known: KnownPicture, stream: IntegerStream) -> list[VcrRow]:
    """The questions about a picture: where, twice if there is enough to ask; which; how two differ."""
    found: list[VcrRow] = []
    for make in (_where, _where, _which, _differ):
        row = make(known, stream)
        if row is not None and all(row.question != other.question for other in found):
            found.append(row)
    return found


def _where(known: KnownPicture, stream: IntegerStream) -> VcrRow | None:
    """What stands in a relation to a thing; the rationale says what both look like."""
    for first, phrase, second in shuffled(known.clear_links((*_SIDES, *_UPON)), stream):
        # Of two things of one colour, a choice that says it twice could only be the right one.
        if first.colour == second.colour or sum(known.holds(thing, phrase, second) for thing in known.seen) > 1:
            continue
        side = _UPON.get(phrase)
        others = [
            thing
            for thing in known.clear
            if thing is not first
            and thing is not second
            and not known.could_hold(thing, phrase, second)
            and (side is None or (thing.number - second.number) * side > 0)
        ]
        if len(others) >= CHOICES - 1:
            break
    else:
        return None
    wrong = shuffled(others, stream)[: CHOICES - 1]
    answers = [
        Choice(
            ("It", "is", [thing.number], "."),
            ((("where", phrase), ("where", phrase, thing.category), (phrase, thing.category, second.category)),),
        )
        for thing in (first, *wrong)
    ]
    question: Tokens = ("What", "is", *phrase.split(" "), [second.number], "?")
    return _row(question, answers, _colour_choices(known, first, second, stream), stream)


def _which(known: KnownPicture, stream: IntegerStream) -> VcrRow | None:
    """What has some attributes; the rationale says where it is."""
    thing = stream.pick(known.clear)
    names = shuffled(thing.attributes, stream)[: 1 + stream.below(2)]
    asked = Description("", tuple(names))
    others = [other for other in known.clear if other is not thing]
    if len(known.meant(asked)) != 1 or len(others) < CHOICES - 1:
        return None
    words = noun_phrase(names, "one").split(" ")[1:]
    answers = [
        Choice(
            ("It", "is", [each.number], "."),
            tuple((("which", name), ("which", name, each.category)) for name in names),
        )
        for each in (thing, *shuffled(others, stream)[: CHOICES - 1])
    ]
    return _row(("Which", "is", "the", *words, "?"), answers, _place_choices(known, thing, stream), stream)


def _differ(known: KnownPicture, stream: IntegerStream) -> VcrRow | None:
    """How the colours of two things differ; the rationale says where the first one is."""
    pairs = [(a, b) for a in known.clear for b in known.clear if a is not b and a.colour != b.colour]
    if not pairs:
        return None
    first, second = stream.pick(pairs)
    question: Tokens = ("How", "do", [first.number], "and", [second.number], "differ", "?")
    return _row(question, _colour_choices(known, first, second, stream), _place_choices(known, first, stream), stream)


def _colour_choices(
    known: KnownPicture, first: SceneObject, second: SceneObject, stream: IntegerStream
) -> list[Choice]:
    """Each has its colour or another one; the right choice is the first."""
    taken = {first.colour, second.colour}
    near = shuffled([name for name in colours_of(known.things) if name not in taken], stream)
    near += shuffled([name for name in COLOURS if name not in taken and name not in near], stream)
    return [
        Choice(
            ([first.number], "is", one, "and", [second.number], "is", other, "."),
            tuple(
                (("colour", name), ("colour", name, thing.category)) for name, thing in ((one, first), (other, second))
            ),
        )
        for one in (first.colour, near[0])
        for other in (second.colour, near[1])
    ]


def _place_choices(known: KnownPicture, thing: SceneObject, stream: IntegerStream) -> list[Choice]:
    """Two relations, each said as it is or the other way round; the right choice is the first. Empty if it has none.

    None says what lies upon what: the numbers would tell.
    """
    links = [
        link
        for phrases in (_SIDES, _SIZES)
        for link in shuffled(known.clear_links(phrases), stream)
        if link[0] is thing
    ]
    if len({other.number for _, _, other in links}) < 2:
        return []
    first = links[0]
    second = next(link for link in links if link[2] is not first[2])
    return [
        Choice(
            (
                [thing.number], "is", *one.split(" "), [first[2].number],
                "and", *other.split(" "), [second[2].number], ".",
            ),
            tuple(
                (("place", phrase), ("place", phrase, thing.category), (phrase, thing.category, there.category))
                for phrase, there in ((one, first[2]), (other, second[2]))
            ),
        )
        for one in (first[1], INVERSE[first[1]])
        for other in (second[1], INVERSE[second[1]])
    ]  # fmt: skip


def _row(
    question: Tokens, answers: Sequence[Choice], rationales: Sequence[Choice], stream: IntegerStream
) -> VcrRow | None:
    """Puts the choices, the right one first, in an order drawn by lot."""
    if not rationales:
        return None
    orders = [shuffled(range(CHOICES), stream) for _ in range(2)]
    placed = [
        tuple(choices[place] for place in order) for choices, order in zip((answers, rationales), orders, strict=True)
    ]
    return VcrRow(question, placed[0], orders[0].index(0), placed[1], orders[1].index(0))
