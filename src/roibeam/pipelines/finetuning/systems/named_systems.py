"""The systems by name, and which of them a model is of."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch import nn

from roibeam.near_names import name_hint
from roibeam.pipelines.finetuning.systems.imagebert import SYSTEM as IMAGEBERT
from roibeam.pipelines.finetuning.systems.interbert import SYSTEM as INTERBERT
from roibeam.pipelines.finetuning.systems.task_system import TaskSystem
from roibeam.pipelines.finetuning.systems.vilbert import SINGLE_STREAM
from roibeam.pipelines.finetuning.systems.vilbert import SYSTEM as VILBERT
from roibeam.pipelines.finetuning.systems.visualbert import SYSTEM as VISUALBERT
from roibeam.pipelines.finetuning.systems.vlbert import SYSTEM as VLBERT

SYSTEMS: Mapping[str, TaskSystem] = MappingProxyType(
    {each.name: each for each in (VLBERT, VILBERT, SINGLE_STREAM, VISUALBERT, IMAGEBERT, INTERBERT)}
)


def system_named(name: str) -> TaskSystem:
    """Raises ValueError for an unknown name."""
    if name not in SYSTEMS:
        raise ValueError(f"--system {name!r}: {name_hint(name, SYSTEMS)}")
    return SYSTEMS[name]


def system_of(model: nn.Module, source: object) -> TaskSystem:
    """The system that a pre-trained model is of.

    Args:
        source: where it came from, for the error.
    Raises:
        ValueError: for a model that is none, such as one with the heads of a task.
    """
    for system in SYSTEMS.values():
        if type(model) is system.model_class:
            return system
    raise ValueError(
        f"{source}: {type(model).__name__} has the heads of a task already; name the pre-trained model that it began "
        f"from"
    )
