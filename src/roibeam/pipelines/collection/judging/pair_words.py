"""Which things a text names, in the words of a detector's classes and attributes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_LONGEST_NAME = 4  # words
_REACH = 4  # words before a noun among which its attributes stand
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}


@dataclass(frozen=True)
class NamedThing:
    """
    Attributes:
        class_id: of the detector.
        attribute_ids: of the words before it, up to the thing before.
        count: what a number before it says; 1 without one.
        place, length: its words in the text.
    """

    class_id: int
    attribute_ids: tuple[int, ...]
    count: int
    place: int
    length: int


def words_of(text: str) -> list[str]:
    """Lower-case words of letters."""
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
        """In the order of the text; of names that begin at one word the longest counts."""
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
        """All attributes that the words name, wherever they stand."""
        return [self._attributes[word,] for word in words if (word,) in self._attributes]

    @staticmethod
    def _longest(forms: dict[tuple[str, ...], int], words: Sequence[str], place: int) -> tuple[int | None, int]:
        for length in range(min(_LONGEST_NAME, len(words) - place), 0, -1):
            number = forms.get(tuple(words[place : place + length]))
            if number is not None:
                return number, length
        return None, 0


def plural_of(word: str) -> str:
    """As English mostly does it."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    return f"{word[:-1]}ies" if len(word) > 1 and word.endswith("y") and word[-2] not in "aeiou" else f"{word}s"


def _forms(names: Sequence[str], *, with_plurals: bool) -> dict[tuple[str, ...], int]:
    """The first of equal names counts."""
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
