"""Two tasks of texts alone, in GLUE's form, made of the captions: {train,dev,test}.tsv in mrpc/ and in rte/.

    mrpc   do two captions describe one scene? As often captions of one as of two.
    rte    does the second sentence follow from the first? It is the caption itself with words left out or turned round,
           or with one word changed, added or at another place, so that it may be true of the scene and does not follow.

Texts alone do not always decide whether two captions are of one scene. The reader "perfect" of mrpc knows all scenes of
the questions, and the probability of each caption for each scene; the texts alone allow nothing better.
"""

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.pipelines.toyworld.caption_likelihood import KnownWays
from roibeam.pipelines.toyworld.captions import RELATION_PHRASES, noun_phrase
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.tasks.scene_queries import (
    COCO_TEST,
    COCO_TRAIN,
    COCO_VAL,
    OTHER_TEST,
    OTHER_TRAIN,
    OTHER_VAL,
    Task,
)
from roibeam.pipelines.toyworld.truth import Existence, parse_caption
from roibeam.pipelines.toyworld.world import CATEGORIES, COLOURS
from roibeam.pipelines.toyworld.world_files import write_text

TEXT_SPLITS = {"train": COCO_TRAIN + OTHER_TRAIN, "dev": COCO_VAL + OTHER_VAL, "test": COCO_TEST + OTHER_TEST}
PER_PICTURE = 4  # rows that begin with a caption of one picture
_PURPOSES = {"mrpc": 14, "rte": 15}
_MOST_TRAIN_SCENES = 1000  # that the reader of scenes knows beside those of the questions
_TRIES = 20
_READ = ("dev", "test")
_WORDS = ("entailment", "not_entailment")


@dataclass(frozen=True)
class TextPair:
    """Two texts; `is_so`: whether they are of one scene, or the second follows from the first."""

    first: str
    second: str
    is_so: bool


class _TextPairs(Task):
    splits = TEXT_SPLITS

    def __init__(self) -> None:
        self._pictures: dict[str, list[Picture]] = {split: [] for split in TEXT_SPLITS}
        self.pairs: dict[str, list[TextPair]] = {}

    def add_to(self, split: str, picture: Picture) -> None:
        if picture.captions:
            self._pictures[split].append(picture)

    def close(self) -> None:
        for split, pictures in self._pictures.items():
            self.pairs[split] = []
            for place, picture in enumerate(pictures):
                stream = IntegerStream(picture.scene.seed, _PURPOSES[self.name], picture.scene.index)
                for _ in range(PER_PICTURE):
                    pair = self._pair(pictures, place, stream)
                    if pair is not None:
                        self.pairs[split].append(pair)

    @abstractmethod
    def _pair(self, pictures: Sequence[Picture], place: int, stream: IntegerStream) -> TextPair | None: ...

    def rows(self) -> dict[str, int]:
        return {split: len(pairs) for split, pairs in self.pairs.items()}


class ScenePairsTask(_TextPairs):
    """Task with MRPC's files: Quality, two ids, two texts."""

    name = "mrpc"

    def _pair(self, pictures: Sequence[Picture], place: int, stream: IntegerStream) -> TextPair | None:
        own = pictures[place].captions
        first, is_so = stream.pick(own).text, stream.percent(50)
        others = own
        if not is_so:
            if len(pictures) < 2:
                return None
            other = stream.below(len(pictures) - 1)
            others = pictures[other + (other >= place)].captions
        second = [each.text for each in others if each.text != first]
        return TextPair(first, stream.pick(second), is_so) if second else None

    def write(self, folder: Path) -> None:
        for split, pairs in self.pairs.items():
            head = "index" if split == "test" else "Quality"
            lines = [f"{head}\t#1 ID\t#2 ID\t#1 String\t#2 String"]
            for row, pair in enumerate(pairs):
                label = row if split == "test" else int(pair.is_so)
                lines.append(f"{label}\t{2 * row}\t{2 * row + 1}\t{pair.first}\t{pair.second}")
            write_text(folder / f"{split}.tsv", "\n".join([*lines, ""]))

    def write_results(self, folder: Path) -> None:
        """Writes the results of a reader with the possible scenes, and of one with the same answer for every pair."""
        read = [picture for split in _READ for picture in self._pictures[split]]
        known = [*read, *self._pictures["train"][:_MOST_TRAIN_SCENES]]
        ways = KnownWays((picture.scene, picture.relations) for picture in known)
        pairs = self.pairs["dev"]
        _write_results(folder / "perfect", "mrpc_dev.tsv", [str(int(_of_one_scene(ways, pair))) for pair in pairs])
        _write_results(folder / "blind", "mrpc_dev.tsv", ["1"] * len(pairs))


def _of_one_scene(ways: KnownWays, pair: TextPair) -> bool:
    """Whether both texts are likelier of one scene than of two independent ones."""
    first, second = ways.likelihood(pair.first), ways.likelihood(pair.second)
    return bool(np.mean(first * second) > first.mean() * second.mean())


