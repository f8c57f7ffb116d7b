"""Features of an image-text pair for the judge of pairs: of the text alone, of the picture alone, and of both.

Things that a text names are in the words of a detector's classes and attributes. All features are roibeam's: the paper
has "hundreds of features" of these three kinds and names none (arXiv:2001.07966, section 3).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roibeam.features.record.region_record import RegionRecord

WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_LONGEST_NAME = 4  # words
_REACH = 4  # words before a noun among which its attributes stand
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}


@dataclass(frozen=True)
class NamedThing:
    """
    Attributes:
        attribute_ids: of the words before it, up to the thing before.
        count: the number before it; 1 without one.
    """

    class_id: int
    attribute_ids: tuple[int, ...]
    count: int
    place: int
    length: int


def words_of(text: str) -> list[str]:
    """Returns the lower-case words of letters."""
    return WORD.findall(text.lower())


class NameReader:
    """
    Args:
        classes, attributes: names in id order; synonyms are separated by commas ("tree,trees"), as in Visual Genome's.
    """

    def __init__(self, classes: Sequence[str], attributes: Sequence[str]) -> None:
        self._classes, self._attributes = _forms(classes, with_plurals=True), _forms(attributes, with_plurals=False)
        self.class_names = tuple(classes)

    def things(self, words: Sequence[str]) -> list[NamedThing]:
        """Returns the named things in the order of the text; the longest of names that begin at one word counts."""
        found: list[NamedThing] = []
        place, free_from = 0, 0
        while place < len(words):
            class_id, length = self._longest(self._classes, words, place)
            if class_id is None:
                place += 1
                continue
            before = words[max(free_from, place - _REACH) : place]
            attributes = tuple(self._attributes[word,] for word in before if (word,) in self._attributes)
            counts = [NUMBERS[word] for word in before if word in NUMBERS]
            found.append(NamedThing(class_id, attributes, counts[-1] if counts else 1, place, length))
            place += length
            free_from = place
        return found

    def loose_attributes(self, words: Sequence[str]) -> list[int]:
        """Returns all attributes that the words name, wherever they stand."""
        return [self._attributes[word,] for word in words if (word,) in self._attributes]

    @staticmethod
    def _longest(forms: dict[tuple[str, ...], int], words: Sequence[str], place: int) -> tuple[int | None, int]:
        for length in range(min(_LONGEST_NAME, len(words) - place), 0, -1):
            number = forms.get(tuple(words[place : place + length]))
            if number is not None:
                return number, length
        return None, 0


def plural_of(word: str) -> str:
    """Returns the plural of a word, by the common rules of English."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    return f"{word[:-1]}ies" if len(word) > 1 and word.endswith("y") and word[-2] not in "aeiou" else f"{word}s"


def _forms(names: Sequence[str], *, with_plurals: bool) -> dict[tuple[str, ...], int]:
    """Numbers of names by their words; the first of equal names counts."""
    forms: dict[tuple[str, ...], int] = {}
    for number, name in enumerate(names):
        for synonym in name.split(","):
            words = tuple(words_of(synonym))
            if words:
                forms.setdefault(words, number)
    if with_plurals:
        for words, number in list(forms.items()):
            forms.setdefault((*words[:-1], plural_of(words[-1])), number)
    return forms


_STOP_WORDS = frozenset(
    "a an the of in on at to with and or is are was were be it its this that these those by for from as into near over "
    "under up down his her their our your my we you they he she i".split()
)
_SURE, _SEEN = 0.5, 0.2  # class scores
TEXT_NAMES = (
    "words", "letters a word", "stop words", "capitals", "digits", "punctuation", "different words", "things",
    "attributes", "named share", "first person", "longest word", "numbers",
)  # fmt: skip
PICTURE_NAMES = (
    "regions", "sure regions", "seen classes", "sure classes", "best score", "mean of five scores", "largest sure area",
    "picture aspect", "log pixels",
)  # fmt: skip
CROSS_NAMES = (
    "found share", "sure share", "least class score", "mean class score", "things not found", "best class score",
    "attribute share", "least attribute match", "mean attribute match", "least pair match", "counts off",
    "sure classes not named", "share of sure area named", "loose attributes found", "match log-odds", "match asked",
    "agreement", "most agreement", "agreement of things", "other texts",
)  # fmt: skip
NAMES = (*TEXT_NAMES, *PICTURE_NAMES, *CROSS_NAMES)


def pair_features(
    text: str, others: Sequence[str], record: RegionRecord | None, reader: NameReader, match: float | None
) -> np.ndarray:
    """(42,) float64, in the order of `NAMES`; finite.

    Args:
        others: the other texts beside the same picture on the same page.
        record: the picture's regions; None where there are none.
        match: log-odds of a match, of a pre-trained model; None without one.
    """
    words = words_of(text)
    things = reader.things(words)
    seen = _Seen(record)
    values = [
        *_of_text(text, words, things, reader),
        *_of_picture(record, seen),
        *_of_both(words, things, seen, reader),
        *((0.0, 0.0) if match is None else (float(np.clip(match, -30, 30)), 1.0)),
        *_agreement(words, things, [words_of(other) for other in others], reader),
    ]
    return np.array(values, np.float64)


