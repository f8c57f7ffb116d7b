"""Rules of VQA in which the releases differ: answer labels, their scores, splits, wording, Visual Genome's questions.

"minival" of ViLBERT's releases are the 3,000 validation questions of the highest ids (vqa_dataset.py, vilbert_beta).
Other questions about the same images stay in the training part, so figures of minival are higher than those of unseen
images. Visual Genome's questions stand beside VQA's in training, as jnhwkim/ban-vqa dataset.py takes them, on photos
that COCO has too: one person has answered each, and a question whose answer is no label is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

import numpy as np

from roibeam.messages import plural, printable
from roibeam.pipelines.data.datasets.visual_genome import read_genome_questions
from roibeam.pipelines.data.datasets.vqa import read_answer_labels
from roibeam.pipelines.data.record_regions import swap_left_right
from roibeam.pipelines.finetuning.metrics.vqa import (
    UNKNOWN,
    label_of,
    plain_answer,
    soft_target,
    vlbert_soft_target,
    vlbert_vocabulary,
)
from roibeam.pipelines.finetuning.rows import TaskGroup, text_row
from roibeam.pipelines.finetuning.scored_tasks import MINIVAL, find_file

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
    """
    labels = read_answer_labels(path)
    return tuple(vlbert_vocabulary(labels)) if form == WITHOUT_SIGNS else labels


def enough_labels(found: Sequence[str], path: Path, min_occurrence: int) -> tuple[str, ...]:
    """Majority answers that a model can choose among. Raises ValueError for fewer than two.

    Args:
        path: file of the counts, for the error.
    """
    if len(found) < 2:
        raise ValueError(
            f"{str(path)!r}: {plural(len(found), 'majority answer')} of at least "
            f"{plural(min_occurrence, 'question')}; lower it: --set vqa.min_occurrence=1"
        )
    return tuple(found)


def check_same_labels(learned: Sequence[str], given: Sequence[str], source: str) -> None:
    """Checks that the labels of a file are those of a model.

    Args:
        given: of a file that is to be used with it, called `source`.
    Raises:
        ValueError: naming the first place where they differ. The order counts.
    """
    for number, (own, other) in enumerate(zip_longest(learned, given)):
        if own != other:
            found, expected = ("none" if label is None else repr(label) for label in (other, own))
            raise ValueError(
                f"{source}: {len(given)} labels, and not those that the model learned: label {number} is {found}, "
                f"of the model's {len(learned)} it is {expected}; name the model's own file"
            )


def check_some_answers(groups: Sequence[TaskGroup], labels: Sequence[str], split: str, answers: str) -> None:
    """Checks that questions have answers among the labels. Raises ValueError when almost no question has an answer
    among the labels: the run would learn nothing, to its end."""
    known = sum(bool(group.target) for group in groups)
    if known < max(1, _LEAST_KNOWN * len(groups)):
        some = printable(", ".join(map(repr, labels[:4])), 120)
        raise ValueError(
            f"{split}: {known:,} of {plural(len(groups), 'question')} have an answer among the {len(labels):,} labels "
            f"({some}, ...) of vqa.answers {answers!r}; name the labels of these questions, or lower vqa.min_occurrence"
        )