class FollowsTask(_TextPairs):
    """Task with RTE's files: index, two texts, entailment or not_entailment."""

    name = "rte"

    def _pair(self, pictures: Sequence[Picture], place: int, stream: IntegerStream) -> TextPair | None:
        is_so = stream.percent(50)
        for _ in range(_TRIES):
            text = stream.pick(pictures[place].captions).text
            claim = parse_caption(text)
            if not isinstance(claim, Existence):
                continue
            edits = _WEAKER if is_so else _OTHER
            other = stream.pick(edits)(claim, stream)
            if other is None:
                continue
            if is_so and stream.percent(50):
                other = stream.pick(_WEAKER)(other, stream) or other
            elif not is_so and stream.percent(50):
                other = _without_word(other, stream) or other
            second = sentence(other)
            if second != sentence(claim) and follows(claim, other) == is_so:
                return TextPair(text, second, is_so)
        return None

    def write(self, folder: Path) -> None:
        for split, pairs in self.pairs.items():
            is_test = split == "test"
            lines = ["index\tsentence1\tsentence2" + ("" if is_test else "\tlabel")]
            for row, pair in enumerate(pairs):
                lines.append(f"{row}\t{pair.first}\t{pair.second}" + ("" if is_test else f"\t{_WORDS[not pair.is_so]}"))
            write_text(folder / f"{split}.tsv", "\n".join([*lines, ""]))

    def write_results(self, folder: Path) -> None:
        """Writes the results of a reader of both texts, and of one with the number of words of the second one alone."""
        pairs = self.pairs["dev"]
        read = [follows(_claim(pair.first), _claim(pair.second)) for pair in pairs]
        _write_results(folder / "perfect", "rte_dev.tsv", [_WORDS[not each] for each in read])
        seen: dict[int, Counter[bool]] = defaultdict(Counter)
        for pair in self.pairs["train"]:
            seen[len(pair.second.split())][pair.is_so] += 1
        guessed = [seen[len(pair.second.split())][True] > seen[len(pair.second.split())][False] for pair in pairs]
        _write_results(folder / "blind", "rte_dev.tsv", [_WORDS[not each] for each in guessed])


def _write_results(folder: Path, name: str, predictions: Sequence[str]) -> None:
    lines = [f"{row}\t{each}" for row, each in enumerate(predictions)]
    write_text(folder / name, "\n".join(["index\tprediction", *lines, ""]))


def _claim(text: str) -> Existence:
    claim = parse_caption(text)
    assert isinstance(claim, Existence)
    return claim


def follows(first: Existence, second: Existence) -> bool:
    """Whether the first claim implies the second, whose things are things of the first, with no more attributes and
    the same relations between them."""
    stated = {(r.subject, r.name, r.target) for r in first.relations}
    if second.ground not in (None, first.ground):
        return False
    choices = [
        [
            place
            for place, other in enumerate(first.nouns)
            if noun.category == other.category and noun.attributes <= other.attributes
        ]
        for noun in second.nouns
    ]
    return second.can_be_met(choices, stated)


def sentence(claim: Existence) -> str:
    """Returns a claim about one or two things in words."""
    nouns = [noun_phrase(tuple(noun.attributes), noun.category) for noun in claim.nouns]
    if not claim.relations:
        return f"there is {' and '.join(nouns)}" if len(nouns) == 1 else " and ".join(nouns)
    relation = claim.relations[0]
    forth, back = RELATION_PHRASES[relation.name]
    return f"{nouns[0]} {forth if relation.subject == 0 else back} {nouns[1]}"


Edit = Callable[[Existence, IntegerStream], Existence | None]


def _short(claim: Existence) -> Existence:
    """Returns the claim with its first two things only, without the ground."""
    relations = tuple(each for each in claim.relations if max(each.subject, each.target) < 2)
    return Existence(claim.nouns[:2], relations)


def _one_thing(claim: Existence, stream: IntegerStream) -> Existence | None:
    return Existence((stream.pick(claim.nouns),)) if len(claim.nouns) > 1 else None


def _without_word(claim: Existence, stream: IntegerStream) -> Existence | None:
    short = _short(claim)
    described = [place for place, noun in enumerate(short.nouns) if noun.attributes]
    if not described:
        return None
    place = stream.pick(described)
    gone = stream.pick(sorted(short.nouns[place].attributes))
    return _with_noun(short, place, attributes=short.nouns[place].attributes - {gone})


def _turned(claim: Existence, _stream: IntegerStream) -> Existence | None:
    """Returns the same claim from the other end, in other words."""
    short = _short(claim)
    if len(short.nouns) < 2:
        return None
    relations = tuple(replace(each, subject=1 - each.subject, target=1 - each.target) for each in short.relations)
    return Existence(short.nouns[::-1], relations)


def _other_colour(claim: Existence, stream: IntegerStream) -> Existence | None:
    short = _short(claim)
    place = stream.below(len(short.nouns))
    attributes = short.nouns[place].attributes
    colours = sorted(set(COLOURS) - attributes)
    return _with_noun(short, place, attributes=frozenset({*(attributes - set(COLOURS)), stream.pick(colours)}))


def _other_thing(claim: Existence, stream: IntegerStream) -> Existence | None:
    short = _short(claim)
    place = stream.below(len(short.nouns))
    others = sorted(set(CATEGORIES) - {noun.category for noun in claim.nouns})
    return _with_noun(short, place, category=stream.pick(others))


def _other_way(claim: Existence, _stream: IntegerStream) -> Existence | None:
    """Returns the claim with its things exchanged."""
    short = _short(claim)
    return Existence(short.nouns[::-1], short.relations) if short.relations else None


def _with_noun(claim: Existence, place: int, **changes: Any) -> Existence:
    changed = replace(claim.nouns[place], **changes)
    return replace(claim, nouns=(*claim.nouns[:place], changed, *claim.nouns[place + 1 :]))


_WEAKER: tuple[Edit, ...] = (_one_thing, _without_word, _turned)
_OTHER: tuple[Edit, ...] = (_other_colour, _other_thing, _other_way)
