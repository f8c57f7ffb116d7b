"""Answer labels of VQA and soft targets made from them, as public codes keep them.

    answers_vqa.txt                   one label a line, its number is that of the line (VL-BERT, VisualBERT, Pythia)
    trainval_label2ans.pkl            a pickled list of labels (ViLBERT, LXMERT: compute_softscore.py)
    trainval_ans2label.pkl            a pickled dict, label -> number
    trainval_label2ans.json           the same two as JSON (LXMERT)
    trainval_ans2label.json
    train_target.pkl, val_target.pkl  a pickled list of one dict a question: labels by number, and how right each is

Pickles are read without running anything. Two files with the same labels in another order are two lists: a model that
learned one is useless with the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from roibeam.features.safe_pickle.read import load_pickle
from roibeam.pipelines.common.files.image_ids import is_utf8

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
    """The labels of a file in the order of their numbers. Blank lines at the end of a text do not count.

    Raises:
        ValueError: for a file that is missing or of another kind, a label that is no text or comes twice, or fewer
            than two labels.
    """
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
    """The targets of a file in its order.

    Raises:
        ValueError: naming the entry that is not as compute_softscore.py writes it.
    """
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
    """The labels of a list, or of a dict of their numbers.

    Args:
        kind: of the file, for errors.
    """
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{path!r}: expected a {kind} list of labels, or a dict of their numbers")
    by_number = {number: label for label, number in value.items() if type(number) is int}
    if by_number.keys() != set(range(len(value))):
        raise ValueError(f"{path!r}: the numbers of its {len(value)} labels are not 0 to {len(value) - 1}, each once")
    return [by_number[number] for number in range(len(value))]
