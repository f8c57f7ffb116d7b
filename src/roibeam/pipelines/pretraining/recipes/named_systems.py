"""The systems by name: what they are called and in which sizes their models come, as plain data. `systems.py` has the
models and the rules for samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from roibeam.model.common.fields import MASKING as ZERO_MASKING
from roibeam.model.common.fields import BertFields
from roibeam.model.common.presets import SMALL_SIZES
from roibeam.model.imagebert.fields import ImageBertFields
from roibeam.model.interbert.fields import InterBertFields
from roibeam.model.interbert.presets import SMALL as SMALL_INTERBERT
from roibeam.model.interbert.presets import interbert_fields
from roibeam.model.vilbert.fields import ViLbertFields
from roibeam.model.vilbert.presets import DEPTHS, vilbert_fields
from roibeam.model.vilbert.presets import SMALL as SMALL_VILBERT
from roibeam.model.vilbert.single_stream_fields import SingleStreamFields
from roibeam.model.visualbert.fields import VisualBertFields
from roibeam.model.visualbert.presets import visualbert_fields
from roibeam.model.vlbert.fields import MASKING as VLBERT_MASKING
from roibeam.model.vlbert.fields import VLBertFields
from roibeam.model.vlbert.presets import vlbert_fields
from roibeam.near_names import name_hint
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields
from roibeam.pipelines.pretraining.samples.imagebert_sampling import ImageBertSampling
from roibeam.pipelines.pretraining.samples.interbert_sampling import InterBertSampling
from roibeam.pipelines.pretraining.samples.vilbert_sampling import ViLbertSampling
from roibeam.pipelines.pretraining.samples.visualbert_sampling import VisualBertSampling
from roibeam.pipelines.pretraining.samples.vlbert_sampling import VLBertSampling

# ImageBERT decides whether a caption belongs to a picture, finds pictures by captions, and learns from one caption at a
# time. VL-BERT's release can do neither; of those that can, ImageBERT gains most from its picture (docs/evidence.md).
DEFAULT_SYSTEM, DEFAULT_SIZE = "imagebert", "small"


@dataclass(frozen=True)
class ClassObjective:
    """The objective of a system that predicts the detector's classes of masked regions.

    Attributes:
        field: of the model's configuration, which has the value `on` with it and `off` without any objective of regions
            in its place.
        labels: field of the configuration: how many classes the model's head has.
        read_with_it: fields that nothing else reads.
        feature_losses: values of `field` that predict features in place of classes.
        instead: what the model learns of regions without it, or may be told to, for people; "" for nothing.
        background: whether background is one of the labels.
    """

    field: str
    labels: str
    on: Any = True
    off: Any = False
    read_with_it: tuple[str, ...] = ()
    feature_losses: tuple[str, ...] = ()
    instead: str = ""
    background: bool = True


@dataclass(frozen=True)
class NamedSystem:
    """
    Attributes:
        title: for people.
        architecture: class of the model with its pre-training heads, as config.json names it.
        sampling: dataclass of the settings of its rules for samples.
        fields: of the model's configuration.
        sizes: name of a preset -> the model's configuration.
        class_objective: what the number of the detector's classes is asked for; None for a system that predicts none.
        text_only_fields: fields of the configuration of a model that also reads rows of text alone; None where the
            system has none, else its rules are a `TextSampler`.
        text_only_sampling: settings of the rules that rows of text alone follow.
        reads_task_text: whether the rules make samples of a `TaskCorpus`.
        masking: name of a masking end to end (`MASKINGS`) -> `masked_appearance` of the model's configuration; none
            for a system that masks no regions.
        reads_objects: whether they can tell a model classes and outlines of `ImageObjects`.
    """

    title: str
    architecture: str
    sampling: type
    fields: type[BertFields]
    sizes: Mapping[str, ModelFields]
    class_objective: ClassObjective | None = None
    text_only_fields: Mapping[str, Any] | None = None
    text_only_sampling: tuple[str, ...] = ()
    reads_task_text: bool = False
    masking: Mapping[str, str] = field(default_factory=dict)
    reads_objects: bool = False


def _sizes(config_class: str, **sizes: Mapping[str, object]) -> dict[str, ModelFields]:
    return {name.replace("_", "-"): ModelFields(config_class, fields) for name, fields in sizes.items()}


_SINGLE_STREAM_CLASSES = ClassObjective("region_loss", "region_target_size", on="kl", off="none")
_INTERBERT_CLASSES = replace(
    _SINGLE_STREAM_CLASSES,
    feature_losses=("regression",),
    instead="; --set model.region_loss=regression predicts their features instead",
)
_VILBERT_CLASSES = replace(_INTERBERT_CLASSES, feature_losses=("regression", "contrastive"))

NAMED_SYSTEMS: Mapping[str, NamedSystem] = MappingProxyType(
    {
        "vlbert": NamedSystem(
            "VL-BERT",
            "VLBertForPreTraining",
            VLBertSampling,
            VLBertFields,
            _sizes(
                "roibeam.model.vlbert.config.VLBertConfig",
                small=vlbert_fields("release-captions", size="small"),
                base=vlbert_fields("release-captions"),
                large=vlbert_fields("release-captions", size="large"),
                paper=vlbert_fields("paper"),
                paper_small=vlbert_fields("paper", size="small"),
            ),
            ClassObjective("with_region_head", "num_region_labels", read_with_it=("region_labels", "region_loss_mean")),
            masking=VLBERT_MASKING,
            text_only_fields={"with_text_only": True},
            text_only_sampling=("word_probability", "word_masked_share", "min_text_words", "max_text_pieces"),
        ),
        "visualbert": NamedSystem(
            "VisualBERT",
            "VisualBertForPreTraining",
            VisualBertSampling,
            VisualBertFields,
            _sizes(
                "roibeam.model.visualbert.model.VisualBertConfig",
                small=SMALL_SIZES,
                base=visualbert_fields(),
                paper=visualbert_fields("paper"),
            ),
            reads_task_text=True,
            reads_objects=True,
        ),
        "imagebert": NamedSystem(
            "ImageBERT",
            "ImageBertForPreTraining",
            ImageBertSampling,
            ImageBertFields,
            _sizes("roibeam.model.imagebert.model.ImageBertConfig", small=SMALL_SIZES, base={}),
            ClassObjective(
                "with_region_class_head",
                "num_region_labels",
                instead=" (their features are still predicted)",
                background=False,
            ),
            masking=ZERO_MASKING,
        ),
        "vilbert": NamedSystem(
            "ViLBERT",
            "ViLbertForPreTraining",
            ViLbertSampling,
            ViLbertFields,
            _sizes(
                "roibeam.model.vilbert.config.ViLbertConfig",
                small=SMALL_VILBERT,
                base=vilbert_fields(),
                **{f"base_{depth}_co_attentions": vilbert_fields(depth=depth) for depth in DEPTHS},
                release_mt=vilbert_fields("release-mt"),
                release_mt_roberta=vilbert_fields("release-mt-roberta"),
            ),
            _VILBERT_CLASSES,
            masking=ZERO_MASKING,
        ),
        "vilbert-single-stream": NamedSystem(
            "ViLBERT's single-stream baseline",
            "SingleStreamForPreTraining",
            ViLbertSampling,
            SingleStreamFields,
            _sizes("roibeam.model.vilbert.single_stream.SingleStreamConfig", small=SMALL_SIZES, base={}),
            _SINGLE_STREAM_CLASSES,
            masking=ZERO_MASKING,
        ),
        "interbert": NamedSystem(
            "InterBERT",
            "InterBertForPreTraining",
            InterBertSampling,
            InterBertFields,
            _sizes(
                "roibeam.model.interbert.config.InterBertConfig",
                small=SMALL_INTERBERT,
                base=interbert_fields(),
                paper=interbert_fields("paper"),
                single_stream=interbert_fields("single-stream"),
            ),
            _INTERBERT_CLASSES,
            masking=ZERO_MASKING,
        ),
    }
)


def named_system(name: str) -> NamedSystem:
    """Raises ValueError for an unknown name."""
    if name not in NAMED_SYSTEMS:
        raise ValueError(f"--system {name!r}: {name_hint(name, NAMED_SYSTEMS)}")
    return NAMED_SYSTEMS[name]


def model_size(system: str, size: str) -> ModelFields:
    """Raises ValueError for an unknown name of either."""
    sizes = named_system(system).sizes
    if size not in sizes:
        raise ValueError(f"--model {size!r}: {name_hint(size, sizes)}")
    return sizes[size]


def wrong_start(source: object, architecture: str, system: NamedSystem) -> ValueError:
    """The error of a run of `system` that is to start from a model of another."""
    return ValueError(
        f"{source} holds {_with_article(architecture)}; {system.title} starts from "
        f"{_with_article(system.architecture)}: choose its --system"
    )


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"
