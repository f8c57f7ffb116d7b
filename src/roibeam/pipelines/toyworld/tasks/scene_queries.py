"""Queries of a scene for tasks: the things that a description means, relations that surely hold, splits, blind guesses.

A question must not be disputable. So a description counts all things that it may mean, also hardly visible ones, and a
task names only clear ones. No picture of a validation or test split has a caption that `roibeam pretrain` reads (splits
"train" and "restval"), and none of a task's training split is in another split of any task.

The blind reader has counted the training split. Its guess rests on the text alone, from the most general to the most
special: "how many" -> "how many balls" -> the whole question, each level mixed with the one above (Dirichlet
smoothing).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log
from pathlib import Path
from typing import ClassVar, TypeVar

from roibeam.pipelines.toyworld.captions import RELATION_PHRASES, clear_objects, noun_phrase, plural
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.scene import SceneObject
from roibeam.pipelines.toyworld.world import COLOURS, PATTERNS

COCO_TRAIN, COCO_VAL, COCO_TEST = ("coco/train",), ("coco/val",), ("coco/test",)
# Two pictures make a statement, so that NLVR2 needs more of them.
OTHER_TRAIN = ("conceptual_captions/train", "flickr30k/train", "sbu/train")
OTHER_VAL = ("flickr30k/val", "visual_genome/val")
OTHER_TEST = ("flickr30k/test", "visual_genome/test")

VQA_SPLITS = {"train": COCO_TRAIN, "val": COCO_VAL + COCO_TEST}
COCO_SPLITS = {"train": COCO_TRAIN, "val": COCO_VAL, "test": COCO_TEST}
NLVR2_SPLITS = {"train": OTHER_TRAIN, "dev": OTHER_VAL, "test1": OTHER_TEST}


class Task(ABC):
    """A task that takes the world's pictures in their order; after `close`, it writes its files.

    Attributes:
        splits: of the task, each with the places of its pictures.
    """

    name: ClassVar[str]
    splits: ClassVar[Mapping[str, Sequence[str]]]

    def add(self, picture: Picture) -> None:
        split = next((split for split, places in self.splits.items() if picture.place.name in places), None)
        if split is not None:
            self.add_to(split, picture)

    @abstractmethod
    def add_to(self, split: str, picture: Picture) -> None:
        """Adds a picture of a split of the task."""

    def close(self) -> None:
        """Makes the questions that wait for more pictures, after the last picture."""
        return None

    @abstractmethod
    def rows(self) -> dict[str, int]:
        """Rows of each split."""

    @abstractmethod
    def write(self, folder: Path) -> None: ...

    def links(self) -> Iterator[tuple[Picture, str]]:
        """Yields pictures, and their paths below the folder of the task; none where they lie elsewhere."""
        return iter(())

    @abstractmethod
    def write_results(self, folder: Path) -> None:
        """Writes the results of a reader with the scene graph, and of one with the training file only."""


THING = "thing"
Item = TypeVar("Item")
INVERSE = {phrase: both[1 - way] for both in RELATION_PHRASES.values() for way, phrase in enumerate(both)}
_TIMES_SURELY_LARGER = 1.5  # a size between this and that of `find_relations` is disputable


@dataclass(frozen=True)
class Description:
    """Words for things: some attributes, and a category or "" for any."""

    category: str
    attributes: tuple[str, ...] = ()

    def means(self, thing: SceneObject) -> bool:
        return self.category in ("", thing.category) and set(self.attributes) <= set(thing.attributes)

    @property
    def indefinite(self) -> str:
        """Words with the article, such as "a red ball"."""
        return noun_phrase(self.attributes, self.category or THING)

    @property
    def words(self) -> str:
        """Words without the article."""
        return self.indefinite.partition(" ")[2]

    @property
    def plural(self) -> str:
        *before, last = self.words.split(" ")
        return " ".join([*before, plural(last)])


class SceneQueries:
    """Attributes:
    clear: the things that a text may name.
    seen: those between which relations are known.
    links: (number, phrase, number) of all relations, from both ends.
    """

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.things = picture.scene.objects
        self.clear = clear_objects(picture.scene)
        self.seen = [thing for thing in self.things if not thing.ignored]
        self.links = [
            link
            for each in picture.relations
            for forth, back in (RELATION_PHRASES[each.name],)
            for link in ((each.subject, forth, each.target), (each.target, back, each.subject))
        ]
        self._holds = frozenset(self.links)
        self._covers = frozenset((upper, lower) for upper, lower, _ in picture.scene.covers)
        self._clear_numbers = frozenset(thing.number for thing in self.clear)

    def holds(self, first: SceneObject, phrase: str, second: SceneObject) -> bool:
        return (first.number, phrase, second.number) in self._holds

    def could_hold(self, first: SceneObject, phrase: str, second: SceneObject) -> bool:
        """Whether the relation could be claimed, though the scene graph lacks it: a small overlap, a little larger."""
        if self.holds(first, phrase, second):
            return True
        if phrase in ("in front of", "behind"):
            pair = (first.number, second.number)
            return (pair if phrase == "in front of" else pair[::-1]) in self._covers
        if phrase in ("larger than", "smaller than"):
            larger, smaller = (first, second) if phrase == "larger than" else (second, first)
            return _area(larger) >= _TIMES_SURELY_LARGER * _area(smaller)
        return False

    def is_clear(self, thing: SceneObject) -> bool:
        return thing.number in self._clear_numbers

    def meant(self, description: Description) -> list[SceneObject]:
        """Returns all things that it may mean, clear or not."""
        return [thing for thing in self.things if description.means(thing)]

    def clear_links(self, phrases: Iterable[str]) -> list[tuple[SceneObject, str, SceneObject]]:
        """Returns the relations between clear things with one of these phrases."""
        wanted, numbers = frozenset(phrases), self._clear_numbers
        return [
            (self.things[first], phrase, self.things[second])
            for first, phrase, second in self.links
            if phrase in wanted and first in numbers and second in numbers
        ]

    def name(self, thing: SceneObject, stream: IntegerStream, *, without: Sequence[str] = ()) -> Description | None:
        """Returns a description of two attributes at most that means this thing alone, None if there is none."""
        allowed = [name for name in thing.attributes if name not in without]
        offset = stream.below(max(1, len(allowed)))
        allowed = allowed[offset:] + allowed[:offset]
        choices = [chosen for count in range(3) for chosen in combinations(allowed, count)]
        # Now and then more attributes than needed, as people do.
        for chosen in choices[1:] + choices[:1] if stream.percent(40) else choices:
            found = Description(thing.category, chosen)
            if len(self.meant(found)) == 1:
                return found
        return None


def pattern_of(thing: SceneObject) -> str | None:
    return next((name for name in thing.attributes if name in PATTERNS), None)


def colours_of(things: Iterable[SceneObject]) -> list[str]:
    """Returns the colours of things, each once, in the order of `world.COLOURS`."""
    found = {thing.colour for thing in things}
    return [name for name in COLOURS if name in found]


def _area(thing: SceneObject) -> int:
    return thing.full_box[2] * thing.full_box[3]


def shuffled(items: Iterable[Item], stream: IntegerStream) -> list[Item]:
    """Returns a new list in an order drawn by lot."""
    found = list(items)
    for last in range(len(found) - 1, 0, -1):
        other = stream.below(last + 1)
        found[last], found[other] = found[other], found[last]
    return found


STRENGTHS = (0.5, 2.0, 8.0, 32.0)  # how many sights the level above is worth; the caller takes the best

Keys = Sequence[Hashable]


class BlindReader:
    """Counts outcomes by keys; each key is a level, the most general one first."""

    def __init__(self) -> None:
        self._seen: Counter[Hashable] = Counter()
        self._with: dict[Hashable, Counter[Hashable]] = {}

    def learn(self, keys: Keys, outcome: Hashable) -> None:
        for key in keys:
            self._seen[key] += 1
            self._with.setdefault(key, Counter())[outcome] += 1

    def chances(self, keys: Keys, strength: float) -> dict[Hashable, float]:
        """Returns the chances of all outcomes seen with the most general key, in the order of their first sight."""
        outcomes = self._with.get(keys[0], Counter()) if keys else Counter()
        found: dict[Hashable, float] = {outcome: 1 / len(outcomes) for outcome in outcomes}
        for key in keys:
            counts, seen = self._with.get(key), self._seen[key]
            if counts is not None:
                found = {
                    outcome: (counts[outcome] + strength * chance) / (seen + strength)
                    for outcome, chance in found.items()
                }
        return found

    def best(self, keys: Keys, strength: float) -> Hashable | None:
        """Returns the likeliest outcome, None where nothing is known."""
        found = self.chances(keys, strength)
        return max(found, key=lambda outcome: found[outcome]) if found else None

    def evidence(self, facts: Iterable[Keys], strength: float) -> float:
        """Returns the log odds that all these facts are true, each learnt with the outcome True or False."""
        total = 0.0
        for keys in facts:
            chance = min(max(self.chances(keys, strength).get(True, 0.5), 1e-6), 1 - 1e-6)
            total += log(chance / (1 - chance))
        return total
