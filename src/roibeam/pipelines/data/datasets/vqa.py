"""VQA v2 (visualqa.org): v2_OpenEnded_mscoco_<split>_questions.json, v2_mscoco_<split>_annotations.json, answer labels.

    answers_vqa.txt                   one label a line, its number is that of the line (VL-BERT, VisualBERT, Pythia)
    trainval_label2ans.pkl, .json     a list of labels (ViLBERT, LXMERT: compute_softscore.py)
    trainval_ans2label.pkl, .json     a dict, label -> number
    train_target.pkl, val_target.pkl  a list of one dict a question: labels by number, and how right each is
    imdb_<split>.npy                  questions as Pythia prepared them, in lower-case tokens; the first dict is none

Pickles are read without running anything. The same labels in another order are another list: a model that learned one
is useless with the other. Id rule: the COCO number of a question's image, spelled as COCO does
("COCO_train2014_000000000790").
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.exchange.npy_files import npy_value
from roibeam.features.safe_pickle import load_pickle
from roibeam.pipelines.common.image_ids import is_utf8
from roibeam.pipelines.common.scratch_database import ScratchDatabase
from roibeam.pipelines.data.datasets.image_boxes import typed_fields
from roibeam.pipelines.data.datasets.rows import member_entries, read_json_members

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
    """People's answers to one question, as its annotation has them.

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
class VqaInput:
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
        pass  # the reader of another kind raises the error
    return None


def vqa_split(path: str) -> str:
    """The file's "data_subtype", such as "train2014"; where it has none, the split in its official name. Raises
    ValueError when it has neither."""
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name == "data_subtype" and index is None and isinstance(entry, str):
            return entry
    if named := _SPLIT_IN_NAME.search(os.path.basename(path)):
        return named[1]
    raise ValueError(f"{path!r}: no data_subtype, by which VQA's files tell their split")


def read_vqa(questions: str, annotations: str) -> Iterator[VqaQuestion]:
    """The questions of a file in its order, with their answers. The answers lie in a scratch database meanwhile."""
    table = ScratchDatabase("CREATE TABLE answers (question INTEGER PRIMARY KEY, answers TEXT)")
    table.add("INSERT OR REPLACE INTO answers VALUES (?, ?)", _answers(annotations))
    for each in read_vqa_inputs(questions):
        found = table.rows("SELECT answers FROM answers WHERE question = ?", (each.question_id,))
        if not found:
            raise ValueError(
                f"{each.where}: question {each.question_id} has no answers in {annotations!r}; are both of one split?"
            )
        yield VqaQuestion(each.where, each.image, each.question, tuple(found[0][0].split("\n")))


def read_vqa_labels(path: str) -> Iterator[VqaLabels]:
    """The annotations of a file in its order."""
    where = ""
    for where, entry in member_entries(path, ANNOTATIONS, expected=EXPECTED):
        question, image, question_type, answer_type, majority, answers = _fields(
            entry, where, question_id=int, image_id=int, question_type=str, answer_type=str,
            multiple_choice_answer=str, answers=list,
        )  # fmt: skip
        place = f"{where}, answers"
        records = tuple(_fields(each, place, answer=str, answer_confidence=str, answer_id=int) for each in answers)
        yield VqaLabels(where, question, image, question_type, answer_type, majority, records)
    if not where:
        raise ValueError(f"{path!r}: expected VQA's annotations, got {EXPECTED} without one")


def read_vqa_inputs(path: str) -> Iterator[VqaInput]:
    """Questions of a file in its order, with or without answers."""
    split, where = vqa_split(path).replace("test-dev", "test"), ""  # one set of images
    for where, entry in member_entries(path, QUESTIONS, expected=EXPECTED):
        number, image, text = _fields(entry, where, question_id=int, image_id=int, question=str)
        yield VqaInput(where, number, f"COCO_{split}_{image:012d}", text)
    if not where:
        raise ValueError(f"{path!r}: expected VQA's questions, got {EXPECTED} without one")


def minival_ids(question_ids: Collection[int], count: int = MINIVAL_QUESTIONS) -> frozenset[int]:
    """The `count` highest ids of the validation questions, which ViLBERT's releases train without."""
    return frozenset(sorted(question_ids)[-count:])


def read_vqa_question_ids(path: str, part: str = QUESTIONS) -> Iterator[int]:
    """The ids of the questions, or `ANNOTATIONS`, of a file in its order; ValueError names an entry that has none."""
    for where, entry in member_entries(path, part, expected=EXPECTED):
        yield _fields(entry, where, question_id=int)[0]


def _answers(path: str) -> Iterator[tuple[int, str]]:
    for where, entry in member_entries(path, ANNOTATIONS, expected=EXPECTED):
        number, answers = _fields(entry, where, question_id=int, answers=list)
        texts = [_fields(answer, f"{where}, answers", answer=str)[0] for answer in answers]
        yield number, "\n".join(" ".join(each.split()) for each in texts)


def _fields(entry: Any, where: str, **kinds: type) -> tuple[Any, ...]:
    return typed_fields(entry, f"{where}: expected VQA's", **kinds)


PICKLES = (".pkl", ".pickle")
JSON = ".json"


