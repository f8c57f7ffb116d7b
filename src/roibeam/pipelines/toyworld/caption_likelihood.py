"""Likelihood of a text as a caption of a scene: exact, since the writer of captions is known.

    KnownWays([(scene, relations)]).likelihood("a red ball to the left of a box")

A caption is likely where it is true and where there is little else to say. The likelihood is the sum over all ways in
which the writer can come to this text: kind of sentence, things, relations, opening, verb, attributes. A kind that has
nothing to say of a scene is drawn anew, so the ways' chances are divided by their sum.

This holds for the first caption of a scene. The writer then goes on until it has a text that differs. So the second
caption, if there is one, is t with the likelihood of t divided by 1 less that of the first.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from roibeam.pipelines.toyworld.captions import (
    GROUND_PHRASES,
    KINDS,
    NUMBERS,
    OPENING_WEIGHTS,
    OPENINGS,
    RELATION_PHRASES,
    RELATION_WEIGHTS,
    REVERSE_CHANCE,
    VERB_CHANCE,
    attribute_chance,
    clear_objects,
    countable_groups,
    plural_opening,
)
from roibeam.pipelines.toyworld.scene import Relation, Scene, SceneObject
from roibeam.pipelines.toyworld.truth import Noun, Number, parse_caption
from roibeam.pipelines.toyworld.world import ATTRIBUTES

_BITS = {name: 1 << place for place, name in enumerate(ATTRIBUTES)}
_REVERSE = (1 - REVERSE_CHANCE / 100, REVERSE_CHANCE / 100)
_MOST_NOUNS = 3


class Way(NamedTuple):
    """One choice of kind, things and relations.

    Attributes:
        frame: the sentence without opening, verb, articles and attributes: "ball to the left of box".
        objects: numbers of the things named, in the order of the words; none where things are counted.
        chance: of this choice among all that the writer can make of the scene, 0 to 1.
    """

    frame: str
    objects: tuple[int, ...]
    chance: float


def ways_to_write(scene: Scene, relations: Iterable[Relation]) -> list[Way]:
    """Returns the writer's choices for a first caption, up to opening, verb and attributes; the chances sum to 1."""
    clear = clear_objects(scene)
    names = [thing.category for thing in scene.objects]
    ways = [Way(names[thing.number], (thing.number,), KINDS["one"] / len(clear)) for thing in clear]
    ground = GROUND_PHRASES[scene.ground]
    ways += [Way(f"{way.frame} {ground}", way.objects, KINDS["ground"] / len(clear)) for way in list(ways)]
    for first in clear:
        others = [thing for thing in clear if thing.category != first.category]
        ways += [
            Way(
                f"{first.category} and {other.category}",
                (first.number, other.number),
                KINDS["pair"] / len(clear) / len(others),
            )
            for other in others
        ]
    groups = countable_groups(scene)
    ways += [
        Way(_count_frame(len(numbers), colour, category), (), KINDS["number"] / len(groups))
        for colour, category, numbers in groups
    ]
    numbers = {thing.number for thing in clear}
    ways += _related(names, [one for one in relations if one.subject in numbers and one.target in numbers])
    total = sum(way.chance for way in ways)
    return [Way(frame, objects, chance / total) for frame, objects, chance in ways]


def _related(names: Sequence[str], relations: Sequence[Relation]) -> list[Way]:
    """Returns the ways of the kinds "relation" and "two relations", not yet divided."""
    ways = []
    total = sum(RELATION_WEIGHTS[one.name] for one in relations)
    further: dict[int, list[Relation]] = {}
    for one in relations:
        further.setdefault(one.subject, []).append(one)
    for one in relations:
        for phrase, chance, (first, second) in zip(
            RELATION_PHRASES[one.name], _REVERSE, ((one.subject, one.target), (one.target, one.subject)), strict=True
        ):
            chance *= RELATION_WEIGHTS[one.name] / total
            frame = f"{names[first]} {phrase} {names[second]}"
            ways.append(Way(frame, (first, second), KINDS["relation"] * chance))
            lasts = [last for last in further.get(second, ()) if last.target != first]
            ways += [
                Way(
                    f"{frame} that is {RELATION_PHRASES[last.name][0]} {names[last.target]}",
                    (first, second, last.target),
                    KINDS["two relations"] * chance / len(lasts),
                )
                for last in lasts
            ]
    return ways


def _count_frame(count: int, colour: str, category: str) -> str:
    return f"{NUMBERS[count]} {colour} {category}"


@dataclass(frozen=True)
class Wording:
    """A text as the writer comes to it.

    Attributes:
        frame: as `Way.frame`.
        nouns: with their attributes in the text.
        chance: of its opening and its verb, 0 to 1.
    """

    frame: str
    nouns: tuple[Noun, ...]
    chance: float


