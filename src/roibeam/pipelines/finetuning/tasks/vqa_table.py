"""VQA on questions of one's own: a table for each split, of sources/datasets/own_table.py, in place of official files.

The answer list is made of the training table and kept with the model. People are as many as the table has: of more
than three each is left out in turn, as VQA does; of fewer an answer is as right as the share of those who gave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roibeam.features.counted import counted
from roibeam.pipelines.data.datasets.own_table import AnswerRow, read_answer_table, table_of
from roibeam.pipelines.finetuning.metrics.answer_text import plain_answer
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.metrics.vqa import few_measures
from roibeam.pipelines.finetuning.metrics.vqa_targets import answer_labels, few_target
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup
from roibeam.pipelines.finetuning.scored_tasks import has_own_tables
from roibeam.pipelines.finetuning.task import AskedDirectly, DownstreamTask, Kept, Prediction, TaskSplit
from roibeam.pipelines.finetuning.tasks.vqa import MAJORITY, VqaOptions, open_vqa, question_row, write_answers
from roibeam.pipelines.finetuning.tasks.vqa_rules.answers import (
    NORMALISED,
    check_same_labels,
    check_some_answers,
    enough_labels,
    labels_of_file,
    places_of,
    said_labels,
)
from roibeam.pipelines.finetuning.tasks.vqa_rules.wording import IMDB, mirrored, mirrored_rows

_SPLITS = ("train", "val", "test")
_OF_VQA_ALONE = ("train", "score_rule", "visual_genome", "minival_questions")  # settings that no table has


def open_vqa_or_table(folder: Path, options: VqaOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """VQA v2 by its official files, or the tables of one's own that lie in the folder instead."""
    return open_vqa_table(folder, options, labels) if has_own_tables(folder) else open_vqa(folder, options, labels)


def open_vqa_table(folder: Path, options: VqaOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """
    Args:
        labels: that a model learned; None for those that the options ask for. A model that learned from the official
            files is asked about tables as it is: its settings of training say nothing here.
    Raises:
        ValueError: for settings of the official files in a new run, or tables that are not as they should be.
    """
    if labels is None:
        _check(options)
    chosen = tuple(labels) if labels is not None else _labels(folder, options)
    if labels is not None and options.answers != MAJORITY and Path(options.answers).expanduser().is_file():
        check_same_labels(labels, _labels(folder, options), f"vqa.answers {options.answers!r}")

    def words(predictions: Iterable[Prediction]) -> list[str]:
        return said_labels((each.scores for each in predictions), chosen, says_unknown=options.says_unknown)

    def read(split: str) -> TaskSplit:
        found = _read(table_of(folder, split), split, chosen, options)
        if labels is None and split == "train":
            check_some_answers(found.groups, chosen, split, options.answers)
        return found

    def judge(groups: Sequence[TaskGroup], said: Sequence[str]) -> Mapping[str, Measure]:
        told = [(group.facts["answers"], group.images[0]) for group in groups]
        return few_measures((word, *each) for word, each in zip(said, told, strict=True))

    def answers(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
        for group, word in zip(groups, words(predictions), strict=True):
            yield {"question_id": group.id, "answer": word}

    return DownstreamTask(
        name="vqa",
        form=LABEL,
        loss=options.loss,
        read=read,
        train="train",
        validation="val",
        judge=lambda groups, predictions: judge(groups, words(predictions)),
        kept=Kept(words, judge),
        answers=answers,
        write=write_answers,
        labels=chosen,
        mirrored=lambda group: _mirrored(group, chosen, options),
        mirrors=options.mirror,
        splits=_SPLITS,
        is_told=lambda group: bool(group.facts["answers"]),
        right_words=lambda group: ", ".join(f"{each} ({n})" for each, n in Counter(group.facts["answers"]).items()),
        directly=AskedDirectly(lambda texts: question_row(texts[0], options), words),
        reported_by="labels",
    )


def _check(options: VqaOptions) -> None:
    """Raises ValueError for a setting that tables of one's own do not know."""
    known = VqaOptions()
    changed = [name for name in _OF_VQA_ALONE if getattr(options, name) != getattr(known, name)]
    changed += ["question"] if options.question == IMDB else []
    changed += ["targets"] if options.targets == "stored" else []
    if options.answers == f"{MAJORITY}-train+val":
        changed.append("answers")
    if changed:
        raise ValueError(
            f"vqa.{changed[0]} {getattr(options, changed[0])!r} is of VQA's official files, and --data has tables of "
            f"your own; leave it out"
        )


def _labels(folder: Path, options: VqaOptions) -> tuple[str, ...]:
    """Those of the file that the options name, else the majority answers of the training table: as they were written,
    or where answers are compared without articles and signs in that form."""
    if options.answers != MAJORITY:
        path = Path(options.answers).expanduser()
        if not path.is_file():
            raise ValueError(f"vqa.answers {options.answers!r}: expected {MAJORITY}, or a file with one label a line")
        return labels_of_file(str(path), options.label_form)
    path = table_of(folder, "train")
    majority = (max(Counter(row.answers).items(), key=lambda each: each[1])[0] for row in _told_rows(path))
    if options.targets == NORMALISED:
        found = list(answer_labels(enumerate(majority), options.min_occurrence))
    else:
        found = [label for label, times in Counter(majority).items() if times >= options.min_occurrence]
    return enough_labels(found, path, options.min_occurrence)


def _told_rows(path: Path) -> Iterator[AnswerRow]:
    """Of the training table; ValueError for a row without an answer."""
    for row in read_answer_table(path):
        if not row.answers:
            raise ValueError(
                f"{row.where}: no answers, and this is trained on; vqa needs the columns image, text and answers"
            )
        yield row


def _read(path: Path, split: str, labels: Sequence[str], options: VqaOptions) -> TaskSplit:
    groups = [
        TaskGroup(
            id=row.id,
            images=(row.image,),
            rows=(question_row(row.text, options),),
            target=_target(row.answers, labels, options) if row.answers else None,
            facts={"answers": row.answers},
        )
        for row in (_told_rows(path) if split == "train" else read_answer_table(path))
    ]
    without = sum(group.target == {} for group in groups)
    share = without / max(len(groups), 1)
    notes = [f"{split}: {counted(without, 'question')} ({share:.1%}) have no answer among the labels"] * bool(without)
    return TaskSplit(groups, (path,), tuple(notes))


def _target(answers: Sequence[str], labels: Sequence[str], options: VqaOptions) -> dict[int, float]:
    told = list(map(plain_answer, answers)) if options.targets == NORMALISED else answers
    places = places_of(labels)
    return {places[label]: score for label, score in few_target(told, places).items()}


def _mirrored(group: TaskGroup, labels: Sequence[str], options: VqaOptions) -> TaskGroup:
    """Left and right change places in the question and in people's answers."""
    turned = replace(group, rows=mirrored_rows(group.rows), mirrored=True)
    told = list(map(mirrored, group.facts["answers"]))
    return replace(turned, target=_target(told, labels, options)) if told else turned
