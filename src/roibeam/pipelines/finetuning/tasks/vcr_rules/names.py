"""What VCR's people and things are called in a text for a model: files name them by number.

Things have the name of their class. For people each public code has a rule of its own; `BY_MENTION` is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from roibeam.pipelines.data.datasets.csv_rows import read_strict_csv
from roibeam.pipelines.data.datasets.vcr_texts import NAMES, PERSON, VcrTokens, names_by_mention

BY_MENTION, RESTARTED, IN_TURN, DRAWN = "mention", "restarted", "in-turn", "drawn"
NAME_RULES = (BY_MENTION, RESTARTED, IN_TURN, DRAWN)
VL_BERT = "vl-bert"  # in place of a file of names: those of its release (vcr/data/datasets/vcr.py:21)
VL_BERT_NAMES = tuple(name for name in dict.fromkeys(NAMES) if name != "Skyler")


class EntryNames(NamedTuple):
    """Number of an object -> its name: in what precedes the choices, and in each row's choice."""

    context: Mapping[int, str]
    choices: tuple[Mapping[int, str], ...]


class NameRule(Protocol):
    """Gives names to the objects of questions, which come in the order of their file."""

    def question(self, objects: Sequence[str]) -> None:
        """A new question begins."""

    def entry(self, objects: Sequence[str], context: VcrTokens, choices: Sequence[VcrTokens]) -> EntryNames:
        """Names for a context with its choices; a question of a test file has four contexts with rationales."""


class NamesByMention:
    """People are named in the order in which a row mentions them, each question from the first name on.

    Args:
        people_names: used again when there are more people.
        restart: a person whom the choice is the first to mention is counted from the first name on again, and so has
            the name of another (uclanlp/visualbert dataloaders/vcr_data_utils.py:21-33).
    """

    def __init__(self, people_names: Sequence[str] = NAMES, *, restart: bool = False) -> None:
        self._names, self._restart = people_names, restart

    def question(self, objects: Sequence[str]) -> None:
        """Nothing is kept from one question to the next."""

    def entry(self, objects: Sequence[str], context: VcrTokens, choices: Sequence[VcrTokens]) -> EntryNames:
        known = names_by_mention(context, objects, people_names=self._names)
        people = 0 if self._restart else None
        return EntryNames(
            known,
            tuple(names_by_mention(each, objects, known, people=people, people_names=self._names) for each in choices),
        )


class NamesInTurn:
    """All people of an image are named, in the order of its boxes; the next question goes on with the next name.

    So a name depends on the questions before (jackroos/VL-BERT vcr/data/datasets/vcr.py:118, 282).
    """

    def __init__(self, people_names: Sequence[str] = NAMES) -> None:
        self._names, self._next = people_names, 0
        self._given: dict[int, str] = {}

    def question(self, objects: Sequence[str]) -> None:
        self._given = {}
        for number, kind in enumerate(objects):
            self._given[number] = self._names[self._next] if kind == PERSON else kind
            self._next = (self._next + (kind == PERSON)) % len(self._names)

    def entry(self, objects: Sequence[str], context: VcrTokens, choices: Sequence[VcrTokens]) -> EntryNames:
        return EntryNames(self._given, (self._given,) * len(choices))


class NamesDrawn:
    """All people of an image have names that are drawn, anew for each context; two may have the same name.

    As both ViLBERT releases do (vcr_dataset.py). They draw once, without a seed, and keep it in a file.

    Args:
        drawn: the names, as they come.
    """

    def __init__(self, drawn: Iterator[str]) -> None:
        self._drawn = drawn

    def question(self, objects: Sequence[str]) -> None:
        """Names are drawn for each context."""

    def entry(self, objects: Sequence[str], context: VcrTokens, choices: Sequence[VcrTokens]) -> EntryNames:
        given = {number: next(self._drawn) if kind == PERSON else kind for number, kind in enumerate(objects)}
        return EntryNames(given, (given,) * len(choices))


def name_rule(rule: str, people_names: Sequence[str] = NAMES, *, seed: int = 0) -> NameRule:
    """The rule of a name of `NAME_RULES`; of DRAWN the draws follow from the seed and the order of the questions.

    Raises:
        ValueError: for an unknown rule, or no names.
    """
    if not people_names:
        raise ValueError("names of people: expected at least one, got none")
    if rule == IN_TURN:
        return NamesInTurn(people_names)
    if rule == DRAWN:
        return NamesDrawn(_draws(people_names, seed))
    if rule in (BY_MENTION, RESTARTED):
        return NamesByMention(people_names, restart=rule == RESTARTED)
    raise ValueError(f"names {rule!r}: expected one of {', '.join(NAME_RULES)}")


def read_people_names(path: str) -> Sequence[str]:
    """Names from a table with a column "name", such as the releases' unisex_names_table.csv; "" for those of
    VisualBERT's release, "vl-bert" for those of VL-BERT's.

    Raises:
        ValueError: for a file without that column, or without a name in it.
    """
    if path in ("", VL_BERT):
        return VL_BERT_NAMES if path else NAMES
    names = tuple(row["name"] for row in read_strict_csv(path) if row.get("name"))
    if not names:
        raise ValueError(f'{path!r}: expected a table with names in a column "name", got none')
    return names


def _draws(people_names: Sequence[str], seed: int) -> Iterator[str]:
    generator = np.random.default_rng(seed)
    while True:
        yield people_names[int(generator.integers(len(people_names)))]
