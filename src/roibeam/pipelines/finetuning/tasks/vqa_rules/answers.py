"""Answer labels of VQA by the rules of the releases: which they are, whether two lists are one, how right each is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.pipelines.data.datasets.answer_labels import read_answer_labels
from roibeam.pipelines.finetuning.metrics.answer_text import plain_answer
from roibeam.pipelines.finetuning.metrics.vqa_targets import (
    UNKNOWN,
    soft_target,
    vlbert_soft_target,
    vlbert_vocabulary,
)
from roibeam.pipelines.finetuning.rows import TaskGroup

AS_WRITTEN, WITHOUT_SIGNS = "as_written", "without_signs"
LABEL_FORMS = (AS_WRITTEN, WITHOUT_SIGNS)
RAW, NORMALISED, STORED = "raw", "normalised", "stored"
TARGETS = (RAW, NORMALISED, STORED)
COUNT, LEFT_OUT = "count", "left_out"
SCORE_RULES = (COUNT, LEFT_OUT)
_LEAST_KNOWN = 0.01  # of the training questions, those that must have a label


def labels_of_file(path: str, form: str) -> tuple[str, ...]:
    """The labels of a file, in its order.

    Args:
        form: of `LABEL_FORMS`: as they stand there, or in lower case and without signs (VL-BERT). Two labels may then
            be equal; the first of them is meant.
    Raises:
        ValueError: see `read_answer_labels`.
    """
    labels = read_answer_labels(path)
    return tuple(vlbert_vocabulary(labels)) if form == WITHOUT_SIGNS else labels


def enough_labels(found: Sequence[str], path: Path, min_occurrence: int) -> tuple[str, ...]:
    """Majority answers that a model can choose among.

    Args:
        path: that they were counted in, for the error.
    Raises:
        ValueError: for fewer than two.
    """
    if len(found) < 2:
        raise ValueError(
            f"{str(path)!r}: {counted(len(found), 'majority answer')} of at least "
            f"{counted(min_occurrence, 'question')}; set vqa.min_occurrence lower"
        )
    return tuple(found)


def check_same_labels(learned: Sequence[str], given: Sequence[str], source: str) -> None:
    """
    Args:
        learned: of a model.
        given: of a file that is to be used with it, called `source`.
    Raises:
        ValueError: naming the first place where they differ. The order counts.
    """
    for number, (ours, theirs) in enumerate(zip_longest(learned, given)):
        if ours != theirs:
            told, learnt = ("none" if label is None else repr(label) for label in (theirs, ours))
            raise ValueError(
                f"{source}: {len(given)} labels, and not those that the model learned: label {number} is {told}, "
                f"of the model's {len(learned)} it is {learnt}; name the model's own file"
            )


def check_some_answers(groups: Sequence[TaskGroup], labels: Sequence[str], split: str, answers: str) -> None:
    """
    Args:
        groups: that are to be trained on, with targets.
        answers: the setting that the labels are from.
    Raises:
        ValueError: when almost no question has an answer among the labels: the run would learn nothing, to its end.
    """
    known = sum(bool(group.target) for group in groups)
    if known < max(1, _LEAST_KNOWN * len(groups)):
        some = printable(", ".join(map(repr, labels[:4])), 120)
        raise ValueError(
            f"{split}: {known:,} of {counted(len(groups), 'question')} have an answer among the {len(labels):,} labels "
            f"({some}, ...) of vqa.answers {answers!r}; name the labels of these questions, or lower vqa.min_occurrence"
        )


def scores_of(answers: Sequence[str], labels: Sequence[str], *, text: str, rule: str) -> dict[int, float]:
    """Number of a label -> how right it is, of labels that anybody said; `UNKNOWN` is never right.

    Args:
        answers: of people, as they were written.
        text: `RAW` or `NORMALISED`, how answers are compared with labels.
        rule: of `SCORE_RULES`: 0, 0.3, 0.6, 0.9, 1 by the number of people, who are taken to be ten, or the mean over
            leaving each of them out (VL-BERT). Of ten people both are the same.
    """
    if text == NORMALISED:
        answers = [plain_answer(answer) for answer in answers]
    if rule == LEFT_OUT:
        return vlbert_soft_target(answers, labels)
    places = places_of(labels)
    return {places[label]: score for label, score in soft_target(answers, places).items()}


def places_of(labels: Sequence[str]) -> dict[str, int]:
    """Label -> its number, of equal ones the first; without `UNKNOWN`."""
    places: dict[str, int] = {}
    for number, label in enumerate(labels):
        if label != UNKNOWN:
            places.setdefault(label, number)
    return places


def said_labels(scores: Iterable[np.ndarray], labels: Sequence[str], *, says_unknown: bool) -> list[str]:
    """The label of the highest score of each row, the first of equal ones.

    Args:
        scores: rows of (labels,), none of which is held on to.
        says_unknown: whether `UNKNOWN` may be said, which is never right.
    """
    allowed = np.array([number for number, label in enumerate(labels) if says_unknown or label != UNKNOWN])
    return [labels[allowed[np.argmax(row[allowed])]] for row in scores]
