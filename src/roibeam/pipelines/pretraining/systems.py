"""Which model, sizes and rules make a system, by the name that users choose it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import nn

from roibeam.model.common.bert import BertSizes
from roibeam.model.imagebert.model import ImageBertForPreTraining, imagebert_base, imagebert_small
from roibeam.model.interbert.config import interbert_config, interbert_small
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.vilbert.config import DEPTHS, vilbert_config, vilbert_small
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining, single_stream_small
from roibeam.model.visualbert.model import VisualBertForPreTraining, visualbert_config, visualbert_small
from roibeam.model.vlbert.config import vlbert_base, vlbert_config, vlbert_small
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.inputs.captioned.corpus import Corpus
from roibeam.pipelines.pretraining.samples.imagebert import ImageBertSampler, ImageBertSampling
from roibeam.pipelines.pretraining.samples.interbert import InterBertSampler, InterBertSampling
from roibeam.pipelines.pretraining.samples.sampler import Sampler
from roibeam.pipelines.pretraining.samples.vilbert import ViLbertSampler, ViLbertSampling
from roibeam.pipelines.pretraining.samples.visualbert import (
    BOX_NUMBERS,
    VisualBertSampler,
    VisualBertSampling,
    review_captions,
)
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler, VLBertSampling


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
class System:
    """One of the published systems, as pre-training knows it.

    Attributes:
        name: for people.
        model_class: with the pre-training heads.
        sizes: name of a preset -> builder of the model's configuration, which takes fields as keywords.
        class_objective: what the number of the detector's classes is asked for; None for a system that predicts none.
        feature_width: settings of the rules and feature width of a store -> `region_feature_size`.
        sampling: dataclass of the rules' settings.
        sampler: the rules.
        layout: the model's configuration -> the parts of its sequence in order, stream by stream, for people.
        text_only_fields: fields of the configuration of a model that also reads rows of text alone; None where the
            system has none, else its rules are a `TextSampler`.
        text_only_sampling: settings of the rules that rows of text alone follow.
        reads_task_text: whether the rules make samples of a `TaskCorpus`.
        aligns_words: settings of the rules -> whether its words are aligned with the regions that they name.
        most_pieces: settings of the rules -> how many pieces of a caption are read, [CLS] and [SEP] counted; None
            where that is not said.
        review: captions and settings of the rules -> what the rules treat otherwise, for people; ValueError where they
            cannot be used.
        as_deep_as_bert: whether a model that starts from a BERT has its number of layers (`num_hidden_layers`). Else it
            keeps that of the preset: InterBERT shares BERT's layers out to its joint ones and those of the text.
        end_to_end_fields: fields of the model's configuration that a run through the region encoder has otherwise.
        whole_image: `EndToEndChoices.whole_image` of such a run.
    """

    name: str
    model_class: type[nn.Module]
    sizes: Mapping[str, Callable[..., BertSizes]]
    sampling: type
    sampler: type[Sampler]
    layout: Callable[[Any], tuple[tuple[str, ...], ...]]
    class_objective: ClassObjective | None = None
    text_only_fields: Mapping[str, Any] | None = None
    text_only_sampling: tuple[str, ...] = ()
    reads_task_text: bool = False
    aligns_words: Callable[[Any], bool] = field(default=lambda sampling: False)
    feature_width: Callable[[Any, int], int] = field(default=lambda sampling, width: width)
    most_pieces: Callable[[Any], int | None] = field(default=lambda sampling: None)
    review: Callable[[Corpus, Any], list[str]] = field(default=lambda corpus, sampling: [])
    as_deep_as_bert: bool = True
    end_to_end_fields: Mapping[str, Any] = field(default_factory=dict)
    whole_image: str = "model"

    def region_label_fields(self, num_classes: int) -> dict[str, Any]:
        """The configuration's fields that follow from the number of foreground classes."""
        objective = self.class_objective
        return {} if objective is None else {objective.labels: num_classes + objective.background}


_WHOLE, _END = ("whole image",), ("end",)
_MOST_PIECES_OF_BERT = 510  # 512 positions, of which VL-BERT needs two for image and end


_SINGLE_STREAM_CLASSES = ClassObjective("region_loss", "region_target_size", on="kl", off="none")
_INTERBERT_CLASSES = replace(
    _SINGLE_STREAM_CLASSES,
    feature_losses=("regression",),
    instead="; --set model.region_loss=regression predicts their features instead",
)
_VILBERT_CLASSES = replace(_INTERBERT_CLASSES, feature_losses=("regression", "contrastive"))