class _Seen:
    """A record's classes and attributes, by the best region of each."""

    def __init__(self, record: RegionRecord | None) -> None:
        self.scores: dict[int, float] = {}
        self.counts: dict[int, int] = {}
        self.areas: dict[int, float] = {}
        self.attributes: dict[int, float] = {}
        self.of_class: dict[int, list[tuple[float, int, float]]] = {}
        if record is None:
            return
        sides = record.boxes[:, 2:] - record.boxes[:, :2]
        areas = sides[:, 0] * sides[:, 1] / (record.width * record.height)
        ids, scores = record.class_ids.tolist(), record.class_scores.tolist()
        attributes = [-1] * len(ids) if record.attribute_ids is None else record.attribute_ids.tolist()
        sure = [0.0] * len(ids) if record.attribute_scores is None else record.attribute_scores.tolist()
        for number, score, attribute, share, area in zip(ids, scores, attributes, sure, areas.tolist(), strict=True):
            self.scores[number] = max(score, self.scores.get(number, 0.0))
            self.of_class.setdefault(number, []).append((score, attribute, share))
            if score >= _SEEN and attribute >= 0:
                self.attributes[attribute] = max(share, self.attributes.get(attribute, 0.0))
            if score >= _SURE:
                self.counts[number] = self.counts.get(number, 0) + 1
                self.areas[number] = max(area, self.areas.get(number, 0.0))

    def attribute_match(self, class_id: int, attribute_id: int) -> float:
        """Certainty that a region of the class has the attribute, 0..1."""
        found = self.of_class.get(class_id, [])
        return max((score * share for score, attribute, share in found if attribute == attribute_id), default=0.0)


def _of_text(text: str, words: list[str], things: list[NamedThing], reader: NameReader) -> list[float]:
    count, letters = max(len(words), 1), max(len(text), 1)
    capitals = sum(word[:1].isupper() for word in text.split())
    return [
        len(words), sum(map(len, words)) / count, sum(word in _STOP_WORDS for word in words) / count, capitals / count,
        sum(letter.isdigit() for letter in text) / letters,
        sum(not letter.isalnum() and not letter.isspace() for letter in text) / letters, len(set(words)) / count,
        len(things), len(reader.loose_attributes(words)), sum(thing.length for thing in things) / count,
        sum(word in ("i", "we", "my", "our", "you", "your") for word in words),
        max(map(len, words), default=0), sum(thing.count > 1 for thing in things),
    ]  # fmt: skip


def _of_picture(record: RegionRecord | None, seen: _Seen) -> list[float]:
    if record is None or not record.num_regions:
        return [0.0] * len(PICTURE_NAMES)
    best = np.sort(record.class_scores)[::-1]
    return [
        record.num_regions, float((best >= _SURE).sum()), sum(score >= _SEEN for score in seen.scores.values()),
        len(seen.counts), float(best[0]), float(best[:5].mean()), max(seen.areas.values(), default=0.0),
        max(record.height, record.width) / min(record.height, record.width),
        float(np.log(record.height * record.width)),
    ]  # fmt: skip


def _of_both(words: list[str], things: list[NamedThing], seen: _Seen, reader: NameReader) -> list[float]:
    scores = [seen.scores.get(thing.class_id, 0.0) for thing in things]
    matches = [seen.attribute_match(thing.class_id, attribute) for thing in things for attribute in thing.attribute_ids]
    pairs = [
        score * min((seen.attribute_match(thing.class_id, number) for number in thing.attribute_ids), default=1.0)
        for thing, score in zip(things, scores, strict=True)
    ]
    off = sum(abs(thing.count - seen.counts.get(thing.class_id, 0)) for thing in things if thing.count > 1)
    named = {thing.class_id for thing in things}
    loose = reader.loose_attributes(words)
    area = sum(seen.areas.values())
    return [
        _share(score >= _SEEN for score in scores), _share(score >= _SURE for score in scores),
        min(scores, default=-1.0), _mean(scores), sum(score < _SEEN for score in scores), max(scores, default=-1.0),
        _share(match >= _SEEN for match in matches), min(matches, default=-1.0), _mean(matches),
        min(pairs, default=-1.0), off, len(set(seen.counts) - named),
        sum(seen.areas.get(number, 0.0) for number in named) / area if area else -1.0,
        _mean([seen.attributes.get(number, 0.0) for number in loose]),
    ]  # fmt: skip


def _agreement(
    words: list[str], things: list[NamedThing], others: list[list[str]], reader: NameReader
) -> tuple[float, ...]:
    """Agreement with the texts beside it: shared words of content, and shared things."""
    mine = set(words) - _STOP_WORDS
    shares = []
    for other in others:
        both = mine | (set(other) - _STOP_WORDS)
        shares.append(len(mine & set(other)) / len(both) if both else 0.0)
    named = {thing.class_id for thing in things}
    elsewhere = {thing.class_id for other in others for thing in reader.things(other)}
    shared = len(named & elsewhere) / len(named | elsewhere) if named and elsewhere else -1.0
    return _mean(shares), max(shares, default=-1.0), shared, float(len(others))


def _mean(values: Sequence[float]) -> float:
    """Mean of values; -1 for none, which no mean is."""
    return float(np.mean(values)) if len(values) else -1.0


def _share(values: object) -> float:
    return _mean([float(value) for value in values])  # type: ignore[attr-defined]
