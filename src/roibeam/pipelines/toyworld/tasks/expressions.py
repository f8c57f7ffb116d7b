"""Expressions that mean one thing of a picture, and only by its relation to another: "red ball inside the hoop".

No word says where in the picture something is, as RefCOCO+ forbids it. Without the relation several things could be
meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.scene import SceneObject
from roibeam.pipelines.toyworld.tasks.known_picture import Description, KnownPicture, shuffled

# What one sees where things meet, and what one sees by comparing: the splits testA and testB.
MEETING = ("in front of", "behind", "inside", "around")
COMPARING = ("larger than", "smaller than")
MOST_SENTENCES = 3


@dataclass(frozen=True)
class Expression:
    """Attributes:
    phrase: of `MEETING` or `COMPARING`.
    named: numbers of the things that the words before the phrase could mean; two or more. The one thing that the
        words behind the phrase mean is none of them.
    """

    text: str
    phrase: str
    named: tuple[int, ...]


@dataclass(frozen=True)
class Reference:
    """A thing and what is said of it; all with phrases of one group."""

    thing: SceneObject
    expressions: tuple[Expression, ...]

    @property
    def is_meeting(self) -> bool:
        return self.expressions[0].phrase in MEETING


def refer(known: KnownPicture, stream: IntegerStream) -> Iterator[Reference]:
    """One for each thing of a picture of which something can be said."""
    links = shuffled(known.clear_links((*MEETING, *COMPARING)), stream)
    for thing in known.clear:
        own = [link for link in links if link[0] is thing]
        for group in (MEETING, COMPARING):
            found: dict[str, Expression] = {}
            for _, phrase, other in own:
                expression = _expression(known, thing, phrase, other, stream) if phrase in group else None
                if expression is not None and len(found) < MOST_SENTENCES:
                    found.setdefault(expression.text, expression)
            if found:
                yield Reference(thing, tuple(found.values()))
                break


def _expression(
    known: KnownPicture, thing: SceneObject, phrase: str, other: SceneObject, stream: IntegerStream
) -> Expression | None:
    names = shuffled(thing.attributes, stream)
    ways = shuffled(
        [
            Description(thing.category),
            *(Description(thing.category, (name,)) for name in names),
            *(Description("", (name,)) for name in names),
        ],
        stream,
    )
    others = [Description(other.category), *(Description(other.category, (name,)) for name in other.attributes)]
    for way in ways:
        named = known.meant(way)
        if len(named) < 2 or any(each.ignored for each in named):
            continue
        for described in others:
            meant = known.meant(described)
            rivals = [each for each in named if any(each is not other for other in meant)]
            if len(rivals) > 1 and _means_only(known, thing, named, phrase, meant):
                numbers = tuple(each.number for each in rivals)
                return Expression(f"{way.words} {phrase} the {described.words}", phrase, numbers)
    return None


def _means_only(
    known: KnownPicture, thing: SceneObject, named: Sequence[SceneObject], phrase: str, others: Sequence[SceneObject]
) -> bool:
    """Whether of the things named only this one can stand in the relation to one of the others."""
    if any(each.ignored for each in others):
        return False
    return not any(
        known.could_hold(each, phrase, other)
        for each in named
        if each is not thing
        for other in others
        if other is not each
    )