def scores_of(answers: Sequence[str], labels: Sequence[str], *, text: str, rule: str) -> dict[int, float]:
    """Number of a label -> how right it is, of labels that people gave; `UNKNOWN` is never right.

    Args:
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


def predicted_labels(scores: Iterable[np.ndarray], labels: Sequence[str], *, says_unknown: bool) -> list[str]:
    """The label of the highest score of each row, the first of equal ones.

    Args:
        scores: rows of (labels,), none of which is held on to.
        says_unknown: whether `UNKNOWN` may be predicted, which is never right.
    """
    allowed = np.array([number for number, label in enumerate(labels) if says_unknown or label != UNKNOWN])
    return [labels[allowed[np.argmax(row[allowed])]] for row in scores]


WHOLE, WITHOUT_MINIVAL, ONLY_MINIVAL = "whole", "without minival", "only minival"
# Split -> official files that it is made from, and which part of each.
PARTS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "train": (("train", WHOLE),),
        "val": (("val", WHOLE),),
        "test": (("test", WHOLE),),
        "test-dev": (("test-dev", WHOLE),),
        "train+val": (("train", WHOLE), ("val", WHOLE)),
        "train+val-minival": (("train", WHOLE), ("val", WITHOUT_MINIVAL)),
        MINIVAL: (("val", ONLY_MINIVAL),),
    }
)
TRAINED = ("train", "train+val", "train+val-minival")


def judged_split(train: str) -> str | None:
    """The split that judges a run trained on `train`, with none of its questions; None for none."""
    return {"train": "val", "train+val-minival": MINIVAL}.get(train)


def overlap_note(split: str, train: str) -> str | None:
    """Note on a split that overlaps the training split of the model; None for none."""
    if split == MINIVAL and train == "train+val":
        return "minival lies inside train+val, on which the model is trained: its figure is no validation figure"
    if split == "train+val":
        return "train+val holds minival too: no figure of val or of minival is a validation figure of this model"
    if split == MINIVAL and train == "train+val-minival":
        return "minival: other questions about its images are trained on, so that its figure is high"
    return None


RAW_QUESTION, PYTHIA, IMDB = "raw", "pythia", "imdb"
QUESTION_FORMS = (RAW_QUESTION, PYTHIA, IMDB)
_BETWEEN_WORDS = re.compile(r"(\W+)")


def worded(question: str, form: str) -> str:
    """The text of a question.

    Args:
        form: of `QUESTION_FORMS`: as its file has it ("raw", "imdb"), or as Pythia prepared it ("pythia").
    """
    return " ".join(pythia_tokens(question)) if form == PYTHIA else question


def pythia_tokens(question: str) -> list[str]:
    """Words in lower case, "'s" by itself, no comma and no question mark; signs stand by themselves.

    Source: facebookresearch/pythia, and visualbert/dataloaders/vqa_dataset.py of uclanlp/visualbert (`tokenize`).
    """
    text = question.lower().replace("'s", " 's").replace(",", "").replace("?", "")
    return [part.strip() for part in _BETWEEN_WORDS.split(text) if part.strip()]


NONE, OF_COCO, ALL = "none", "coco", "all"
GENOME_QUESTIONS = (NONE, OF_COCO, ALL)
GENOME_ANSWER = "genome_answer"  # of a group's facts


def genome_groups(
    folder: Path, labels: Sequence[str], *, which: str, wording: str, judged: Collection[str]
) -> tuple[list[TaskGroup], str]:
    """The questions whose answer is a label, and a note on those that were left out.

    Args:
        which: `OF_COCO`, photos that COCO has too; or `ALL`.
        wording: of `QUESTION_FORMS`.
        judged: names of the images that the run is evaluated on, as VQA has them; no question on them is taken.
    Raises:
        ValueError: for files that are missing or not as Visual Genome writes them, or no question that is left.
    """
    questions = str(find_file(folder, "question_answers.json"))
    places, unseen = places_of(labels), {int(name[-12:]) for name in judged}
    groups: list[TaskGroup] = []
    unknown = on_judged = 0
    for each in read_genome_questions(questions, str(find_file(folder, "image_data.json"))):
        if each.coco is None and which == OF_COCO:
            continue
        if each.coco in unseen:
            on_judged += 1
            continue
        answer = label_of(each.answer)
        if answer not in places:
            unknown += 1
            continue
        row = text_row(worded(each.question, wording))
        groups.append(
            TaskGroup(f"vg-{each.number}", (each.image,), (row,), {places[answer]: 1.0}, facts={GENOME_ANSWER: answer})
        )
    if not groups:
        raise ValueError(f"{questions!r}: no question is left whose answer is a label; leave vqa.visual_genome at none")
    note = f"Visual Genome: {plural(len(groups), 'question')}; left out are {unknown:,} whose answer is no label"
    return groups, f"{note}, and {on_judged:,} about images that the run is evaluated on"


def mirrored_target(group: TaskGroup, labels: Sequence[str]) -> dict[int, float]:
    """Target beside the mirrored photo."""
    answer, places = swap_left_right(group.facts[GENOME_ANSWER]), places_of(labels)
    return {places[answer]: 1.0} if answer in places else {}
