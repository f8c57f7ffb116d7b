"""Truth of captions in scenes of the toy world: a caption states little, so it is true of many.

`parse_caption` reads a sentence back as a claim, and the claim is held against a `KnownScene`, which is indexed once:

    claim = parse_caption("a red ball to the left of a box")
    claim.is_true_of(KnownScene(picture.scene, picture.relations))

A caption is true if `captions` may write it of a scene. "A" means "there is": more may be there. Only objects that a
caption may name count, and the things a sentence names are different objects. Relations are those of the scene's own
list. "Two balls" means exactly two in the whole scene, both of them clear enough to be named: a third one, half hidden,
makes it false.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cache

from roibeam.pipelines.toyworld.captions import (
    GROUND_PHRASES,
    NUMBERS,
    OPENINGS,
    RELATION_PHRASES,
    clear_objects,
    countable_groups,
    noun_phrase,
    plural,
    plural_opening,
)
from roibeam.pipelines.toyworld.scene import Relation, Scene
from roibeam.pipelines.toyworld.world import ATTRIBUTES, CATEGORIES, COLOURS, PATTERNS


class KnownScene:
    """Facts of a scene that captions can state, indexed for quick queries.

    Args:
        relations: all that hold, as `relations.find_relations` gives them or scenes.jsonl holds them.
    """

    def __init__(self, scene: Scene, relations: tuple[Relation, ...]) -> None:
        self.ground = scene.ground
        self.relations = frozenset((relation.subject, relation.name, relation.target) for relation in relations)
        self.counts = {(colour, name): len(members) for colour, name, members in countable_groups(scene)}
        self._by_category: dict[str, list[tuple[int, frozenset[str]]]] = defaultdict(list)
        for thing in clear_objects(scene):
            self._by_category[thing.category].append((thing.number, frozenset(thing.attributes)))

    def matching(self, noun: Noun) -> list[int]:
        """Returns the numbers of the objects that a noun can mean."""
        things = self._by_category.get(noun.category, ())
        return [number for number, attributes in things if noun.attributes <= attributes]


@dataclass(frozen=True)
class Noun:
    """A thing as a sentence names it; `attributes` may be fewer than it has."""

    category: str
    attributes: frozenset[str]


@dataclass(frozen=True)
class Existence:
    """Claim that there are different objects, one for each noun, between which all relations hold.

    Attributes:
        relations: names are of `world.RELATIONS`; `subject` and `target` are places in `nouns`.
        ground: of the scene, None if the sentence does not name it.
    """

    nouns: tuple[Noun, ...]
    relations: tuple[Relation, ...] = ()
    ground: str | None = None

    def is_true_of(self, known: KnownScene) -> bool:
        if self.ground not in (None, known.ground):
            return False
        choices = []
        for noun in self.nouns:
            choices.append(known.matching(noun))
            if not choices[-1]:
                return False
        return self.can_be_met(choices, known.relations)

    def can_be_met(
        self, choices: list[list[int]], relations: Set[tuple[int, str, int]], chosen: tuple[int, ...] = ()
    ) -> bool:
        """Whether different things of the `choices` of each noun, the first of them `chosen`, have the relations."""
        if len(chosen) == len(choices):
            return all((chosen[r.subject], r.name, chosen[r.target]) in relations for r in self.relations)
        return any(
            self.can_be_met(choices, relations, (*chosen, number))
            for number in choices[len(chosen)]
            if number not in chosen
        )


@dataclass(frozen=True)
class Number:
    """Claim that there are exactly `count` objects of a category and colour ("" for any), all of them clear."""

    count: int
    colour: str
    category: str

    def is_true_of(self, known: KnownScene) -> bool:
        return known.counts.get((self.colour, self.category)) == self.count


Claim = Existence | Number


def _any_of(words: Sequence[str]) -> str:
    return f"(?:{'|'.join(words)})"


_COUNTS = {word: count for count, word in NUMBERS.items()}
_SINGULARS = {plural(category): category for category in CATEGORIES}
_GROUNDS = {phrase: ground for ground, phrase in GROUND_PHRASES.items()}
# Relation of each phrase, and whether it is from the target.
_PHRASES = {phrase: (name, way == 1) for name, both in RELATION_PHRASES.items() for way, phrase in enumerate(both)}
_NOUN = rf"an? (?:{_any_of(ATTRIBUTES)} )*{_any_of(tuple(CATEGORIES))}"
_PHRASE = _any_of(tuple(_PHRASES))
_SENTENCE = re.compile(
    rf"(?P<opening>{_any_of(OPENINGS[1:])})?(?P<first>{_NOUN})"
    rf"(?: (?P<ground>{_any_of(tuple(_GROUNDS))})| and (?P<other>{_NOUN})"
    rf"|(?P<verb> is)? (?P<phrase>{_PHRASE}) (?P<second>{_NOUN})"
    rf"(?: that is (?P<further>{_PHRASE}) (?P<third>{_NOUN}))?)?"
)
_NUMBER_SENTENCE = re.compile(
    rf"{_any_of([plural_opening(opening) for opening in OPENINGS[1:]])}?"
    rf"(?P<count>{_any_of(tuple(_COUNTS))}) (?:(?P<colour>{_any_of(tuple(COLOURS))}) )?"
    rf"(?P<plural>{_any_of(tuple(_SINGULARS))})"
)
# Groups of attributes of which an object has at most one.
_EXCLUSIVE = (frozenset(COLOURS), frozenset(PATTERNS), frozenset(("small", "large")))


def parse_caption(text: str) -> Claim:
    """Parses a caption into its claim, whatever its opening.

    A little more is read than `captions` writes: both ends of a pair may be of one category, and "that is" may be
    followed by a phrase from the target ("that is below"). Raises ValueError if the text is no sentence of the toy
    world."""
    if found := _NUMBER_SENTENCE.fullmatch(text):
        return Number(_COUNTS[found["count"]], found["colour"] or "", _SINGULARS[found["plural"]])
    found = _SENTENCE.fullmatch(text)
    # "is" makes a whole sentence, which nothing opens or goes on from.
    if found is None or (found["verb"] and (found["opening"] or found["further"])):
        raise ValueError(
            f"caption {text!r} is no sentence of the toy world; expected one such as 'a red ball to the left of a "
            "box', 'there is an orange fish on the sand' or 'two hats' (pipelines/toyworld/captions.py)"
        )
    phrases = [found[name] for name in ("first", "other", "second", "third") if found[name]]
    relations = [
        _relation(found[name], place) for place, name in enumerate(("phrase", "further")) if found[name] is not None
    ]
    ground = _GROUNDS[found["ground"]] if found["ground"] else None
    return Existence(tuple(_noun(phrase) for phrase in phrases), tuple(relations), ground)


def _relation(phrase: str, place: int) -> Relation:
    """Returns the relation of a phrase between the nouns `place` and the next."""
    name, reverse = _PHRASES[phrase]
    return Relation(place + 1, name, place) if reverse else Relation(place, name, place + 1)


@cache
def _noun(phrase: str) -> Noun:
    _, *attributes, category = phrase.split(" ")
    names = frozenset(attributes)
    wanted = noun_phrase(tuple(names), category)
    if phrase != wanted:
        raise ValueError(f"caption says {phrase!r}, in the toy world that is {wanted!r}")
    for some in _EXCLUSIVE:
        if len(names & some) > 1:
            raise ValueError(f"caption says {phrase!r}: no object is both {' and '.join(sorted(names & some))}")
    return Noun(category, names)


def truthful_recall(counts_true: Sequence[int], at: int) -> float:
    """Expected recall of a search that knows only which captions are true of which scenes, 0 to 1.

    It puts the scenes that a caption is true of first, in an order drawn by lot, and one of them is the right one. A
    search may do better by guessing which of several scenes the writer would rather choose.

    Args:
        counts_true: for each caption, of how many of the candidates it is true; 1 or more.
        at: how many places of the ranking count.
    """
    return sum(min(1.0, at / count) for count in counts_true) / len(counts_true)
