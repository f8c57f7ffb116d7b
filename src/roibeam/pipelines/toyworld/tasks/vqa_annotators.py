"""Ten people who answer a question: most say what is so, some are mistaken, and they do not all write alike."""

from __future__ import annotations

from collections import Counter
from typing import Any

from roibeam.pipelines.toyworld.captions import NUMBERS
from roibeam.pipelines.toyworld.randomness import IntegerStream, Weights
from roibeam.pipelines.toyworld.tasks.vqa_questions import NO, NO_PATTERN, TYPES, YES, Question
from roibeam.pipelines.toyworld.world import CATEGORIES, COLOURS, PATTERNS

PEOPLE = 10
# In percent: how often one is mistaken, in questions of three difficulties; how often the mistake is the one that many
# make; how often one writes otherwise, or is sure.
_MISTAKES, _DIFFICULTIES = (2, 15, 70), Weights((70, 22, 8))
_COMMON_MISTAKE, _OTHER_WORDING, _SURE = 60, 12, 80
_NUMBER_WORDS = {"0": "zero", "1": "one"} | {str(count): word for count, word in NUMBERS.items()}
_WRONG: dict[str, tuple[str, ...]] = {
    "kind": tuple(CATEGORIES),
    "colour": tuple(COLOURS),
    "pattern": (*PATTERNS, NO_PATTERN),
    "existence": (YES, NO),
    "relation": (YES, NO),
}


def annotation(question: Question, stream: IntegerStream, *, number: int, image: int) -> dict[str, Any]:
    """An entry of VQA's annotations; `number` and `image` are its ids."""
    mistakes = _MISTAKES[stream.weighted(_DIFFICULTIES)]
    common = _mistaken(question, stream)
    meant = [
        question.answer
        if not stream.percent(mistakes)
        else common
        if stream.percent(_COMMON_MISTAKE)
        else _mistaken(question, stream)
        for _ in range(PEOPLE)
    ]
    question_type, answer_type = TYPES[question.kind]
    return {
        "question_type": question_type,
        "multiple_choice_answer": Counter(meant).most_common(1)[0][0],
        "answers": [
            {
                "answer": _written(question.kind, answer, stream),
                "answer_confidence": "yes" if stream.percent(_SURE) else "maybe",
                "answer_id": place,
            }
            for place, answer in enumerate(meant, 1)
        ],
        "image_id": image,
        "answer_type": answer_type,
        "question_id": number,
    }


def _mistaken(question: Question, stream: IntegerStream) -> str:
    if question.kind == "count":
        count = int(question.answer)
        return str(count + 1 if count == 0 or stream.percent(50) else count - 1)
    return stream.pick([answer for answer in _WRONG[question.kind] if answer != question.answer])


def _written(kind: str, answer: str, stream: IntegerStream) -> str:
    """In forms that the official metric takes for one answer: "2" and "two", "ball" and "a ball"."""
    if not stream.percent(_OTHER_WORDING):
        return answer
    if kind == "count":
        return _NUMBER_WORDS.get(answer, answer)
    return f"the {answer}" if kind == "kind" else answer
