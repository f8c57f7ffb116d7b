"""Downstream tasks by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roibeam.messages import name_hint
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS
from roibeam.pipelines.finetuning.scored_tasks import is_own, own_task
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
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions, open_vqa_or_table

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
