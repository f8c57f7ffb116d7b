"""The gold parse of a caption: which word hangs on which and how, and which words name which objects.

Labels are those of Stanford's typed dependencies as spaCy's English models spell them (compound, nummod, pobj, prep),
but for "there is a ball", where the ball is the nsubj, as in de Marneffe and Manning 2008 (spaCy says attr).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roibeam.pipelines.toyworld.captions import GROUND_PHRASES, NUMBERS, RELATION_PHRASES, Caption, plural
from roibeam.pipelines.toyworld.world import CATEGORIES

ROOT = -1
_NOUNS = frozenset(CATEGORIES) | {plural(category) for category in CATEGORIES}
_GROUNDS = frozenset(GROUND_PHRASES.values())
_PHRASES = frozenset(phrase for both in RELATION_PHRASES.values() for phrase in both)
_COMPARED = "than"


@dataclass(frozen=True)
class NamedPart:
    """Words that name something.

    Attributes:
        first, last: places of its words.
        objects: numbers of what is named; () for the ground and for "a picture".
        is_ground: whether it is the ground.
    """

    first: int
    last: int
    objects: tuple[int, ...] = ()
    is_ground: bool = False


@dataclass(frozen=True)
class ParsedCaption:
    """Attributes:
    words: of the caption, the first with a capital, the last a full stop.
    heads: place of the word that each hangs on, `ROOT` for one of them.
    labels: how.
    parts: what is named, in reading order.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    parts: tuple[NamedPart, ...]


def parse_of(caption: Caption) -> ParsedCaption:
    """
    Raises:
        ValueError: for a caption that `captions` does not write.
    """
    reader = _Reader(caption)
    reader.read()
    return reader.parsed()


@dataclass
class _Reader:
    """Reads the words of a caption from the first to the last."""

    caption: Caption
    at: int = 0
    heads: dict[int, int] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    parts: list[NamedPart] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = self.caption.text.split(" ")
        self._objects = (
            [self.caption.objects] if self.caption.kind == "number" else [(n,) for n in self.caption.objects]
        )

    def parsed(self) -> ParsedCaption:
        words = [self.words[0].capitalize(), *self.words[1:], "."]
        root = next(place for place, head in self.heads.items() if head == ROOT)
        self._hang(len(self.words), root, "punct")
        places = range(len(words))
        return ParsedCaption(
            tuple(words),
            tuple(self.heads[place] for place in places),
            tuple(self.labels[place] for place in places),
            tuple(self.parts),
        )

    def read(self) -> None:
        if self.words[0] == "there":
            self._take(1, "expl")
            self._take(ROOT, "root")
            noun = self._noun_phrase(1, "nsubj")
        elif self.words[:3] == ["a", "picture", "of"]:
            self._take(1, "det")
            self._take(ROOT, "root")
            self._take(1, "prep")
            self.parts.append(NamedPart(0, 1))
            noun = self._noun_phrase(2, "pobj")
        else:
            noun = self._noun_phrase(ROOT, "root")
            if self._is_next("is"):
                self._hang(noun, self._take(ROOT, "root"), "nsubj")
                noun = self._related(self.at - 1, "acomp")
        while self.at < len(self.words):
            noun = self._further(noun)

    def _further(self, noun: int) -> int:
        """What comes behind a noun; returns the noun that it ends with."""
        if self._is_next("and"):
            self._take(noun, "cc")
            return self._noun_phrase(noun, "conj")
        if self._is_next("that is"):
            self._take(self.at + 1, "nsubj")
            return self._related(self._take(noun, "relcl"), "acomp")
        if any(self._is_next(ground) for ground in _GROUNDS):
            return self._ground(noun)
        return self._related(noun, "amod")

    def _related(self, head: int, comparison: str) -> int:
        """ "to the left of a box": the phrase hangs on `head`, the noun on its last word."""
        phrase = next((each for each in _PHRASES if self._is_next(each)), None)
        if phrase is None:
            raise ValueError(f"caption {self.caption.text!r}: no phrase of the toy world at word {self.at}")
        words = phrase.split(" ")
        if words[-1] == _COMPARED:
            words_labels = [(head, comparison), (self.at, "prep")]
        elif len(words) == 4:  # to the left of
            words_labels = [(head, "prep"), (self.at + 2, "det"), (self.at, "pobj"), (self.at + 2, "prep")]
        elif len(words) == 3:  # in front of
            words_labels = [(head, "prep"), (self.at, "pobj"), (self.at + 1, "prep")]
        else:
            words_labels = [(head, "prep")]
        for each in words_labels:
            last = self._take(*each)
        return self._noun_phrase(last, "pobj")

    def _ground(self, noun: int) -> int:
        """ "on the wooden floor", the last words of a caption."""
        on = self._take(noun, "prep")
        first, last = self.at, len(self.words) - 1
        self._take(last, "det")
        while self.at < last:
            self._take(last, "compound" if self.words[self.at] == "brick" else "amod")
        self.parts.append(NamedPart(first, last, is_ground=True))
        return self._take(on, "pobj")

    def _noun_phrase(self, head: int, label: str) -> int:
        first = self.at
        noun = next(place for place in range(first, len(self.words)) if self.words[place] in _NOUNS)
        self._take(noun, "nummod" if self.words[first] in NUMBERS.values() else "det")
        while self.at < noun:
            self._take(noun, "amod")
        self.parts.append(NamedPart(first, noun, self._objects[sum(bool(part.objects) for part in self.parts)]))
        return self._take(head, label)

    def _is_next(self, words: str) -> bool:
        return self.words[self.at : self.at + len(words.split(" "))] == words.split(" ")

    def _take(self, head: int, label: str) -> int:
        self._hang(self.at, head, label)
        self.at += 1
        return self.at - 1

    def _hang(self, place: int, head: int, label: str) -> None:
        self.heads[place], self.labels[place] = head, label
