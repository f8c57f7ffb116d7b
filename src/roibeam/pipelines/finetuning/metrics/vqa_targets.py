"""Training targets of VQA: answer labels and the score of each, as public codes count them.

Not the metric: all of them look annotators' answers up as they were written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from roibeam.pipelines.finetuning.metrics.vqa import ENOUGH, plain_answer, without_signs

UNKNOWN = "<unk>"
_SCORES = (0.0, 0.3, 0.6, 0.9, 1.0)  # of 0, 1, 2, 3, more people


def label_of(majority_answer: str) -> str:
    """Label of a `multiple_choice_answer` by compute_softscore.py: `plain_answer` without the commas left in it."""
    return plain_answer(majority_answer).replace(",", "")


def soft_score(people: int) -> float:
    """Score of an answer that `people` of ten people gave."""
    return _SCORES[min(people, len(_SCORES) - 1)]


def answer_labels(majority_answers: Iterable[tuple[int, str]], min_occurrence: int) -> dict[str, int]:
    """The labels, in the order of their first question, with the number of different questions of each.

    Source: hengyuan-hu/bottom-up-attention-vqa and jnhwkim/ban-vqa, tools/compute_softscore.py.

    Args:
        majority_answers: (question id, multiple_choice_answer) of all splits together.
        min_occurrence: questions that a label needs; 9 in the releases.
    """
    questions: dict[str, set[int]] = {}
    for question, answer in majority_answers:
        questions.setdefault(label_of(answer), set()).add(question)
    return {label: len(each) for label, each in questions.items() if len(each) >= min_occurrence}


def soft_target(answers: Iterable[str], labels: Iterable[str]) -> dict[str, float]:
    """Label -> how right it is; answers as they were written, without those that are no label."""
    known = set(labels)
    return {answer: soft_score(people) for answer, people in Counter(answers).items() if answer in known}


def few_target(answers: Sequence[str], labels: Iterable[str]) -> dict[str, float]:
    """`soft_target` for any number of people: each left out in turn; for three and fewer, the share who gave it."""
    known, of = set(labels), len(answers)
    return {
        answer: _left_out(people, of) if of > ENOUGH else people / of
        for answer, people in Counter(answers).items()
        if answer in known
    }


def vlbert_vocabulary(lines: Iterable[str]) -> list[str]:
    """Labels of jackroos/VL-BERT, vqa/data/datasets/vqa.py: lower case, no signs; `UNKNOWN` stays as it is."""
    stripped = (line.lower().strip() for line in lines)
    return [line if line == UNKNOWN else without_signs(line) for line in stripped if line]


def vlbert_soft_target(answers: Sequence[str], vocabulary: Sequence[str]) -> dict[int, float]:
    """Place in the vocabulary (the first of equal labels) -> how right; nothing for answers that are no label.

    Each person is left out in turn, as in the metric, so that other numbers of people than ten count too.
    """
    places: dict[str, int] = {}
    for place, label in enumerate(vocabulary):
        places.setdefault(label, place)
    counts = Counter(places[answer] for answer in answers if answer in places and answer != UNKNOWN)
    return {place: _left_out(people, len(answers)) for place, people in counts.items()}


def _left_out(people: int, of: int) -> float:
    """Mean over all people of min(1, others who gave the answer / 3)."""
    return (people * min(1.0, (people - 1) / ENOUGH) + (of - people) * min(1.0, people / ENOUGH)) / of
