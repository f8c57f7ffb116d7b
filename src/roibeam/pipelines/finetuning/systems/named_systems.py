"""Systems on tasks by name, and the system of a model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from transformers import PreTrainedModel

from roibeam.pipelines.finetuning.systems.task_system import TaskSystem
from roibeam.pipelines.finetuning.systems.vilbert import INTERBERT_SYSTEM as INTERBERT
from roibeam.pipelines.finetuning.systems.vilbert import SINGLE_STREAM
from roibeam.pipelines.finetuning.systems.vilbert import SYSTEM as VILBERT
from roibeam.pipelines.finetuning.systems.visualbert import IMAGEBERT_SYSTEM as IMAGEBERT
from roibeam.pipelines.finetuning.systems.visualbert import SYSTEM as VISUALBERT
from roibeam.pipelines.finetuning.systems.vlbert import SYSTEM as VLBERT
from roibeam.pipelines.training.model_files.model_checkpoint import config_class_of

SYSTEMS: Mapping[str, TaskSystem] = MappingProxyType(
    {each.name: each for each in (VLBERT, VILBERT, SINGLE_STREAM, VISUALBERT, IMAGEBERT, INTERBERT)}
)


def system_of(model: PreTrainedModel) -> TaskSystem:
    """The system that a model is of, pre-trained or with the heads of a release's task."""
    return next(each for each in SYSTEMS.values() if isinstance(model.config, config_class_of(each.model_class)))
