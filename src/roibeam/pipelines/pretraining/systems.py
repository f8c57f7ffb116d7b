"""Systems: model, sizes and rules by the name that users choose, and the weights that a run starts from.

New weights, those of BERT, or the model of an earlier stage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import nn

from roibeam.features.record.region_record import BOX_NUMBERS
from roibeam.model.common.bert import BertSizes
from roibeam.model.common.fields import DEFAULT_MASKING
from roibeam.model.imagebert.model import ImageBertForPreTraining
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamForPreTraining
from roibeam.model.visualbert.model import VisualBertForPreTraining
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.analysis.evaluation.evaluation_samples import region_objective
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.data.vocabulary import StoreClasses, check_background
from roibeam.pipelines.pretraining.recipes.named_systems import (
    NAMED_SYSTEMS,
    ClassObjective,
    NamedSystem,
    named_system,
    wrong_start,
)
from roibeam.pipelines.pretraining.samples.imagebert import ImageBertSampler
from roibeam.pipelines.pretraining.samples.interbert import InterBertSampler
from roibeam.pipelines.pretraining.samples.sampler import Sampler
from roibeam.pipelines.pretraining.samples.sampling import NAMED
from roibeam.pipelines.pretraining.samples.vilbert import ViLbertSampler
from roibeam.pipelines.pretraining.samples.visualbert import VisualBertSampler, review_captions
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.model_start import (
    PublishedBert,
    built_config,
    changed_model,
    start_from_bert,
)
from roibeam.pipelines.training.model_files.provenance import TrainedWith, trained_with


@dataclass(frozen=True, kw_only=True)
class System(NamedSystem):
    """One of the published systems, with its model and its rules.

    Attributes:
        model_class: with the pre-training heads.
        feature_width: settings of the rules and feature width of a store -> `region_feature_size`.
        layout: the model's configuration -> the parts of its sequence in order, stream by stream, for people.
        aligns_words: settings of the rules -> whether a row depends on which regions its words name.
        object_fields: settings of the rules, and the number of classes of `--objects` -> fields of the model's
            configuration that follow from it.
        most_pieces: settings of the rules, and a function from the name of a field of the model's configuration to
            its value -> number of pieces of a caption that are read, [CLS] and [SEP] counted.
        review: captions and settings of the rules -> notes on what the rules treat otherwise, for people;
            ValueError if they cannot be used.
        notes_of_cuts: its rules and the captions -> notes on consequences of cut words, for people.
        as_deep_as_bert: whether a model that starts from a BERT has its number of layers (`num_hidden_layers`). Else it
            keeps that of the preset: InterBERT shares BERT's layers out to its joint ones and those of the text.
        whole_image: `EndToEndChoices.whole_image` of such a run.
    """

    model_class: type[nn.Module]
    sampler: type[Sampler]
    layout: Callable[[Any], tuple[tuple[str, ...], ...]]
    aligns_words: Callable[[Any], bool] = field(default=lambda _sampling: False)
    object_fields: Callable[[Any, int], Mapping[str, Any]] = field(default=lambda _sampling, _count: {})
    feature_width: Callable[[Any, int], int] = field(default=lambda _sampling, width: width)
    most_pieces: Callable[[Any, Callable[[str], Any]], int] = field(
        default=lambda sampling, _model: sampling.max_pieces
    )
    review: Callable[[Corpus, Any], list[str]] = field(default=lambda _corpus, _sampling: [])
    notes_of_cuts: Callable[[Any, Corpus], list[str]] = field(default=lambda _sampler, _corpus: [])
    as_deep_as_bert: bool = True
    whole_image: str = "model"

    @property
    def end_to_end_fields(self) -> Mapping[str, Any]:
        """Default fields of the model's configuration in a run through the region encoder, below those of preset and
        user."""
        return {"masked_appearance": self.masking[DEFAULT_MASKING]} if self.masking else {}

    def region_label_fields(self, num_classes: int) -> dict[str, Any]:
        """The configuration's fields that follow from the number of foreground classes."""
        objective = self.class_objective
        return {} if objective is None else {objective.labels: num_classes + objective.background}


_WHOLE, _END = ("whole image",), ("end",)
_POSITIONS = "max_position_embeddings"


def _system(name: str, **parts: Any) -> System:
    return System(**vars(NAMED_SYSTEMS[name]), **parts)


def _pieces_of_vlbert(sampling: Any, model: Callable[[str], Any]) -> int:
    positions = int(model(_POSITIONS)) - 2  # those of image and end
    return min(sampling.max_elements - 1, positions) if sampling.max_elements else positions


SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        "vlbert": _system(
            "vlbert",
            model_class=VLBertForPreTraining,
            sampler=VLBertSampler,
            layout=lambda config: (("text", *_WHOLE * config.whole_image_element, "regions", "end"),),
            most_pieces=_pieces_of_vlbert,
            whole_image="box",
        ),
        "visualbert": _system(
            "visualbert",
            model_class=VisualBertForPreTraining,
            sampler=VisualBertSampler,
            layout=lambda _config: (("text", "regions"),),
            aligns_words=lambda sampling: sampling.aligned_words != "none" or sampling.shown_boxes == NAMED,
            object_fields=lambda sampling, count: {"num_region_classes": (count + 1) * sampling.told_classes},
            feature_width=lambda sampling, width: width + BOX_NUMBERS * sampling.box_numbers,
            most_pieces=lambda sampling, model: min(sampling.max_pieces, model(_POSITIONS)),
            review=review_captions,
            notes_of_cuts=VisualBertSampler.notes_of_cuts,
        ),
        "imagebert": _system(
            "imagebert",
            model_class=ImageBertForPreTraining,
            sampler=ImageBertSampler,
            layout=lambda config: (
                (
                    "text",
                    "regions",
                    *_WHOLE * bool(config.global_feature_size),
                    *_END * (config.final_separator != "none"),
                ),
            ),
            most_pieces=lambda sampling, model: (
                min(sampling.max_pieces, model(_POSITIONS)) - (model("final_separator") != "none")
            ),
        ),
        "vilbert": _system(
            "vilbert",
            model_class=ViLbertForPreTraining,
            sampler=ViLbertSampler,
            layout=lambda _config: (("text",), (*_WHOLE, "regions")),
        ),
        "vilbert-single-stream": _system(
            "vilbert-single-stream",
            model_class=SingleStreamForPreTraining,
            sampler=ViLbertSampler,
            layout=lambda _config: (("text", *_WHOLE, "regions"),),
        ),
        "interbert": _system(
            "interbert",
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


logger = logging.getLogger(__name__)
_CLASS_PARAMETERS = ("masked_region_head.decoder.weight", "masked_region_head.decoder.bias")


@dataclass(frozen=True)
class ClassChoice:
    """A run's use of the classes that its stores know: their number, 0 if the rules use none; fields that follow from
    it in a new model's configuration, and in that of a start; and a note for the user."""

    number: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, eq=False)
