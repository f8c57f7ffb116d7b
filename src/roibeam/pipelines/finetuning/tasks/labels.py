"""One label for an image and a text, from a table of one's own; accuracy; a result file of one JSON object a line.

The labels are those of the training table, and are kept with the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.features.counted import counted
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.results.row_ids import check_row_ids
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction, TaskSplit
from roibeam.pipelines.sources.datasets.own_table import read_table, table_of

_SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class LabelsOptions:
    """
    Attributes:
        validation: the split that a run is judged on; "" for none.
    """

    validation: str = "val"

    def __post_init__(self) -> None:
        if self.validation not in ("", "val", "test"):
            raise ValueError(f"LabelsOptions: validation must be val, test or nothing, got {self.validation!r}")


def open_labels(folder: Path, options: LabelsOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """A table for each split in `folder`, see sources/datasets/own_table.py.

    Args:
        labels: that a model learned; None for those of the training table.
    """
    chosen = tuple(labels) if labels is not None else _labels(table_of(folder, "train"))
    places = {label: place for place, label in enumerate(chosen)}

    def words(predictions: Sequence[Prediction]) -> list[str]:
        return [chosen[int(prediction.scores.argmax())] for prediction in predictions]

    def judge(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Mapping[str, Measure]:
        right = [float(word == group.facts["label"]) for group, word in zip(groups, words(predictions), strict=True)]
        return {"accuracy": Measure("accuracy", right, [group.images[0] for group in groups])}

    def answers(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
        for group, word in zip(groups, words(predictions), strict=True):
            yield {"id": group.id, "label": word}

    return DownstreamTask(
        name="labels",
        form=LABEL,
        loss="class",
        read=lambda split: _read(table_of(folder, split), places, split),
        train="train",
        validation=options.validation or None,
        judge=judge,
        answers=answers,
        write=_write,
        labels=chosen,
        splits=_SPLITS,
        is_told=lambda group: group.facts["label"] is not None,
        right_words=lambda group: str(group.facts["label"]),
    )


def _write(path: Path, entries: Sequence[Any]) -> None:
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), "utf-8")


def _labels(path: Path) -> tuple[str, ...]:
    found = sorted({row.label for row in read_table(path) if row.label is not None})
    if len(found) < 2:
        raise ValueError(f"{str(path)!r}: {counted(len(found), 'label')} in its column label; expected at least 2")
    return tuple(found)


def _read(path: Path, places: Mapping[str, int], split: str) -> TaskSplit:
    rows = list(read_table(path))
    ids = [row.id for row in rows]
    check_row_ids(repr(str(path)), ids, list(dict.fromkeys(ids)), unit="id")
    unknown = 0
    groups = []
    for row in rows:
        if split == "train" and row.label is None:
            raise ValueError(f"{row.where}: no label, and this is trained on")
        target = None if row.label is None else places.get(row.label)
        unknown += row.label is not None and target is None
        text = TaskRow((TaskText((row.text,)),))
        groups.append(TaskGroup(row.id, (row.image,), (text,), target, facts={"label": row.label}))
    notes = [f"{split}: {counted(unknown, 'row')} with a label that nothing is trained on"] * bool(unknown)
    return TaskSplit(groups, (path,), tuple(notes))