class StoredTarget(NamedTuple):
    """Attributes:
    where: file and entry, for errors.
    scores: number of a label -> how right it is, 0 to 1.
    """

    where: str
    question_id: int
    scores: Mapping[int, float]


def read_answer_labels(path: str) -> tuple[str, ...]:
    """The labels of a file in the order of their numbers. Blank lines at the end of a text do not count. Raises
    ValueError for a file that is missing or of another kind, a label that is no text or comes twice, or fewer than two
    labels."""
    if not Path(path).is_file():
        raise ValueError(f"no such file: {path!r}; expected answer labels, one a line, as JSON or pickled")
    if path.endswith(PICKLES):
        labels = _listed(load_pickle(path), path, "pickled")
    else:
        labels = _listed(_json(path), path, "JSON") if path.endswith(JSON) else _lines(path)
    places: dict[Any, int] = {}
    for number, label in enumerate(labels):
        if not isinstance(label, str) or not is_utf8(label):
            raise ValueError(f"{path!r}, label {number}: expected a text, got {label!r:.80}")
        if label in places:
            raise ValueError(f"{path!r}: the label {label!r} stands in it twice, as {places[label]} and {number}")
        places[label] = number
    if len(places) < 2:
        raise ValueError(f"{path!r}: {len(places)} answer labels; a model that chooses needs at least 2")
    return tuple(places)


def read_stored_targets(path: str) -> Iterator[StoredTarget]:
    """The targets of a file in its order."""
    entries = load_pickle(path)
    if not isinstance(entries, list):
        raise ValueError(f"{path!r}: expected a pickled list of targets, got a {type(entries).__name__}")
    for number, entry in enumerate(entries):
        where = f"{path!r}, target {number}"
        parts = [entry.get(name) if isinstance(entry, dict) else None for name in ("question_id", "labels", "scores")]
        question, labels, scores = parts
        if type(question) is not int or not isinstance(labels, list) or not isinstance(scores, list):
            raise ValueError(f"{where}: expected question_id, labels and scores, got {entry!r:.80}")
        right = len(labels) == len(scores) and all(type(each) is int and each >= 0 for each in labels)
        if not right or not all(isinstance(each, float | int) and 0 <= each <= 1 for each in scores):
            raise ValueError(f"{where}: expected as many scores from 0 to 1 as numbers of labels, got {entry!r:.80}")
        yield StoredTarget(where, question, {place: float(each) for place, each in zip(labels, scores, strict=True)})


def _lines(path: str) -> list[str]:
    try:
        text = Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path!r}: no text in UTF-8; pickled labels are called *.pkl") from None
    return text.rstrip("\n").split("\n")


def _json(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path!r}: no JSON: {error}; expected a list of labels, or a dict of their numbers; labels one a line are "
            f"called *.txt"
        ) from None


def _listed(value: Any, path: str, kind: str) -> list[Any]:
    """The labels of a list, or of a dict of their numbers."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{path!r}: expected a {kind} list of labels, or a dict of their numbers")
    by_number = {number: label for label, number in value.items() if type(number) is int}
    if by_number.keys() != set(range(len(value))):
        raise ValueError(f"{path!r}: the numbers of its {len(value)} labels are not 0 to {len(value) - 1}, each once")
    return [by_number[number] for number in range(len(value))]


@dataclass(frozen=True)
class ImdbQuestion:
    """Attributes:
    where: file and entry, for errors.
    image: what its image is called.
    tokens: of the question.
    answers: of its people, at most ten; None in the files of the test split.
    """

    where: str
    question_id: int
    image: str
    tokens: tuple[str, ...]
    answers: tuple[str, ...] | None


def read_imdb(path: str) -> Iterator[ImdbQuestion]:
    """The questions of a file in its order. Raises ValueError for a file of another kind, or naming the entry that is
    not as Pythia writes it."""
    try:
        entries = npy_value(Path(path).read_bytes(), repr(path))
    except EntryError as error:
        raise ValueError(f"{path!r}: {error}; expected Pythia's imdb, an array of one dict a question") from None
    except OSError as error:
        raise ValueError(f"{path!r}: cannot be read: {error.strerror or error}") from None
    if not isinstance(entries, list):
        raise ValueError(f"{path!r}: expected Pythia's imdb, an array of one dict a question")
    for index, entry in enumerate(entries):
        if index or (isinstance(entry, dict) and "question_id" in entry):
            yield _question(entry, f"{path!r}, entry {index}")


def _question(entry: Any, where: str) -> ImdbQuestion:
    fields = entry if isinstance(entry, dict) else {}
    number, image, answers = fields.get("question_id"), fields.get("image_name"), fields.get("valid_answers")
    tokens = fields.get("question_tokens")
    if not isinstance(number, int | np.integer) or not isinstance(image, str) or not _are_texts(tokens):
        raise ValueError(f"{where}: expected Pythia's question_id, image_name and question_tokens, got {entry!r:.80}")
    if answers is not None and not _are_texts(answers):
        raise ValueError(f"{where}: expected a list of texts as valid_answers, got {answers!r:.80}")
    return ImdbQuestion(where, int(number), image, tuple(tokens or ()), None if answers is None else tuple(answers))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
