"""The captions of Flickr30k Entities: lines whose phrases are marked with the chain that they belong to.

    [/EN#1/people Two men] in [/EN#2/scene/other a yard] and [/EN#0/notvisual it] .

Phrases of one chain mean the same; chain 0 means nothing that can be seen. Words are what blanks leave.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# In the order in which jnhwkim/ban-vqa numbers them (dataset.py).
TYPES = ("people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other")
NOT_VISUAL = "0"
OWN, AUTHORS, RELEASE = RULES = ("own", "authors", "release")
_MARK = "[/EN#"
_PHRASE = re.compile(r"\[/EN#([0-9]+)((?:/[^\s\[\]/]+)*)\s([^\[\]]*)\]", re.ASCII)


@dataclass(frozen=True)
class EntityPhrase:
    """A marked phrase.

    Attributes:
        chain: its number as written.
        types: such as "people"; mostly one, sometimes none or several.
        first_word, last_word: places among the words of the sentence, from 0.
    """

    text: str
    chain: str
    types: tuple[str, ...]
    first_word: int
    last_word: int


@dataclass(frozen=True)
class EntitySentence:
    """A caption without marks, and what was marked, in reading order."""

    text: str
    phrases: tuple[EntityPhrase, ...]

    @property
    def words(self) -> list[str]:
        return self.text.split()


def parse_marked_sentence(line: str, rule: str = OWN) -> EntitySentence:
    """One line of a file of Sentences/.

    Args:
        rule: which code is followed.
            own: marks stand anywhere, "[/EN#5/animals a dog]," too; a phrase is where its mark is.
            authors: BryanPlummer/flickr30k_entities, whose phrases end with "]" at the end of a word; a mark that does
                not swallows what comes after it.
            release: jnhwkim/ban-vqa, which VisualBERT's release reads with: a phrase is where its words stand FIRST in
                the caption, so that the second "a man" lies upon the first.
    Raises:
        ValueError: for a line that the code cannot read.
    """
    if rule == OWN:
        return _own(line)
    if rule not in RULES:
        raise ValueError(f"rule {rule!r}: choose one of {', '.join(RULES)}")
    if rule == AUTHORS:
        words, marked = _by_words(line.split())
        return _sentence(words, marked, [first for _, _, first, _ in marked])
    tokens = line.strip().split(" ")
    _check_release(tokens)
    words, marked = _by_words(tokens)
    return _sentence(words, marked, [first_place(words, words[first:last]) for _, _, first, last in marked])


def first_place(words: Sequence[str], part: Sequence[str]) -> int:
    """Where the words of `part` stand first one after the other; ValueError where they do not."""
    count = len(part)
    for start in range(len(words) - count + 1):
        if list(words[start : start + count]) == list(part):
            return start
    raise ValueError(f"the words {' '.join(part)!r} are not in the caption")


_Marked = tuple[str, tuple[str, ...], int, int]  # chain, types, first word, and the place behind the last


def _own(line: str) -> EntitySentence:
    text, end, marked = "", 0, []
    for found in _PHRASE.finditer(line):
        text += line[end : found.start()]
        start, end = len(text), found.end()
        text += found[3]
        if not found[3].strip():
            raise ValueError("a mark without words")
        marked.append((found[1], tuple(found[2].split("/")[1:]), found[3], start, len(text)))
    text += line[end:]
    if _MARK in text:
        raise ValueError("a mark that does not end, or lies in another one")
    spans = [found.span() for found in re.finditer(r"\S+", text)]
    phrases = []
    for chain, types, words, start, stop in marked:
        touched = [place for place, (first, last) in enumerate(spans) if first < stop and last > start]
        phrases.append(EntityPhrase(" ".join(words.split()), chain, types, touched[0], touched[-1]))
    return EntitySentence(" ".join(text.split()), tuple(phrases))


def _by_words(tokens: Sequence[str]) -> tuple[list[str], list[_Marked]]:
    """A word that begins with "[" opens a phrase, one that ends with "]" closes it."""
    words: list[str] = []
    marked: list[_Marked] = []
    chain, first = "", -1
    types: tuple[str, ...] = ()
    for token in tokens:
        if first >= 0:
            if token.endswith("]"):
                words.append(token[:-1])
                marked.append((chain, types, first, len(words)))
                first = -1
            else:
                words.append(token)
        elif token.startswith("["):
            _, *parts = token.split("/")
            if not parts:
                raise ValueError(f"a word {token!r} that begins with [ and is no mark")
            chain, types, first = parts[0][3:], tuple(parts[1:]), len(words)
        else:
            words.append(token)
    return words, marked


def _check_release(tokens: Sequence[str]) -> None:
    for token in tokens:
        if token.startswith("[") and not token.startswith(_MARK):
            raise ValueError(f"a word {token!r} that begins with [ and is no mark")
        if "]" in token[:-1]:
            raise ValueError(f"a phrase that does not end with its word: {token!r}")


def _sentence(words: Sequence[str], marked: Sequence[_Marked], places: Sequence[int]) -> EntitySentence:
    phrases = [
        EntityPhrase(" ".join(words[first:last]), chain, types, place, place + last - first - 1)
        for (chain, types, first, last), place in zip(marked, places, strict=True)
    ]
    return EntitySentence(" ".join(words), tuple(phrases))
