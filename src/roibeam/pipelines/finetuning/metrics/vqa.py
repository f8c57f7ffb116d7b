"""VQA accuracy: an answer is as right as other people agree with it.

Source: Antol et al. (arXiv:1505.00468, section 5.1), as GT-Vision-Lab/VQA vqaEval.py computes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from typing import NamedTuple

from roibeam.pipelines.finetuning.metrics.answer_text import plain_answer, without_line_ends
from roibeam.pipelines.finetuning.metrics.measure import Measure

ENOUGH = 3  # people who say the same make an answer wholly right


class HumanAnswer(NamedTuple):
    """One record of a question's answers. Records that are equal in all three count as one person."""

    answer: str
    confidence: str
    answer_id: int


class AnsweredQuestion(NamedTuple):
    """A question with what was predicted for it and what people said."""

    predicted: str
    answers: Sequence[HumanAnswer]
    question_type: str
    answer_type: str
    image: str


def answer_accuracy(predicted: str, answers: Sequence[HumanAnswer]) -> float:
    """Mean over the people of min(1, matches among the others / 3).

    Texts are compared as they are where all people wrote the same, else as `plain_answer`. With ten records that
    differ, 0, 1, 2, 3 and more matches give 0, .3, .6, .9 and 1. The answers are not changed (the official object
    changes its own, so that a second file scored with it gets another number).

    Raises:
        ValueError: when nobody answered.
    """
    if not answers:
        raise ValueError("a question without any answer of a person has no accuracy")
    told = [each._replace(answer=without_line_ends(each.answer)) for each in answers]
    said = without_line_ends(predicted)
    if len({each.answer for each in told}) > 1:
        told = [each._replace(answer=plain_answer(each.answer)) for each in told]
        said = plain_answer(said)
    matching = [each for each in told if each.answer == said]
    total = 0.0
    for each in told:
        total += min(1.0, sum(other != each for other in matching) / ENOUGH)
    return total / len(told)


def few_accuracy(predicted: str, answers: Sequence[str]) -> float:
    """As `answer_accuracy`, of people whose number is another in each data set.

    Of more than three people it is the same; of fewer, whom nobody could leave out, the share of those who said it.

    Raises:
        ValueError: when nobody answered.
    """
    if len(answers) > ENOUGH or not answers:
        return answer_accuracy(predicted, [HumanAnswer(each, "", number) for number, each in enumerate(answers)])
    told = [without_line_ends(each) for each in answers]
    said = without_line_ends(predicted)
    if len(set(told)) > 1:
        told, said = list(map(plain_answer, told)), plain_answer(said)
    return told.count(said) / len(told)


def vqa_measures(questions: Iterable[AnsweredQuestion]) -> dict[str, Measure]:
    """ "overall", then "answer type ..." and "question type ..." by name."""
    rows: dict[str, tuple[list[float], list[AnsweredQuestion]]] = {"overall": ([], [])}
    by_kind: dict[str, tuple[list[float], list[AnsweredQuestion]]] = {}
    for each in questions:
        accuracy = answer_accuracy(each.predicted, each.answers)
        for values, asked in (
            rows["overall"],
            by_kind.setdefault(f"answer type {each.answer_type}", ([], [])),
            by_kind.setdefault(f"question type {each.question_type}", ([], [])),
        ):
            values.append(accuracy)
            asked.append(each)
    found = rows | dict(sorted(by_kind.items()))
    return {
        name: Measure(name, values, [each.image for each in asked], guess=partial(_commonest, asked))
        for name, (values, asked) in found.items()
    }


def _commonest(asked: Sequence[AnsweredQuestion]) -> float:
    """The accuracy of always the answer that most people gave, or the next one where that is right more often."""
    return _best_of_commonest(
        [[each.answer for each in row.answers] for row in asked],
        [partial(answer_accuracy, answers=row.answers) for row in asked],
    )


def _best_of_commonest(answers: Sequence[Sequence[str]], accuracies: Sequence[Callable[[str], float]]) -> float:
    """
    Args:
        answers: of each question.
        accuracies: of each question, of an answer.
    """
    counts = Counter(answer for told in answers for answer in told)
    return max(sum(of(answer) for of in accuracies) / len(accuracies) for answer, _ in counts.most_common(2))


def few_measures(questions: Iterable[tuple[str, Sequence[str], str]]) -> dict[str, Measure]:
    """ "overall", by `few_accuracy`, of (what is predicted, what people said, image)."""
    rows = list(questions)
    values = [few_accuracy(predicted, answers) for predicted, answers, _ in rows]
    told = [answers for _, answers, _ in rows]
    guess = partial(_best_of_commonest, told, [partial(few_accuracy, answers=each) for each in told])
    return {"overall": Measure("overall", values, [image for _, _, image in rows], guess=guess)}


def printed_percent(percent: float, decimals: int = 2) -> float:
    """As the official code prints it: exact halves away from zero, as Python 2 rounds."""
    return float(Decimal(percent).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))
