"""The models that folders and checkpoints can hold, by the class name that their config.json has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedModel

from model.imagebert import ImageBertForPreTraining
from model.interbert import InterBertForPreTraining
from model.vilbert import ViLbertForPreTraining
from model.vilbert_single_stream import SingleStreamForPreTraining
from model.visualbert import VisualBertForPreTraining
from model.vlbert import VLBertForPreTraining
from model.vlbert_tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa

MODELS: Mapping[str, type[PreTrainedModel]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            VLBertForPreTraining,
            ViLbertForPreTraining,
            SingleStreamForPreTraining,
            VisualBertForPreTraining,
            ImageBertForPreTraining,
            InterBertForPreTraining,
            VLBertForVqa,
            VLBertForVcr,
            VLBertForReferring,
        )
    }
)


def describe_model(model: PreTrainedModel) -> dict[str, Any]:
    """What a config.json says of a model: its fields and its class."""
    return {**model.config.to_diff_dict(), "architectures": [type(model).__name__]}


def model_named_in(described: Mapping[str, Any]) -> tuple[type[PreTrainedModel], Any]:
    """Class and config of what `describe_model` gave.

    Raises:
        ValueError: for a class that is none of `MODELS`, or fields that its config refuses.
    """
    names = described.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in MODELS:
        raise ValueError(f"architectures is {names!r}; it must name one of {', '.join(MODELS)}")
    kind = MODELS[name]
    config_class: Any = kind.config_class
    return kind, config_class(**described)