class ModelChoice:
    """The model of a run, and what it starts from.

    Attributes:
        build_config: makes the model's configuration from keyword fields; None for the system's small one. Vocabulary,
            feature width and region labels are filled in.
        overrides: further fields of the configuration.
        tokenizer_spec: see `load_tokenizer`; a resumed run reads the tokenizer it saved.
        bert: what the model starts from; its sizes take the place of the preset's (but see `System.as_deep_as_bert`).
        start: a trained model of the same system to start from, as stages do; its configuration takes the place of the
            preset's. Parts that `overrides` add are drawn anew, parts that they leave out are dropped.
        background: of `start`, see `continued_model`.
        recipe, features: the recipe's name, and what it needs of a store; "" and None without one, and of its toy.
    """

    system: System = SYSTEMS["vlbert"]
    build_config: Callable[..., BertSizes] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_spec: str = "captions"
    bert: PublishedBert | None = None
    start: ModelCheckpoint | None = None
    background: str | None = None
    recipe: str = ""
    features: Features | None = None

    def model(
        self, fields: Mapping[str, Any], *, vocab_size: int, changes: Mapping[str, Any] = MappingProxyType({})
    ) -> nn.Module:
        """The initial model of the run; its parameters are drawn from torch's random state.

        Args:
            fields: of a new model's configuration, as data and rules require.
            changes: fields that the model of `start` must have too.
        """
        if self.start is not None:
            changed = {**changes, **self.overrides}
            return continued_model(self.start, self.system, changed, background=self.background)
        # The sizes of BERT, with that of its vocabulary, replace the preset's.
        sizes = {"vocab_size": vocab_size} if self.bert is None else dict(self.bert.sizes)
        if not self.system.as_deep_as_bert:
            sizes.pop("num_hidden_layers", None)
        build = self.build_config or self.system.sizes["small"]
        config = built_config(build, {**sizes, **fields, **self.overrides}, self.overrides)
        model = self.system.model_class(config)
        if self.bert is not None:
            left, filled = start_from_bert(model, self.bert), len(model.state_dict())
            logger.info("BERT %s: %s filled, %s as drawn", self.bert.spec, filled - len(left), len(left))
        return model

    def class_choice(self, classes: StoreClasses, *, width: int, given: int | None) -> ClassChoice:
        """Decides whether masked regions are predicted by class: not if the stores lack the number of classes.
        ValueError if the user sets classes that they do not have, or a number (`given`) that nothing uses; width: D of
        features."""
        system, objective = self.system, self.system.class_objective
        fields = {} if classes.number is None else system.region_label_fields(classes.number)
        loss = None if objective is None else self.field_of_model(objective.field)
        if given is not None and (objective is None or loss != objective.on):
            why = "" if objective is None else f" (model.{objective.field}={loss})"
            raise ValueError(
                f"--num-classes {given}: this {system.title} predicts no classes of regions{why}; leave the option out"
            )
        if objective is None:
            return ClassChoice(0)
        if loss in objective.feature_losses:
            return ClassChoice(classes.number or 0, {objective.labels: width})
        if loss != objective.on or classes.number is not None:
            return ClassChoice(classes.number or 0, fields, note=self._note_of_a_missing_head(objective, loss, fields))
        asking = (objective.field, objective.labels, *objective.read_with_it)
        named = [name for name in asking if name in self.overrides]
        if named:
            raise ValueError(
                f"--set model.{named[0]}={self.overrides[named[0]]} is for predicting classes of masked regions, but "
                f"{classes.missing}; {classes.remedy}, or leave the setting out"
            )
        if self.start is not None and classes.has_ids:
            learned = getattr(self.start.model.config, objective.labels) - objective.background
            note = f"{classes.missing}: taken for the {learned:,} that {self.start.source} was made for"
            return ClassChoice(learned, note=note)
        off = {objective.field: objective.off}
        why = f"{classes.missing}; {classes.remedy}{objective.instead}"
        return ClassChoice(0, off, off, f"{system.title} predicts no classes of masked regions: {why}")

    def _note_of_a_missing_head(self, objective: ClassObjective, loss: Any, fields: Mapping[str, Any]) -> str:
        """A note for a model to start from whose own stores had no classes; "" if the user sets it so."""
        if self.start is None or loss == objective.on or objective.field in self.overrides or not fields:
            return ""
        settings = {objective.field: str(objective.on).lower(), **fields}
        adding = " ".join(f"--set model.{name}={value}" for name, value in settings.items())
        return f"{self.start.source} predicts no classes of masked regions; {adding} adds that"

    def field_of_model(self, name: str) -> Any:
        """Value of a field in the configuration: the user's, of the model or BERT to start from, or of the preset."""
        if name in self.overrides:
            return self.overrides[name]
        if self.start is not None:
            return getattr(self.start.model.config, name)
        if self.bert is not None and name in self.bert.sizes:
            return self.bert.sizes[name]
        return getattr((self.build_config or self.system.sizes["small"])(), name)

    def most_pieces(self, sampling: Any) -> int:
        """Number of pieces of a caption that the model reads, [CLS] and [SEP] counted."""
        return self.system.most_pieces(sampling, self.field_of_model)

    def recorded(self) -> dict[str, Any]:
        """Facts of the run folder that may differ on resume."""
        return {
            "tokenizer_spec": self.tokenizer_spec,
            "bert": None if self.bert is None else self.bert.spec,
            "start": None if self.start is None else str(self.start.source),
            "recipe": self.recipe,
        }


def check_system(start: ModelCheckpoint, system: System) -> None:
    """Raises ValueError if the model to start from is of another system."""
    if not isinstance(start.model, system.model_class):
        raise wrong_start(start.source, type(start.model).__name__, system)


def continued_model(
    start: ModelCheckpoint, system: System, overrides: Mapping[str, Any], *, background: str | None = None
) -> nn.Module:
    """The model of an earlier stage, with its weights, changed for this stage.

    Args:
        overrides: fields of its configuration that change. New parameters keep their initial values, unused ones
            are dropped.
        background: position of background in the classes of its region head (first, last or none), if it is not a
            run's: those of roibeam's stores have it last, so it is moved there. Most published models have it first.
    """
    check_system(start, system)
    state = start.model.state_dict()
    if _has_background_first(start, background):
        state |= {name: state[name].roll(-1, dims=0) for name in _CLASS_PARAMETERS}
        logger.info("%s: background moved behind the other classes of regions, as in our stores", start.source)
    return changed_model(start.model, overrides, source=start.source, state=state)


def _has_background_first(start: ModelCheckpoint, background: str | None) -> bool:
    check_background(background)
    objective = region_objective(start.model.config)
    with_background = objective is not None and objective.loss in ("cross entropy", "kl")
    of_run = trained_with(start) != TrainedWith()
    wrong = {"first", "none"} if with_background and of_run else {"none"} if with_background else {"first"}
    if background in wrong:
        why = "it predicts no classes of regions"
        if with_background:
            why = "a run of roibeam pretrain has background last" if of_run else "it predicts background too"
        raise ValueError(f"--background {background}: {start.source}: {why}; leave it out")
    if background is None and with_background and not of_run:
        raise ValueError(
            f"{start.source} does not record if its {objective.labels if objective else 0} region classes start "
            f"with background, as those of most published models do, or end with it, as in our stores: give "
            f"--background first or --background last"
        )
    return background == "first"
