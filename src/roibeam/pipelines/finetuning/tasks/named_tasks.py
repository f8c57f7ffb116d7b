"""Downstream tasks by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roibeam.messages import name_hint
from roibeam.pipelines.data.datasets.tables import check_first_row, read_answer_table, read_table, table_of
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS
from roibeam.pipelines.finetuning.scored_tasks import has_own_tables, is_own, own_task
from roibeam.pipelines.finetuning.task import NamedTask
from roibeam.pipelines.finetuning.tasks.labels import LabelsOptions, open_labels
from roibeam.pipelines.finetuning.tasks.language import NAME as ENTITIES
from roibeam.pipelines.finetuning.tasks.language import EntitiesOptions, glue_task, open_entities
from roibeam.pipelines.finetuning.tasks.nlvr2 import Nlvr2Options, open_nlvr2
from roibeam.pipelines.finetuning.tasks.referring import SPLITS as REFERRING
from roibeam.pipelines.finetuning.tasks.referring import (
    ReferringOptions,
    check_referring,
    check_stored_referring,
    open_referring,
)
from roibeam.pipelines.finetuning.tasks.retrieval import RetrievalOptions, open_retrieval
from roibeam.pipelines.finetuning.tasks.vcr import VcrOptions, check_vcr, open_vcr
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions, check_vqa_folder, open_vqa_or_table

TASKS: Mapping[str, NamedTask] = MappingProxyType(
    {
        "vqa": NamedTask(VqaOptions, open_vqa_or_table),
        "labels": NamedTask(LabelsOptions, open_labels),
        "vcr": NamedTask(VcrOptions, open_vcr, check_vcr),
        "retrieval": NamedTask(RetrievalOptions, open_retrieval, all_pairs=True),
        "nlvr2": NamedTask(Nlvr2Options, open_nlvr2),
        ENTITIES: NamedTask(EntitiesOptions, open_entities),
        **{name: glue_task(name) for name in GLUE_TASKS},
        **{
            name: NamedTask(ReferringOptions, open_referring(name), check_referring, check_stored_referring)
            for name in REFERRING
        },
    }
)


def task_named(name: str) -> NamedTask:
    """The task of a name or file. Raises ValueError for an unknown name, or a file that is no task."""
    if is_own(name):
        return own_task(name).task
    if name not in TASKS:
        raise ValueError(f"--task {name!r}: {name_hint(name, TASKS)}; or name a file of your own task, such as own.py")
    return TASKS[name]


def check_data_folder(name: str, folder: Path, options: Any, split: str = "train") -> None:
    """Raises ValueError where a folder has no files of a task, or the first row of a table of one's own cannot be used.

    Large files are only looked for: the task reads them when it is opened.

    Args:
        options: settings of the task.
    """
    if name == "labels" or (name == "vqa" and has_own_tables(folder)):
        path = table_of(folder, split)
        check_first_row(path, (read_table if name == "labels" else read_answer_table)(path))
        if split == "train" and options.validation:
            table_of(folder, options.validation)
    elif name == "vqa" and split == "train":
        check_vqa_folder(folder, options)
    elif not any(each.is_file() for each in folder.rglob("*")):
        opened = task_named(name).open(folder, options, ())
        opened.read(opened.train if split == "train" else split)  # names what is missing