def read_wording(text: str) -> Wording:
    """Parses a text into the writer's wording; ValueError if it is no sentence of the toy world."""
    claim = parse_caption(text)
    openings = [opening for opening in OPENINGS if text.startswith((opening, plural_opening(opening)))]
    opening = max(openings, key=len)
    chance = OPENING_WEIGHTS[OPENINGS.index(opening)] / sum(OPENING_WEIGHTS)
    if isinstance(claim, Number):
        return Wording(_count_frame(claim.count, claim.colour, claim.category), (), chance)
    frame = claim.nouns[0].category
    for place, relation in enumerate(claim.relations):
        phrase = RELATION_PHRASES[relation.name][relation.subject > relation.target]
        frame += f"{' that is' * place} {phrase} {claim.nouns[place + 1].category}"
    if not claim.relations and len(claim.nouns) == 2:
        frame += f" and {claim.nouns[1].category}"
    if claim.ground:
        frame += f" {GROUND_PHRASES[claim.ground]}"
    if len(claim.relations) == 1 and not opening:
        share = VERB_CHANCE / 100
        chance *= share if " is " in text else 1 - share
    return Wording(frame, claim.nouns, chance)


class Rows(NamedTuple):
    """All ways of one frame in W scenes: `scenes` (W,) places, `chances` (W,), `objects` (W, nouns) rows of tables."""

    scenes: np.ndarray
    chances: np.ndarray
    objects: np.ndarray


class KnownWays:
    """Ways to write of many scenes, indexed for quick queries of one text."""

    def __init__(self, scenes: Iterable[tuple[Scene, Iterable[Relation]]]) -> None:
        frames: dict[str, int] = {}
        of_frame, of_scene, chances, objects = array("i"), array("i"), array("d"), array("i")
        masks, silences = array("i"), array("d")
        self.num_scenes = 0
        for scene, relations in scenes:
            start = len(masks)
            for frame, numbers, chance in ways_to_write(scene, relations):
                of_frame.append(frames.setdefault(frame, len(frames)))
                of_scene.append(self.num_scenes)
                chances.append(chance)
                objects.extend([*(start + number for number in numbers), *[-1] * (_MOST_NOUNS - len(numbers))])
            for thing in scene.objects:
                masks.append(attribute_bits(thing.attributes))
                silences.append(prod(1 - attribute_chance(name) / 100 for name in thing.attributes))
            self.num_scenes += 1
        order = np.argsort(np.asarray(of_frame), kind="stable")
        self._frames = frames
        self._starts = np.searchsorted(np.asarray(of_frame)[order], np.arange(len(frames) + 1))
        self._scenes, self._chances = np.asarray(of_scene)[order], np.asarray(chances)[order]
        self._objects = np.asarray(objects).reshape(-1, _MOST_NOUNS)[order]
        self._masks, self._silences = np.asarray(masks), np.asarray(silences)

    def rows(self, wording: Wording) -> Rows:
        number = self._frames.get(wording.frame)
        part = slice(0) if number is None else slice(self._starts[number], self._starts[number + 1])
        return Rows(self._scenes[part], self._chances[part], self._objects[part, : len(wording.nouns)])

    def noun_chances(self, attributes: frozenset[str], objects: np.ndarray) -> np.ndarray:
        """Probability that each of some things is named with just these attributes, 0 to 1, whatever its category.

        Args:
            objects: (N,) rows of the table of all things of all scenes.
        """
        bits = attribute_bits(attributes)
        odds = prod(attribute_chance(name) / (100 - attribute_chance(name)) for name in attributes)
        found: np.ndarray = np.where(self._masks[objects] & bits == bits, self._silences[objects] * odds, 0.0)
        return found

    def likelihood(self, text: str) -> np.ndarray:
        """(scenes,) float64 probability that the first caption of each scene is `text`; raises as `read_wording`."""
        wording = read_wording(text)
        scenes, chances, objects = self.rows(wording)
        for place, noun in enumerate(wording.nouns):
            chances = chances * self.noun_chances(noun.attributes, objects[:, place])
        return wording.chance * np.bincount(scenes, chances, self.num_scenes)


def noun_chance(noun: Noun, thing: SceneObject) -> float:
    """Probability that the writer, once it names a thing, uses these words."""
    if noun.category != thing.category or not noun.attributes <= set(thing.attributes):
        return 0.0
    shares = ((name in noun.attributes, attribute_chance(name) / 100) for name in thing.attributes)
    return prod(share if is_named else 1 - share for is_named, share in shares)


def attribute_bits(attributes: Iterable[str]) -> int:
    return sum(_BITS[name] for name in attributes)
