"""Which model, sizes and rules make a system, by the name that users choose it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import nn

from model.bert import BertSizes
from model.vlbert import VLBertForPreTraining
from model.vlbert_config import vlbert_base, vlbert_small
from pipelines.pretraining.sampler import Sampler
from pipelines.pretraining.vlbert_samples import VLBertSampler, VLBertSampling


@dataclass(frozen=True)
class System:
    """One of the published systems, as pre-training knows it.

    Attributes:
        name: for people.
        model_class: with the pre-training heads.
        sizes: name of a preset -> builder of the model's configuration, which takes fields as keywords.
        region_label_fields: number of foreground classes and feature width of a store -> the configuration's fields
            that follow from them, beside `region_feature_size`.
        sampling: dataclass of the rules' settings.
        sampler: the rules.
        end_to_end_fields: fields of the model's configuration that a run through the region encoder has otherwise.
        whole_image: `EndToEndChoices.whole_image` of such a run.
    """

    name: str
    model_class: type[nn.Module]
    sizes: Mapping[str, Callable[..., BertSizes]]
    region_label_fields: Callable[[int, int], Mapping[str, Any]]
    sampling: type
    sampler: type[Sampler]
    end_to_end_fields: Mapping[str, Any] = field(default_factory=dict)
    whole_image: str = "model"


SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        "vlbert": System(
            name="VL-BERT",
            model_class=VLBertForPreTraining,
            sizes={"small": vlbert_small, "base": vlbert_base},
            region_label_fields=lambda num_classes, width: {"num_region_labels": num_classes + 1},
            sampling=VLBertSampling,
            sampler=VLBertSampler,
            end_to_end_fields={"masked_appearance": "pixels"},
            whole_image="box",
        ),
    }
)


def system_named(name: str) -> System:
    """Raises ValueError for an unknown name."""
    if name not in SYSTEMS:
        raise ValueError(f"system {name!r}: choose one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name]
