"""Questions about a picture in the manner of VQA v2, six kinds of them, each with the answer of the scene graph.

One of each kind where the picture has something to ask about. Questions that say yes and no, none and some, come about
equally often, so that less can be guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roibeam.pipelines.toyworld.captions import RELATION_PHRASES, RELATION_WEIGHTS
from roibeam.pipelines.toyworld.randomness import IntegerStream, Weights
from roibeam.pipelines.toyworld.scene import SceneObject
from roibeam.pipelines.toyworld.tasks.blind_reader import Keys
from roibeam.pipelines.toyworld.tasks.known_picture import INVERSE, Description, KnownPicture, pattern_of
from roibeam.pipelines.toyworld.world import CATEGORIES, COLOURS, PATTERNS

YES, NO, NO_PATTERN = "yes", "no", "none"
# Kind -> what VQA's annotations call it (question_type, answer_type).
TYPES = {
    "kind": ("what is the", "other"),
    "colour": ("what color is the", "other"),
    "pattern": ("what", "other"),
    "count": ("how many", "number"),
    "existence": ("is there a", "yes/no"),
    "relation": ("is the", "yes/no"),
}
_PHRASES = tuple(INVERSE)
_PATTERNED_CHANCE, _NONE_CHANCE, _SEVERAL_CHANCE = 75, 20, 70


@dataclass(frozen=True)
class Question:
    """Attributes:
    kind: of `TYPES`.
    answer: as the scene graph has it.
    keys: what a reader without the picture can go by, see `blind_reader`.
    """

    kind: str
    text: str
    answer: str
    keys: Keys


def ask(known: KnownPicture, stream: IntegerStream, elsewhere: Sequence[SceneObject]) -> list[Question]:
    """The questions about a picture.

    Args:
        elsewhere: things of other pictures, to ask about what is not there.
    """
    found = [
        _kind(known, stream),
        _colour(known, stream),
        _pattern(known, stream),
        _count(known, stream, elsewhere),
        _existence(known, stream, elsewhere),
        _relation(known, stream),
    ]
    return [question for question in found if question is not None]


def _question(kind: str, text: str, answer: str, *about: str) -> Question:
    keys = [(kind,), *((kind, *about[: count + 1]) for count in range(len(about))), (kind, text)]
    return Question(kind, text, answer, keys)


def _kind(known: KnownPicture, stream: IntegerStream) -> Question | None:
    """What stands somewhere, or has an attribute that nothing else there has."""
    if stream.percent(40):
        single = [
            (thing, name)
            for thing in known.clear
            for name in thing.attributes
            if len(known.meant(Description("", (name,)))) == 1
        ]
        if single:
            thing, name = stream.pick(single)
            return _question("kind", f"What is the {name} thing?", thing.category, name)
    links = known.clear_links(_PHRASES)
    alone = [
        (first, phrase, second)
        for first, phrase, second in links
        if sum(known.could_hold(other, phrase, second) for other in known.seen if other is not second) == 1
    ]
    if not alone:
        return None
    first, phrase, second = stream.pick(alone)
    named = known.name(second, stream)
    if named is None:
        return None
    return _question("kind", f"What is {phrase} the {named.words}?", first.category, phrase, second.category)


def _colour(known: KnownPicture, stream: IntegerStream) -> Question | None:
    thing = stream.pick(known.clear)
    named = known.name(thing, stream, without=tuple(COLOURS))
    if named is None:
        return None
    return _question("colour", f"What color is the {named.words}?", thing.colour, thing.category)


def _pattern(known: KnownPicture, stream: IntegerStream) -> Question | None:
    able = [thing for thing in known.clear if CATEGORIES[thing.category].patterns]
    patterned = [thing for thing in able if pattern_of(thing)]
    if patterned and stream.percent(_PATTERNED_CHANCE):
        able = patterned
    if not able:
        return None
    thing = stream.pick(able)
    named = known.name(thing, stream, without=PATTERNS)
    if named is None:
        return None
    answer = pattern_of(thing) or NO_PATTERN
    return _question("pattern", f"What pattern is on the {named.words}?", answer, thing.category)


def _count(known: KnownPicture, stream: IntegerStream, elsewhere: Sequence[SceneObject]) -> Question | None:
    """Of a category, of a category and colour, or of a colour. None is asked of what could well be there."""
    if elsewhere and stream.percent(_NONE_CHANCE):
        near, far = stream.pick(known.clear), stream.pick(elsewhere)
        asked = Description(near.category, (far.colour,)) if stream.percent(60) else Description(far.category)
        if known.meant(asked):
            return None
    else:
        choices = [
            Description(category, colours)
            for thing in known.clear
            for category, colours in (
                (thing.category, ()),
                (thing.category, (thing.colour,)),
                ("", (thing.colour,)),
            )
        ]
        several = [each for each in choices if len(known.meant(each)) > 1]
        asked = stream.pick(several if several and stream.percent(_SEVERAL_CHANCE) else choices)
        if not all(map(known.is_clear, known.meant(asked))):
            return None
    text = f"How many {asked.plural} are there?"
    return _question("count", text, str(len(known.meant(asked))), asked.category, *asked.attributes)


def _existence(known: KnownPicture, stream: IntegerStream, elsewhere: Sequence[SceneObject]) -> Question | None:
    """What is not there is a thing of another picture, or one that is there with an attribute that it has not."""
    if stream.percent(50):
        thing = stream.pick(known.clear)
        asked, answer = Description(thing.category, (stream.pick(thing.attributes),)), YES
    else:
        here = {thing.category for thing in known.things}
        near = [thing for thing in elsewhere if thing.category in here]
        missing = [
            description
            for thing in (near if near and stream.percent(50) else elsewhere)
            for description in (Description(thing.category, (name,)) for name in thing.attributes)
            if not known.meant(description)
        ]
        if not missing:
            return None
        asked, answer = stream.pick(missing), NO
    return _question("existence", f"Is there {asked.indefinite}?", answer, asked.category, *asked.attributes)


def _relation(known: KnownPicture, stream: IntegerStream) -> Question | None:
    links = known.clear_links(_PHRASES)
    if not links:
        return None
    weights = Weights([_LINK_WEIGHTS[phrase] for _, phrase, _ in links])
    first, phrase, second = links[stream.weighted(weights)]
    one, other = known.name(first, stream), known.name(second, stream)
    if one is None or other is None:
        return None
    asked, answer = (phrase, YES) if stream.percent(50) else (INVERSE[phrase], NO)
    text = f"Is the {one.words} {asked} the {other.words}?"
    return _question("relation", text, answer, asked, one.category, other.category)


_LINK_WEIGHTS = {phrase: RELATION_WEIGHTS[name] for name, both in RELATION_PHRASES.items() for phrase in both}
