"""VQA v2 from its official files: questions with soft targets, VQA accuracy, the result file of the test server.

Answers come from a list of labels: the majority answers of the training questions, or a file. The list is kept with
the model. Sources: Antol et al. (arXiv:1505.00468); hengyuan-hu/bottom-up-attention-vqa tools/compute_softscore.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.counted import counted
from roibeam.pipelines.finetuning.metrics.answer_text import plain_answer
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.metrics.vqa import AnsweredQuestion, HumanAnswer, vqa_measures
from roibeam.pipelines.finetuning.metrics.vqa_targets import UNKNOWN, answer_labels, soft_target
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.scored_tasks import VQA_YEARS, find_file
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction, TaskSplit
from roibeam.pipelines.inputs.fit import check_choice
from roibeam.pipelines.sources.datasets.vqa import VqaLabels, read_vqa_asked, read_vqa_labels

MAJORITY = "majority"
TARGETS = ("raw", "normalised")
VQA_LOSSES = ("bce", "kl", "ce")
TRAINED = ("train", "train+val")
_PARTS = {"train": ("train",), "val": ("val",), "train+val": ("train", "val"), "test": ("test",)}
_PARTS |= {"test-dev": ("test-dev",)}


@dataclass(frozen=True)
class VqaOptions:
    """
    Attributes:
        answers: "majority", the majority answers of the questions that are trained on; or a file with one label a line.
        min_occurrence: questions that a majority answer needs; 9 in the releases.
        targets: whether people's answers are compared with the labels as they were written ("raw", as all releases do)
            or without articles, signs and number words ("normalised", as the metric does).
        loss: "bce" of each answer, summed (ViLBERT, VL-BERT); "kl" (VisualBERT); "ce", cross-entropy of the targets
            made a distribution (VL-BERT's paper).
        train: "train", or "train+val", as the releases do; then nothing is left to be judged on.
    """

    answers: str = MAJORITY
    min_occurrence: int = 9
    targets: str = "raw"
    loss: str = "bce"
    train: str = "train"

    def __post_init__(self) -> None:
        check_choice(self, "targets", TARGETS)
        check_choice(self, "loss", VQA_LOSSES)
        check_choice(self, "train", TRAINED)
        if self.min_occurrence < 1:
            raise ValueError(f"VqaOptions: min_occurrence must be at least 1, got {self.min_occurrence}")


def open_vqa(folder: Path, options: VqaOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """VQA v2 with its official files in `folder`, found by their names.

    Args:
        labels: that a model learned; None for those that the options ask for.
    """
    chosen = tuple(labels) if labels is not None else _labels(folder, options)
    said = {label: place for place, label in enumerate(chosen) if label != UNKNOWN}
    unknown = [place for place, label in enumerate(chosen) if label == UNKNOWN]

    def words(predictions: Sequence[Prediction]) -> list[str]:
        """The best label of each; `UNKNOWN` is no answer."""
        found = []
        for prediction in predictions:
            scores = prediction.scores.copy()
            scores[unknown] = -np.inf
            found.append(chosen[int(scores.argmax())])
        return found

    def judge(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Mapping[str, Measure]:
        return vqa_measures(
            AnsweredQuestion(
                word, group.facts["answers"], group.facts["question_type"], group.facts["answer_type"], group.images[0]
            )
            for group, word in zip(groups, words(predictions), strict=True)
        )

    def answers(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
        for group, word in zip(groups, words(predictions), strict=True):
            yield {"question_id": int(group.id), "answer": word}

    return DownstreamTask(
        name="vqa",
        form=LABEL,
        loss=options.loss,
        read=lambda split: _read(folder, split, said, options),
        train=options.train,
        validation="val" if options.train == "train" else None,
        judge=judge,
        answers=answers,
        write=_write,
        labels=chosen,
        splits=tuple(_PARTS),
    )


def _write(path: Path, entries: Sequence[Any]) -> None:
    path.write_text(json.dumps(list(entries)), "utf-8")


def _annotations(folder: Path, split: str) -> Path:
    return find_file(folder, f"v2_mscoco_{VQA_YEARS[split]}_annotations.json")


def _labels(folder: Path, options: VqaOptions) -> tuple[str, ...]:
    """The labels that a new model learns.

    Raises:
        ValueError: for a file that is not there, doubled lines, or data without an answer that occurs often enough.
    """
    if options.answers != MAJORITY:
        path = Path(options.answers).expanduser()
        if not path.is_file():
            raise ValueError(f"vqa.answers {options.answers!r}: expected {MAJORITY}, or a file with one label a line")
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
        doubled = next((line for place, line in enumerate(lines) if line in lines[:place]), None)
        if doubled is not None:
            raise ValueError(f"{options.answers!r}: the label {doubled!r} stands in it twice")
        return tuple(lines)
    files = [_annotations(folder, split) for split in _PARTS[options.train]]
    majority = (
        (each.question_id, each.multiple_choice_answer) for path in files for each in read_vqa_labels(str(path))
    )
    found = tuple(answer_labels(majority, options.min_occurrence))
    if len(found) < 2:
        raise ValueError(
            f"{str(files[0])!r}: {counted(len(found), 'majority answer')} of at least "
            f"{counted(options.min_occurrence, 'question')}; set vqa.min_occurrence lower"
        )
    return found


def _read(folder: Path, split: str, labels: Mapping[str, int], options: VqaOptions) -> TaskSplit:
    groups: list[TaskGroup] = []
    files: list[Path] = []
    without = 0
    for part in _PARTS[split]:
        questions = find_file(folder, f"v2_OpenEnded_mscoco_{VQA_YEARS[part]}_questions.json")
        files.append(questions)
        told: dict[int, VqaLabels] = {}
        if part in ("train", "val"):
            files.append(_annotations(folder, part))
            told = {each.question_id: each for each in read_vqa_labels(str(files[-1]))}
        for asked in read_vqa_asked(str(questions)):
            known = told.get(asked.question_id)
            if told and (known is None or not known.answers):
                raise ValueError(
                    f"{asked.where}: question {asked.question_id} has no answers in {str(files[-1])!r}; are both of "
                    f"one split?"
                )
            target = None if known is None else _target(known, labels, options.targets)
            without += target == {}
            groups.append(
                TaskGroup(
                    id=str(asked.question_id),
                    images=(asked.image,),
                    rows=(TaskRow((TaskText((asked.question,)),)),),
                    target=target,
                    facts={} if known is None else _facts(known),
                )
            )
    share = without / max(len(groups), 1)
    notes = [f"{split}: {counted(without, 'question')} ({share:.1%}) have no answer among the labels"] * bool(without)
    return TaskSplit(groups, tuple(files), tuple(notes))


def _target(known: VqaLabels, labels: Mapping[str, int], targets: str) -> dict[int, float]:
    """Place of a label -> how right it is."""
    answers = [answer for answer, _, _ in known.answers]
    if targets == "normalised":
        answers = [plain_answer(answer) for answer in answers]
    return {labels[label]: score for label, score in soft_target(answers, labels).items()}


def _facts(known: VqaLabels) -> dict[str, Any]:
    """What the metric reads; equal words are kept once for all questions."""
    answers = [
        HumanAnswer(sys.intern(answer), sys.intern(confidence), number) for answer, confidence, number in known.answers
    ]
    return {"answers": answers, "question_type": known.question_type, "answer_type": known.answer_type}
