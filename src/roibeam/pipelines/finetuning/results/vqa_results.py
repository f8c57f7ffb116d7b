"""VQA's result file: a json list of {"question_id": 42, "answer": "yes"}, joined with the annotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from roibeam.pipelines.data.datasets.image_boxes import shown
from roibeam.pipelines.data.datasets.json_pieces import read_json_list
from roibeam.pipelines.data.datasets.vqa import VqaLabels
from roibeam.pipelines.finetuning.metrics.vqa import AnsweredQuestion, HumanAnswer
from roibeam.pipelines.finetuning.results.row_ids import OFFICIAL, check_row_ids


def read_vqa_results(path: str) -> Iterator[tuple[int, str]]:
    """(question id, answer) of each entry, as `vqa_result_rows`."""
    return vqa_result_rows(read_json_list(path, expected="VQA's result file, a json list of answers"), repr(path))


def vqa_result_rows(entries: Iterable[Any], source: str) -> Iterator[tuple[int, str]]:
    """(question id, answer) of each entry; other fields are ignored.

    Raises:
        ValueError: naming the entry whose id is no whole number or whose answer is no text.
    """
    for index, entry in enumerate(entries):
        number, answer = (entry.get("question_id"), entry.get("answer")) if isinstance(entry, dict) else (None, None)
        if isinstance(number, str) and number.isdecimal():
            raise ValueError(
                f"{source}, entry {index}: question_id is the text {shown(number)}, and VQA's ids are whole numbers; "
                f"take the quotes away, as int(...) does in Python"
            )
        if type(number) is not int or not isinstance(answer, str):
            raise ValueError(
                f"{source}, entry {index}: expected a whole number as question_id and a text as answer, "
                f"got {shown(number)} and {shown(answer)}"
            )
        yield number, answer


def read_own_answers(path: str) -> Iterator[tuple[str, str]]:
    """As `read_vqa_results`, of questions whose ids are texts; a whole number counts as its digits."""
    for index, entry in enumerate(read_json_list(path, expected="a json list of answers")):
        name, answer = (entry.get("question_id"), entry.get("answer")) if isinstance(entry, dict) else (None, None)
        if type(name) not in (str, int) or not isinstance(answer, str):
            raise ValueError(
                f"{path!r}, entry {index}: expected texts as question_id and answer, got {shown(name)} and "
                f"{shown(answer)}"
            )
        yield str(name), answer


def answers_by_question(
    rows: Iterable[tuple[int, str]], questions: Sequence[int], source: str, rules: str
) -> dict[int, str]:
    """Question id -> answer. Official rules take the last of several answers; strict ones refuse them.

    Raises:
        RowsError: for missing, unknown and, by strict rules, doubled ids.
    """
    given = list(rows)
    numbers = [number for number, _ in given]
    check_row_ids(source, numbers, questions, unit="question", allow_doubled=rules == OFFICIAL)
    return dict(given)


def answered_questions(labels: Iterable[VqaLabels], answers: dict[int, str]) -> Iterator[AnsweredQuestion]:
    """The rows of the metric, in the order of the annotations.

    Raises:
        ValueError: naming an annotation without an answer.
    """
    for each in labels:
        if not each.answers:
            raise ValueError(f"{each.where}: no answer of a person, so that no accuracy can be computed")
        told = [HumanAnswer(*record) for record in each.answers]
        yield AnsweredQuestion(
            answers[each.question_id], told, each.question_type, each.answer_type, str(each.image_id)
        )
