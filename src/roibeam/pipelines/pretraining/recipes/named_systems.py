"""Systems by name, with the sizes of their models, and the kinds of data that go together in a run; without torch.

`systems.py` has the models and the rules for samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from roibeam.model.common.fields import MASKING as ZERO_MASKING
from roibeam.model.common.fields import SMALL_SIZES, TINY_SIZES, BertFields
from roibeam.model.imagebert.fields import ImageBertFields
from roibeam.model.interbert.fields import SMALL as SMALL_INTERBERT
from roibeam.model.interbert.fields import TINY as TINY_INTERBERT
from roibeam.model.interbert.fields import InterBertFields, interbert_fields
from roibeam.model.vilbert.fields import DEPTHS, SingleStreamFields, ViLbertFields, vilbert_fields
from roibeam.model.vilbert.fields import SMALL as SMALL_VILBERT
from roibeam.model.vilbert.fields import TINY as TINY_VILBERT
from roibeam.model.visualbert.fields import VisualBertFields, visualbert_fields
from roibeam.model.vlbert.fields import MASKING as VLBERT_MASKING
from roibeam.model.vlbert.fields import VLBertFields, vlbert_fields
from roibeam.pipelines.common.console.overrides import preset
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields
from roibeam.pipelines.pretraining.samples.sampling import (
    ImageBertSampling,
    InterBertSampling,
    ViLbertSampling,
    VisualBertSampling,
    VLBertSampling,
)

# ImageBERT predicts whether a caption belongs to an image, finds images by captions, and learns from one caption at a
# time. VL-BERT's release can do neither; of those that can, ImageBERT gains most from its image (docs/evidence.md).
DEFAULT_SYSTEM, DEFAULT_SIZE = "imagebert", "small"


@dataclass(frozen=True)
class ClassObjective:
    """The objective of a system that predicts the detector's classes of masked regions.

    Attributes:
        field: of the model's configuration; its value is `on` with the objective and `off` without any objective of
            regions in its place.
        labels: field of the configuration: number of classes of the model's head.
        read_with_it: fields that only this objective reads.
        feature_losses: values of `field` that predict features in place of classes.
        instead: other objectives of regions that the model learns or can be set to learn, for people; "" for none.
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
        architecture: class of the model with its pre-training heads, as config.json names it.
        sampling: dataclass of the settings of its rules for samples.
        fields: of the model's configuration.
        sizes: name of a preset -> the model's configuration.
        class_objective: use of the number of the detector's classes; None for a system that predicts none.
        text_only_fields: fields of the configuration of a model that also reads rows of text alone; None where the
            system has none, else its rules are a `TextSampler`.
        text_only_sampling: settings of the rules that rows of text alone follow.
        reads_task_text: whether the rules make samples of a `TaskCorpus`.
        masking: name of a masking end to end (`MASKINGS`) -> `masked_appearance` of the model's configuration; none
            for a system that masks no regions.
        reads_objects: whether the model can read classes and outlines of `ImageObjects`.
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
                tiny=vlbert_fields("release-captions", size="tiny"),
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
                tiny=TINY_SIZES,
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
            _sizes("roibeam.model.imagebert.model.ImageBertConfig", tiny=TINY_SIZES, small=SMALL_SIZES, base={}),
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
                "roibeam.model.vilbert.encoder.ViLbertConfig",
                tiny=TINY_VILBERT,
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
            _sizes(
                "roibeam.model.vilbert.single_stream.SingleStreamConfig", tiny=TINY_SIZES, small=SMALL_SIZES, base={}
            ),
            _SINGLE_STREAM_CLASSES,
            masking=ZERO_MASKING,
        ),
        "interbert": NamedSystem(
            "InterBERT",
            "InterBertForPreTraining",
            InterBertSampling,
            InterBertFields,
            _sizes(
                "roibeam.model.interbert.model.InterBertConfig",
                tiny=TINY_INTERBERT,
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
    return preset("system", name, NAMED_SYSTEMS)


def model_size(system: str, size: str) -> ModelFields:
    """Raises ValueError for an unknown name of either."""
    return preset("model", size, named_system(system).sizes)


def wrong_start(source: object, architecture: str, system: NamedSystem) -> ValueError:
    """The error of a run of `system` that was to start from a model of another."""
    return ValueError(
        f"{source} holds {_with_article(architecture)}; {system.title} starts from "
        f"{_with_article(system.architecture)}: choose its --system"
    )


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


_OF_IMAGES = (  # fields of `DataConfig`
    "share", "share_seed", "texts_per_caption", "max_tokens", "validation_captions", "validation_retrieval",
)  # fmt: skip


def text_alone_settings(section: Any) -> dict[str, Any]:
    """Fields of `DataConfig` that a run on text alone reads."""
    return {each.name: getattr(section, each.name) for each in fields(section) if each.name not in _OF_IMAGES}


def check_kinds(
    system: NamedSystem,
    *,
    num_stores: int,
    has_text_corpus: bool,
    has_task_texts: bool = False,
    is_end_to_end: bool = False,
    has_validation: bool = False,
) -> None:
    """Raises ValueError if a text corpus, texts of a task, stores and held-out captions do not go together."""
    if has_text_corpus and system.text_only_fields is None:
        if not num_stores:
            raise ValueError(f"{system.title} reads no text without images; name a --store, or train a VL-BERT")
        raise ValueError(f"{system.title} reads no text without images; leave out the text corpus, or train a VL-BERT")
    if has_task_texts:
        if not system.reads_task_text:
            raise ValueError(
                f"{system.title} was not pre-trained on a task's own text; leave it out, or train a VisualBERT"
            )
        if num_stores > 1:
            raise ValueError(
                f"texts of a task are read with one store, got {num_stores}; merge them (roibeam store copy)"
            )
        if has_validation:
            raise ValueError("texts of a task have no validation here; evaluate the model on its task, or leave it out")
    if is_end_to_end and num_stores > 1:
        raise ValueError(
            f"end to end a run reads one store, got {num_stores}; merge them (roibeam store copy), or train on "
            f"stored features"
        )


def check_search(data: Any, *, has_validation: bool) -> None:
    """Raises ValueError if `data`, a `DataConfig`, sets a search and there is nothing to search in."""
    if data.validation_retrieval and not has_validation:
        raise ValueError(
            "data.validation_retrieval searches among held-out images: name them with --validation-captions"
        )


def check_text_alone(system: NamedSystem, data: Any, sampling: Any) -> None:
    """Raises ValueError for a setting that a run on text alone would not read."""
    _check_read(data, "data", _OF_IMAGES)
    unread = (each.name for each in fields(sampling) if each.name not in system.text_only_sampling)
    _check_read(sampling, "sampling", unread)


def _check_read(settings: Any, section: str, unread: Iterable[str]) -> None:
    for name in unread:
        if getattr(settings, name) != getattr(type(settings)(), name):
            raise ValueError(f"{section}.{name} is of captions with images; a run on text alone has none, leave it out")
