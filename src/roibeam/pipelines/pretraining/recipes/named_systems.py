"""The systems by name: what they are called and in which sizes their models come, as plain data. `systems.py` has the
models and the rules for samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from roibeam.model.common.presets import SMALL_SIZES
from roibeam.model.interbert.presets import SMALL as SMALL_INTERBERT
from roibeam.model.interbert.presets import interbert_fields
from roibeam.model.vilbert.presets import DEPTHS, vilbert_fields
from roibeam.model.vilbert.presets import SMALL as SMALL_VILBERT
from roibeam.model.visualbert.presets import visualbert_fields
from roibeam.model.vlbert.presets import vlbert_fields
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields

# ImageBERT decides whether a caption belongs to a picture, finds pictures by captions, and learns from one caption at a
# time. VL-BERT's release can do neither; of those that can, ImageBERT gains most from its picture (docs/evidence.md).
DEFAULT_SYSTEM, DEFAULT_SIZE = "imagebert", "small"


@dataclass(frozen=True)
class NamedSystem:
    """
    Attributes:
        title: for people.
        architecture: class of the model with its pre-training heads, as config.json names it.
        sizes: name of a preset -> the model's configuration.
    """

    title: str
    architecture: str
    sizes: Mapping[str, ModelFields]


def _sizes(config_class: str, **sizes: Mapping[str, object]) -> dict[str, ModelFields]:
    return {name.replace("_", "-"): ModelFields(config_class, fields) for name, fields in sizes.items()}


NAMED_SYSTEMS: Mapping[str, NamedSystem] = MappingProxyType(
    {
        "vlbert": NamedSystem(
            "VL-BERT",
            "VLBertForPreTraining",
            _sizes(
                "roibeam.model.vlbert.config.VLBertConfig",
                small=vlbert_fields("release-captions", size="small"),
                base=vlbert_fields("release-captions"),
                large=vlbert_fields("release-captions", size="large"),
                paper=vlbert_fields("paper"),
                paper_small=vlbert_fields("paper", size="small"),
            ),
        ),
        "visualbert": NamedSystem(
            "VisualBERT",
            "VisualBertForPreTraining",
            _sizes(
                "roibeam.model.visualbert.model.VisualBertConfig",
                small=SMALL_SIZES,
                base=visualbert_fields(),
                paper=visualbert_fields("paper"),
            ),
        ),
        "imagebert": NamedSystem(
            "ImageBERT",
            "ImageBertForPreTraining",
            _sizes("roibeam.model.imagebert.model.ImageBertConfig", small=SMALL_SIZES, base={}),
        ),
        "vilbert": NamedSystem(
            "ViLBERT",
            "ViLbertForPreTraining",
            _sizes(
                "roibeam.model.vilbert.config.ViLbertConfig",
                small=SMALL_VILBERT,
                base=vilbert_fields(),
                **{f"base_{depth}_co_attentions": vilbert_fields(depth=depth) for depth in DEPTHS},
                release_mt=vilbert_fields("release-mt"),
                release_mt_roberta=vilbert_fields("release-mt-roberta"),
            ),
        ),
        "vilbert-single-stream": NamedSystem(
            "ViLBERT's single-stream baseline",
            "SingleStreamForPreTraining",
            _sizes("roibeam.model.vilbert.single_stream.SingleStreamConfig", small=SMALL_SIZES, base={}),
        ),
        "interbert": NamedSystem(
            "InterBERT",
            "InterBertForPreTraining",
            _sizes(
                "roibeam.model.interbert.config.InterBertConfig",
                small=SMALL_INTERBERT,
                base=interbert_fields(),
                paper=interbert_fields("paper"),
                single_stream=interbert_fields("single-stream"),
            ),
        ),
    }
)


def named_system(name: str) -> NamedSystem:
    """Raises ValueError for an unknown name."""
    if name not in NAMED_SYSTEMS:
        raise ValueError(f"system {name!r}: choose one of {', '.join(NAMED_SYSTEMS)}")
    return NAMED_SYSTEMS[name]


def model_size(system: str, size: str) -> ModelFields:
    """Raises ValueError for an unknown name of either."""
    sizes = named_system(system).sizes
    if size not in sizes:
        raise ValueError(f"--model {size!r}: choose one of {', '.join(sizes)}")
    return sizes[size]
