"""GLUE: nine tasks of one or two texts without an image, from their official files.

A row is [CLS] text [SEP], or [CLS] first [SEP] second [SEP]; the pooled [CLS] is read. Each system reads it by its
layers of text alone (`encode_text` of the models).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.pipelines.data.datasets.glue import (
    GLUE_TASKS,
    MISMATCHED,
    GlueCounts,
    GlueTask,
    glue_files,
    read_glue,
)
from roibeam.pipelines.data.fit import check_choice
from roibeam.pipelines.finetuning.metrics.glue import check_extra
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.results.glue_results import measures_of, prediction_text, write_glue_results
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.task import (
    NUMBER_LOSS,
    AskedDirectly,
    DownstreamTask,
    NamedTask,
    Prediction,
    TaskSplit,
)

_DEV, _MISMATCHED = "dev", "mismatched"


@dataclass(frozen=True)
class GlueOptions:
    """
    Attributes:
        validation: what a run is judged on: "dev", of MNLI its matched file, or of MNLI the "mismatched" one.
    """

    validation: str = _DEV

    def __post_init__(self) -> None:
        check_choice(self, "validation", (_DEV, _MISMATCHED))


def glue_task(name: str) -> NamedTask:
    """One of `GLUE_TASKS`."""
    task = GLUE_TASKS[name]

    def open_task(folder: Path, options: GlueOptions, labels: Sequence[str] | None) -> DownstreamTask:
        check_extra(task.name)
        return _opened(name, task, folder, options)

    def check(options: GlueOptions) -> None:
        if options.validation == _MISMATCHED and MISMATCHED not in task.rows:
            raise ValueError(f"{name}.validation 'mismatched': MNLI alone has such a file; leave it at dev")

    return NamedTask(GlueOptions, open_task, check, reads_images=False)


def _opened(name: str, task: GlueTask, folder: Path, options: GlueOptions) -> DownstreamTask:
    def judge(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Mapping[str, Measure]:
        return measures_of(task, _values(task, said), [group.facts["label"] for group in groups])

    def answers(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Iterator[tuple[str, str]]:
        for group, word in zip(groups, _words(task, said), strict=True):
            yield group.id, word

    def write(path: Path, entries: Sequence[Any]) -> None:
        write_glue_results(path, [(index, prediction) for index, prediction in entries])

    return DownstreamTask(
        name=name,
        form=LABEL,
        loss="class" if task.labels else NUMBER_LOSS,
        read=_reader(task, folder),
        train="train",
        validation=MISMATCHED if options.validation == _MISMATCHED else task.validation,
        judge=judge,
        answers=answers,
        write=write,
        labels=task.labels,
        num_images=0,
        splits=tuple(task.rows),
        right_words=lambda group: str(group.facts["label"]),
        directly=AskedDirectly(text_row, lambda said: _words(task, said), len(task.texts)),
    )


def text_row(texts: Sequence[str]) -> TaskRow:
    """One or two texts without an image."""
    return TaskRow(tuple(TaskText((text,)) for text in texts), images=())


def _words(task: GlueTask, said: Sequence[Prediction]) -> list[str]:
    return [prediction_text(task, value) for value in _values(task, said)]


def _values(task: GlueTask, said: Sequence[Prediction]) -> list[float]:
    """Numbers of the labels that are said, or similarities."""
    return [float(each.scores.argmax() if task.labels else each.scores[0]) for each in said]


def _reader(task: GlueTask, folder: Path) -> Callable[[str], TaskSplit]:
    places = {label: place for place, label in enumerate(task.labels)}

    def read(split: str) -> TaskSplit:
        files, counts = glue_files(folder, task, split), GlueCounts()
        groups = []
        for row in read_glue(files, task, split, counts):
            target: Any = None
            if row.label is not None:
                target = places[row.label] if places else float(row.label)
            groups.append(TaskGroup(row.id, (), (text_row(row.texts),), target, facts={"label": row.label}))
        if not groups:
            raise ValueError(f"{str(files[0])!r}: no row in it")
        return TaskSplit(groups, files, tuple(counts.notes(split)))

    return read