def _imagebert_layout(config: Any) -> tuple[tuple[str, ...], ...]:
    return (
        ("text", "regions", *_WHOLE * bool(config.global_feature_size), *_END * (config.final_separator != "none")),
    )


SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        "vlbert": System(
            name="VL-BERT",
            model_class=VLBertForPreTraining,
            sizes={
                "small": vlbert_small,
                "base": vlbert_base,
                "large": partial(vlbert_config, "release-captions", size="large"),
                "paper": partial(vlbert_config, "paper"),
                "paper-small": partial(vlbert_config, "paper", size="small"),
            },
            class_objective=ClassObjective(
                "with_region_head", "num_region_labels", read_with_it=("region_labels", "region_loss_mean")
            ),
            sampling=VLBertSampling,
            sampler=VLBertSampler,
            layout=lambda config: (("text", *_WHOLE * config.whole_image_element, "regions", "end"),),
            text_only_fields={"with_text_only": True},
            text_only_sampling=("word_probability", "word_masked_share", "min_text_words", "max_text_pieces"),
            most_pieces=lambda sampling: sampling.max_elements - 1 if sampling.max_elements else _MOST_PIECES_OF_BERT,
            end_to_end_fields={"masked_appearance": "pixels"},
            whole_image="box",
        ),
        "visualbert": System(
            name="VisualBERT",
            model_class=VisualBertForPreTraining,
            sizes={"small": visualbert_small, "base": visualbert_config, "paper": partial(visualbert_config, "paper")},
            sampling=VisualBertSampling,
            sampler=VisualBertSampler,
            layout=lambda config: (("text", "regions"),),
            reads_task_text=True,
            aligns_words=lambda sampling: sampling.aligned_words != "none",
            feature_width=lambda sampling, width: width + BOX_NUMBERS * sampling.box_numbers,
            most_pieces=lambda sampling: sampling.max_pieces,
            review=review_captions,
        ),
        "imagebert": System(
            name="ImageBERT",
            model_class=ImageBertForPreTraining,
            sizes={"small": imagebert_small, "base": imagebert_base},
            class_objective=ClassObjective(
                "with_region_class_head",
                "num_region_labels",
                instead=" (their features are still predicted)",
                background=False,
            ),
            sampling=ImageBertSampling,
            sampler=ImageBertSampler,
            layout=_imagebert_layout,
            most_pieces=lambda sampling: sampling.max_pieces,
            end_to_end_fields={"masked_appearance": "pixels"},
        ),
        "vilbert": System(
            name="ViLBERT",
            model_class=ViLbertForPreTraining,
            sizes={
                "small": vilbert_small,
                "base": vilbert_config,
                **{f"base-{depth}-co-attentions": partial(vilbert_config, depth=depth) for depth in DEPTHS},
                **{name: partial(vilbert_config, name) for name in ("release-mt", "release-mt-roberta")},
            },
            class_objective=_VILBERT_CLASSES,
            sampling=ViLbertSampling,
            sampler=ViLbertSampler,
            layout=lambda config: (("text",), (*_WHOLE, "regions")),
            most_pieces=lambda sampling: sampling.max_pieces,
            end_to_end_fields={"masked_appearance": "pixels"},
        ),
        "vilbert-single-stream": System(
            name="ViLBERT's single-stream baseline",
            model_class=SingleStreamForPreTraining,
            sizes={"small": single_stream_small, "base": SingleStreamConfig},
            class_objective=_SINGLE_STREAM_CLASSES,
            sampling=ViLbertSampling,
            sampler=ViLbertSampler,
            layout=lambda config: (("text", *_WHOLE, "regions"),),
            most_pieces=lambda sampling: sampling.max_pieces,
            end_to_end_fields={"masked_appearance": "pixels"},
        ),
        "interbert": System(
            name="InterBERT",
            model_class=InterBertForPreTraining,
            sizes={
                "small": interbert_small,
                "base": interbert_config,
                **{name: partial(interbert_config, name) for name in ("paper", "single-stream")},
            },
            class_objective=_INTERBERT_CLASSES,
            sampling=InterBertSampling,
            sampler=InterBertSampler,
            layout=lambda config: ((*_WHOLE, "regions", *_END * config.with_image_sep, "text"),),
            most_pieces=lambda sampling: sampling.max_pieces,
            as_deep_as_bert=False,
            end_to_end_fields={"masked_appearance": "pixels"},
        ),
    }
)


def system_named(name: str) -> System:
    """Raises ValueError for an unknown name."""
    if name not in SYSTEMS:
        raise ValueError(f"system {name!r}: choose one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name]
