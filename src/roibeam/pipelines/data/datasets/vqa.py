"""VQA v2 (visualqa.org): v2_OpenEnded_mscoco_<split>_questions.json with v2_mscoco_<split>_annotations.json.

Id rule: the COCO number of a question's image, spelled as COCO does ("COCO_train2014_000000000790").
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from roibeam.pipelines.common.files.image_ids import is_utf8
from roibeam.pipelines.common.files.scratch_database import ScratchDatabase
from roibeam.pipelines.data.datasets.image_boxes import shown
from roibeam.pipelines.data.datasets.json_pieces import read_json_members

_SPLIT_IN_NAME = re.compile(r"_(train2014|val2014|test2015|test-dev2015)_")
QUESTIONS, ANNOTATIONS = "questions", "annotations"
EXPECTED = 'a VQA file with a list "questions" or "annotations"'


MINIVAL_QUESTIONS = 3_000  # of the validation split (vilbert_beta, vqa_dataset.py)


@dataclass(frozen=True)
class VqaQuestion:
    """Attributes:
    where: file and entry, for errors.
    image: what its image is called.
    question: as written.
    answers: those of its annotators, ten in the official files; equal ones come as often as they were given.
    """

    where: str
    image: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class VqaLabels:
    """What people said to one question, as its annotation has it.

    Attributes:
        where: file and entry, for errors.
        answers: records of (answer, answer_confidence, answer_id), as written.
    """

    where: str
    question_id: int
    image_id: int
    question_type: str
    answer_type: str
    multiple_choice_answer: str
    answers: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class VqaAsked:
    """A question by itself, as the test splits have them; fields as of `VqaQuestion` and `VqaLabels`."""

    where: str
    question_id: int
    image: str
    question: str


def vqa_part(path: str) -> str | None:
    """`QUESTIONS` or `ANNOTATIONS`, whichever list the file holds; None where it is no object or holds neither."""
    try:
        for name, _, _ in read_json_members(path, expected=EXPECTED):
            if name in (QUESTIONS, ANNOTATIONS):
                return name
    except ValueError:
        pass  # whoever reads it as another kind says what is wrong with it
    return None


def vqa_split(path: str) -> str:
    """The file's "data_subtype", such as "train2014"; where it has none, the split in its official name.

    Raises:
        ValueError: when neither says it.
    """
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name == "data_subtype" and index is None and isinstance(entry, str):
            return entry
    if named := _SPLIT_IN_NAME.search(os.path.basename(path)):
        return named[1]
    raise ValueError(f"{path!r}: no data_subtype, by which VQA's files tell their split")


def read_vqa(questions: str, annotations: str) -> Iterator[VqaQuestion]:
    """The questions of a file in its order, with their answers. The answers lie in a scratch database meanwhile.

    Raises:
        ValueError: naming the entry that is not as VQA writes it, or a question without answers.
    """
    split, table = (
        vqa_split(questions),
        ScratchDatabase("CREATE TABLE answers (question INTEGER PRIMARY KEY, told TEXT)"),
    )
    table.add("INSERT OR REPLACE INTO answers VALUES (?, ?)", _answers(annotations))
    for name, index, entry in read_json_members(questions, expected=EXPECTED):
        if name != QUESTIONS or index is None:
            continue
        where = f"{questions!r}, questions[{index}]"
        number, image, text = _fields(entry, where, question_id=int, image_id=int, question=str)
        found = table.rows("SELECT told FROM answers WHERE question = ?", (number,))
        if not found:
            raise ValueError(f"{where}: question {number} has no answers in {annotations!r}; are both of one split?")
        yield VqaQuestion(where, f"COCO_{split}_{image:012d}", text, tuple(found[0][0].split("\n")))


def read_vqa_labels(path: str) -> Iterator[VqaLabels]:
    """The annotations of a file in its order.

    Raises:
        ValueError: naming the entry that is not as VQA writes it, or a file without any.
    """
    found = False
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name != ANNOTATIONS or index is None:
            continue
        where, found = f"{path!r}, annotations[{index}]", True
        question, image, question_type, answer_type, majority, answers = _fields(
            entry, where, question_id=int, image_id=int, question_type=str, answer_type=str,
            multiple_choice_answer=str, answers=list,
        )  # fmt: skip
        place = f"{where}, answers"
        records = tuple(_fields(each, place, answer=str, answer_confidence=str, answer_id=int) for each in answers)
        yield VqaLabels(where, question, image, question_type, answer_type, majority, records)
    if not found:
        raise ValueError(f"{path!r}: expected VQA's annotations, got {EXPECTED} without one")


def read_vqa_asked(path: str) -> Iterator[VqaAsked]:
    """The questions of a file in its order, whether anybody has answered them or not.

    Raises:
        ValueError: naming the entry that is not as VQA writes it, or a file without any.
    """
    split, found = vqa_split(path).replace("test-dev", "test"), False  # one set of images
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name == QUESTIONS and index is not None:
            where, found = f"{path!r}, questions[{index}]", True
            number, image, text = _fields(entry, where, question_id=int, image_id=int, question=str)
            yield VqaAsked(where, number, f"COCO_{split}_{image:012d}", text)
    if not found:
        raise ValueError(f"{path!r}: expected VQA's questions, got {EXPECTED} without one")


def minival_ids(question_ids: Collection[int], count: int = MINIVAL_QUESTIONS) -> frozenset[int]:
    """The `count` highest ids of the validation questions, which ViLBERT's releases train without."""
    return frozenset(sorted(question_ids)[-count:])


def read_vqa_question_ids(path: str) -> Iterator[int]:
    """The ids of the questions of a file in its order; ValueError names an entry that is not as VQA writes it."""
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name == QUESTIONS and index is not None:
            yield _fields(entry, f"{path!r}, questions[{index}]", question_id=int)[0]


def _answers(path: str) -> Iterator[tuple[int, str]]:
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name != ANNOTATIONS or index is None:
            continue
        where = f"{path!r}, annotations[{index}]"
        number, answers = _fields(entry, where, question_id=int, answers=list)
        told = [_fields(answer, f"{where}, answers", answer=str)[0] for answer in answers]
        yield number, "\n".join(" ".join(each.split()) for each in told)


def _fields(entry: Any, where: str, **kinds: type) -> tuple[Any, ...]:
    """The values of an entry's fields, each of the type given. A file of VQA has six million answers."""
    told: dict[str, Any] = entry if isinstance(entry, dict) else {}
    values: list[Any] = []
    for name, kind in kinds.items():
        value = told.get(name)
        if type(value) is not kind or (isinstance(value, str) and not value.isascii() and not is_utf8(value)):
            raise ValueError(f"{where}: expected VQA's {name}, of type {kind.__name__}, got {shown(value)}")
        values.append(value)
    return tuple(values)
