"""The rows of a VCR question in word pieces, cut to a length: each public code cuts in a way of its own.

`EACH_ROW` is ours: what one choice needs takes nothing from another row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roibeam.pipelines.finetuning.rows import PartPieces, PieceCoder, TaskText

EACH_ROW, SHARED, RUNNING, CHOICE_END, CHOICE_FRONT = "each-row", "shared", "running", "choice-end", "choice-front"
TRUNCATIONS = (EACH_ROW, SHARED, RUNNING, CHOICE_END, CHOICE_FRONT)


class KeptPieces(NamedTuple):
    """Pieces of each part of the context that are kept, from its start; and first and end of those of the choice."""

    context: tuple[int, ...]
    choice: tuple[int, int]


@dataclass(frozen=True)
class PieceRules:
    """
    Attributes:
        limit: text pieces of a row, special ones not counted; 0 cuts nothing.
        truncation: one of `TRUNCATIONS`, see `cut_rows`.
        twice: pieces are written as text and cut into pieces again, so that "##ing" becomes "#", "#", "ing" (12-in-1:
            facebookresearch/vilbert-multi-task vilbert/datasets/vcr_dataset.py:224, 237).
        separator: id of a piece between the parts of the context, which counts and may be cut; None for none.
    """

    limit: int
    truncation: str = EACH_ROW
    twice: bool = False
    separator: int | None = None


def row_pieces(rows: Sequence[Sequence[TaskText]], coder: PieceCoder, rules: PieceRules) -> list[list[PartPieces]]:
    """Rows with one context and different choices, in pieces and cut; of each row its parts, separators among them.

    Raises:
        ValueError: when the context leaves no room and the rule cuts only the choice.
    """
    first = rows[0][:-1]
    context: list[PartPieces] = []
    for part in first:
        if context and rules.separator is not None:
            context.append(_alone(rules.separator))
        context.append(_pieces(part, coder, twice=rules.twice))
    choices = [_pieces(row[-1], coder, twice=rules.twice) for row in rows]
    if not rules.limit:
        return [[*context, choice] for choice in choices]
    lengths = [len(part.ids) for part in context]
    kept = cut_rows(lengths, [len(choice.ids) for choice in choices], rules.limit, rules.truncation)
    return [
        [*(part.kept(0, count) for part, count in zip(context, row.context, strict=True)), choice.kept(*row.choice)]
        for row, choice in zip(kept, choices, strict=True)
    ]


def row_lengths(rows: Sequence[Sequence[TaskText]], coder: PieceCoder, rules: PieceRules) -> list[tuple[int, int]]:
    """Pieces of each row before it is cut, and what `row_pieces` leaves of it; errors as there."""
    parts = rows[0][:-1]
    context = [_num_pieces(part, coder, twice=rules.twice) for part in parts]
    if rules.separator is not None:
        context += [1] * (len(parts) - 1)
    choices = [_num_pieces(row[-1], coder, twice=rules.twice) for row in rows]
    whole = [sum(context) + choice for choice in choices]
    if not rules.limit or max(whole) <= rules.limit:
        return [(length, length) for length in whole]
    kept = cut_rows(context, choices, rules.limit, rules.truncation)
    left = [sum(row.context) + row.choice[1] - row.choice[0] for row in kept]
    return list(zip(whole, left, strict=True))


def cut_rows(context: Sequence[int], choices: Sequence[int], limit: int, rule: str) -> list[KeptPieces]:
    """What is kept of rows that share a context, so that none has more than `limit` pieces.

    Args:
        context: pieces of each part of the context: a question, or a question and its answer.
        choices: pieces of each row's choice.
        rule: EACH_ROW: the longest part of a row loses its last piece, of equal ones the last part, until it fits.
            SHARED: as VL-BERT: the choice loses its last piece where it is longer than the context, else the question
            down to one piece (of a context of one part, to none), then the rest of the context from its end. The
            context is the same in all rows, so a long choice shortens it for all.
            RUNNING: as the first ViLBERT release: the context loses its last piece where it is longer than the choice,
            else the choice; later rows find the context as earlier ones left it.
            CHOICE_END, CHOICE_FRONT: the choice alone loses its last (12-in-1) or its first pieces (VisualBERT).
    Raises:
        ValueError: for an unknown rule, or a context that alone is longer than the limit where it must not be cut.
    """
    if rule == EACH_ROW:
        return [_each_row([*context, choice], limit) for choice in choices]
    if rule == SHARED:
        return _shared(list(context), choices, limit)
    if rule == RUNNING:
        return _running(list(context), choices, limit)
    if rule not in TRUNCATIONS:
        raise ValueError(f"truncation {rule!r}: expected one of {', '.join(TRUNCATIONS)}")
    room = limit - sum(context)
    if room < 0:
        raise ValueError(
            f"a context of {sum(context)} pieces where {limit} fit; truncation {rule!r} cuts the choice alone, set "
            f"another or more pieces"
        )
    at_front = rule == CHOICE_FRONT
    cuts = [max(0, length - room) for length in choices]
    return [
        KeptPieces(tuple(context), (cut, length) if at_front else (0, length - cut))
        for length, cut in zip(choices, cuts, strict=True)
    ]


def _each_row(lengths: list[int], limit: int) -> KeptPieces:
    for _ in range(sum(lengths) - limit):
        lengths[max(range(len(lengths)), key=lambda place: (lengths[place], place))] -= 1
    return KeptPieces(tuple(lengths[:-1]), (0, lengths[-1]))


def _shared(context: list[int], choices: Sequence[int], limit: int) -> list[KeptPieces]:
    least = 1 if len(context) > 1 else 0
    kept = []
    for choice in choices:
        while (length := sum(context)) + choice > limit:
            if choice > length:
                choice -= 1
            elif context[0] > least:
                context[0] -= 1
            else:
                _cut_end(context)
        kept.append(choice)
    return [KeptPieces(tuple(context), (0, choice)) for choice in kept]


def _running(context: list[int], choices: Sequence[int], limit: int) -> list[KeptPieces]:
    kept = []
    for choice in choices:
        while (length := sum(context)) + choice > limit:
            if length > choice:
                _cut_end(context)
            else:
                choice -= 1
        kept.append(KeptPieces(tuple(context), (0, choice)))
    return kept


def _cut_end(context: list[int]) -> None:
    """Takes one piece from the last part that has one."""
    context[max(place for place, length in enumerate(context) if length)] -= 1


def _num_pieces(part: TaskText, coder: PieceCoder, *, twice: bool) -> int:
    words = map(coder.encode, part.words)
    if twice:
        return sum(len(coder.encode(coder.piece(int(each)))) for word in words for each in word)
    return sum(map(len, words))


def _pieces(part: TaskText, coder: PieceCoder, *, twice: bool) -> PartPieces:
    words = [coder.encode(word) for word in part.words]
    if twice:
        nothing = np.zeros(0, np.int64)
        words = [np.concatenate([nothing, *(coder.encode(coder.piece(int(each))) for each in word)]) for word in words]
    counts = [len(word) for word in words]
    return PartPieces(
        np.concatenate([np.zeros(0, np.int64), *words]),
        np.repeat(np.arange(len(words)), counts),
        np.repeat(np.array(part.tags or (-1,) * len(words), np.int64), counts),
    )


def _alone(piece: int) -> PartPieces:
    """One piece that is of no word."""
    return PartPieces(np.array([piece]), np.array([-1]), np.array([-1]))
