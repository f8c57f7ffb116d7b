"""Which model, sizes and rules make a system, by the name that users choose it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import nn

from roibeam.features.record.region_record import BOX_NUMBERS
from roibeam.model.end_to_end_choices import DEFAULT_MASKING
from roibeam.model.imagebert.model import ImageBertForPreTraining
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamForPreTraining
from roibeam.model.visualbert.model import VisualBertForPreTraining
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.data.captioned.corpus import Corpus
from roibeam.pipelines.pretraining.recipes.named_systems import NAMED_SYSTEMS, ClassObjective, NamedSystem, named_system
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields
from roibeam.pipelines.pretraining.samples.imagebert import ImageBertSampler
from roibeam.pipelines.pretraining.samples.interbert import InterBertSampler
from roibeam.pipelines.pretraining.samples.sampler import Sampler
from roibeam.pipelines.pretraining.samples.vilbert import ViLbertSampler
from roibeam.pipelines.pretraining.samples.visualbert import VisualBertSampler, review_captions
from roibeam.pipelines.pretraining.samples.visualbert_sampling import NAMED
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler


@dataclass(frozen=True)
class System:
    """One of the published systems, as pre-training knows it.

    Attributes:
        named: its title, the sizes and classes of its model and the settings of its rules.
        model_class: with the pre-training heads.
        feature_width: settings of the rules and feature width of a store -> `region_feature_size`.
        sampler: the rules.
        layout: the model's configuration -> the parts of its sequence in order, stream by stream, for people.
        aligns_words: settings of the rules -> whether a row depends on which regions its words name.
        object_fields: settings of the rules, and the number of classes of `--objects` -> fields of the model's
            configuration that follow from it.
        most_pieces: settings of the rules, and what tells a field of the model's configuration by name -> how many
            pieces of a caption are read, [CLS] and [SEP] counted.
        review: captions and settings of the rules -> what the rules treat otherwise, for people; ValueError where they
            cannot be used.
        notes_of_cuts: its rules and the captions -> what hangs on words that are cut, for people.
        as_deep_as_bert: whether a model that starts from a BERT has its number of layers (`num_hidden_layers`). Else it
            keeps that of the preset: InterBERT shares BERT's layers out to its joint ones and those of the text.
        whole_image: `EndToEndChoices.whole_image` of such a run.
    """

    named: NamedSystem
    model_class: type[nn.Module]
    sampler: type[Sampler]
    layout: Callable[[Any], tuple[tuple[str, ...], ...]]
    aligns_words: Callable[[Any], bool] = field(default=lambda sampling: False)
    object_fields: Callable[[Any, int], Mapping[str, Any]] = field(default=lambda sampling, count: {})
    feature_width: Callable[[Any, int], int] = field(default=lambda sampling, width: width)
    most_pieces: Callable[[Any, Callable[[str], Any]], int] = field(default=lambda sampling, model: sampling.max_pieces)
    review: Callable[[Corpus, Any], list[str]] = field(default=lambda corpus, sampling: [])
    notes_of_cuts: Callable[[Any, Corpus], list[str]] = field(default=lambda sampler, corpus: [])
    as_deep_as_bert: bool = True
    whole_image: str = "model"

    @property
    def name(self) -> str:
        """For people."""
        return self.named.title

    @property
    def sampling(self) -> type:
        """Dataclass of the rules' settings."""
        return self.named.sampling

    @property
    def sizes(self) -> Mapping[str, ModelFields]:
        """Name of a preset -> the model's configuration."""
        return self.named.sizes

    @property
    def class_objective(self) -> ClassObjective | None:
        """As of the named system."""
        return self.named.class_objective

    @property
    def text_only_fields(self) -> Mapping[str, Any] | None:
        """As of the named system."""
        return self.named.text_only_fields

    @property
    def text_only_sampling(self) -> tuple[str, ...]:
        """As of the named system."""
        return self.named.text_only_sampling

    @property
    def reads_task_text(self) -> bool:
        """As of the named system."""
        return self.named.reads_task_text

    @property
    def end_to_end_fields(self) -> Mapping[str, Any]:
        """Fields of the model's configuration that a run through the region encoder has where neither preset nor user
        says otherwise."""
        masking = self.named.masking
        return {"masked_appearance": masking[DEFAULT_MASKING]} if masking else {}

    def region_label_fields(self, num_classes: int) -> dict[str, Any]:
        """The configuration's fields that follow from the number of foreground classes."""
        objective = self.class_objective
        return {} if objective is None else {objective.labels: num_classes + objective.background}


_WHOLE, _END = ("whole image",), ("end",)
_POSITIONS = "max_position_embeddings"


def _imagebert_layout(config: Any) -> tuple[tuple[str, ...], ...]:
    return (
        ("text", "regions", *_WHOLE * bool(config.global_feature_size), *_END * (config.final_separator != "none")),
    )


def _pieces_of_vlbert(sampling: Any, model: Callable[[str], Any]) -> int:
    positions = int(model(_POSITIONS)) - 2  # those of image and end
    return min(sampling.max_elements - 1, positions) if sampling.max_elements else positions


SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        "vlbert": System(
            named=NAMED_SYSTEMS["vlbert"],
            model_class=VLBertForPreTraining,
            sampler=VLBertSampler,
            layout=lambda config: (("text", *_WHOLE * config.whole_image_element, "regions", "end"),),
            most_pieces=_pieces_of_vlbert,
            whole_image="box",
        ),
        "visualbert": System(
            named=NAMED_SYSTEMS["visualbert"],
            model_class=VisualBertForPreTraining,
            sampler=VisualBertSampler,
            layout=lambda config: (("text", "regions"),),
            aligns_words=lambda sampling: sampling.aligned_words != "none" or sampling.shown_boxes == NAMED,
            object_fields=lambda sampling, count: {"num_region_classes": (count + 1) * sampling.told_classes},
            feature_width=lambda sampling, width: width + BOX_NUMBERS * sampling.box_numbers,
            most_pieces=lambda sampling, model: min(sampling.max_pieces, model(_POSITIONS)),
            review=review_captions,
            notes_of_cuts=VisualBertSampler.notes_of_cuts,
        ),
        "imagebert": System(
            named=NAMED_SYSTEMS["imagebert"],
            model_class=ImageBertForPreTraining,
            sampler=ImageBertSampler,
            layout=_imagebert_layout,
            most_pieces=lambda sampling, model: (
                min(sampling.max_pieces, model(_POSITIONS)) - (model("final_separator") != "none")
            ),
        ),
        "vilbert": System(
            named=NAMED_SYSTEMS["vilbert"],
            model_class=ViLbertForPreTraining,
            sampler=ViLbertSampler,
            layout=lambda config: (("text",), (*_WHOLE, "regions")),
        ),
        "vilbert-single-stream": System(
            named=NAMED_SYSTEMS["vilbert-single-stream"],
            model_class=SingleStreamForPreTraining,
            sampler=ViLbertSampler,
            layout=lambda config: (("text", *_WHOLE, "regions"),),
        ),
        "interbert": System(
            named=NAMED_SYSTEMS["interbert"],
            model_class=InterBertForPreTraining,
            sampler=InterBertSampler,
            layout=lambda config: ((*_WHOLE, "regions", *_END * config.with_image_sep, "text"),),
            as_deep_as_bert=False,
        ),
    }
)


def system_named(name: str) -> System:
    """Raises ValueError for an unknown name."""
    named_system(name)
    return SYSTEMS[name]
