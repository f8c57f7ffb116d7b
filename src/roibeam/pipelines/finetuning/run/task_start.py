"""Start of a fine-tuning run: a pre-trained model or new weights, its words, its encoder, and a task learned before.

The encoder of a model that was fine-tuned before goes on as it is. The head goes on where both tasks need the same of
it; else a new one is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.region_encoder import RegionEncoder, started_encoder
from roibeam.extraction.weights.files import read_tensors
from roibeam.model.task_heads import MatchModel, TaskModel
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.console.overrides import preset
from roibeam.pipelines.data.mode_changes import TOY_TASK, changed_by
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.requests import FINETUNING, FinetuneRequest
from roibeam.pipelines.finetuning.run.finetune_request import NEW
from roibeam.pipelines.finetuning.run.network import TaskNetwork
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS, system_of
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec, TaskSystem
from roibeam.pipelines.training.model_files.encoder_settings import EncoderOptions, chosen_encoder
from roibeam.pipelines.training.model_files.joint_checkpoint import (
    JointCheckpoint,
    load_model_or_joint,
    region_encoder_of,
)
from roibeam.pipelines.training.model_files.model_checkpoint import WEIGHTS, ModelCheckpoint, config_class_of
from roibeam.pipelines.training.model_files.model_folder import CONFIG, TASK_MODEL
from roibeam.pipelines.training.model_files.model_start import (
    PublishedBert,
    built_config,
    check_words_of_bert,
    read_bert,
    start_from_bert,
)
from roibeam.pipelines.training.model_files.provenance import check_tokenizer
from roibeam.pipelines.training.model_files.tokenizer import MADE_FROM_CAPTIONS, CaptionTokenizer, load_tokenizer
from roibeam.pipelines.training.requests import EncoderRequest
from roibeam.pipelines.training.run_folder.training_data import has_trained_images

_MODEL = "model."
_UNLIKE = ("transformers_version", "dropout", "initializer_range")  # of heads that give the same scores


@dataclass(frozen=True, eq=False)
class FirstTask:
    """
    Attributes:
        form: its form and number of images; the head has the rest.
        described: config.json of the model with its head.
        state: all of its parameters, without those of a region encoder.
        knows_images: whether the training images of its start are known.
    """

    name: str
    form: tuple[str, int]
    labels: str
    described: Mapping[str, Any]
    state: Mapping[str, Tensor]
    knows_images: bool

    @classmethod
    def of(cls, found: ModelCheckpoint) -> FirstTask | None:
        """The task of a checkpoint; None for a model of no fine-tuning run."""
        config = found.source.parent / CONFIG
        saved = read_json_object(config) if config.is_file() else {}
        task = saved.get("task")
        if not isinstance(task, dict) or task.get("kind") != FINETUNING:
            return None
        described, joined = read_json_object(found.source / CONFIG), ""
        if "end_to_end" in described:
            described, joined = described["model"], _MODEL
        state = {
            name.removeprefix(joined): tensor
            for name, tensor in read_tensors(found.source / WEIGHTS).items()
            if isinstance(tensor, Tensor) and name.startswith(joined)
        }
        images_known = bool(saved.get("recorded", {}).get("start_tells_images"))
        return cls(task["task"], (task["form"], task["num_images"]), task["labels"], described, state, images_known)

    def go_on(self, network: TaskNetwork, system: TaskSystem, output: OutputSpec, labels: str, *, keeps: bool) -> str:
        """Loads what this model learned into a new network.

        Args:
            labels: digest of those of the new task.
            keeps: whether the head may go on.
        Returns:
            For people, whether it does.
        """
        module, own = network.module, network.module.state_dict()
        inside = _MODEL if isinstance(module, TaskModel | MatchModel) else ""
        first = _MODEL if self.described.get("model_type") == TASK_MODEL else ""
        learned = self.state
        if first != inside:  # roibeam's own head and one of a release
            learned = {inside + name.removeprefix(first): tensor for name, tensor in self.state.items()}
        # Parameters of another shape, such as a segment for a second image, stay as the new task made them.
        fitting = {name: each for name, each in learned.items() if name in own and each.shape == own[name].shape}
        encoder = tuple(inside + part for part in system.trained)
        heads = {
            name for name, each in module.named_parameters() if each.requires_grad and not name.startswith(encoder)
        }
        why = "head.start sets how a new one starts" if not keeps else self._difference(network, output, labels)
        if not why and not heads <= fitting.keys():
            why = "it has other parameters"
        kept = {name: each for name, each in fitting.items() if name.startswith(encoder) or (name in heads and not why)}
        module.load_state_dict(kept, strict=False)
        before = f"the model learned {self.name} before"
        return (
            f"{before}: its encoder goes on, the head is a new one ({why})"
            if why
            else f"{before}: its head goes on too"
        )

    def _difference(self, network: TaskNetwork, output: OutputSpec, labels: str) -> str:
        """Difference between the tasks; "" for none."""
        if self.form != (output.form, output.num_images):
            return "this task has another form"
        if self.labels != labels:
            return "this task has other labels"
        return "" if _kind(self.described) == _kind(network.described) else "it is of another kind"


def _kind(described: Mapping[str, Any]) -> Any:
    """Facts that two heads must share to have the same use; for a model from photos those of the inner model."""
    if "end_to_end" in described:
        return _kind(described["model"])
    if described.get("model_type") != TASK_MODEL:
        return described["architectures"]
    return {name: value for name, value in described["head"].items() if name not in _UNLIKE}


def without_heads(found: ModelCheckpoint) -> ModelCheckpoint:
    """The checkpoint as that of a pre-trained model, without heads of a release's task.

    Its pre-training heads, where the release's files have none, are drawn; a task does not read them.
    """
    model, model_class = found.model, system_of(found.model).model_class
    if type(model) is model_class:
        return found
    config: Any = config_class_of(model_class)
    fields = {name: value for name, value in model.config.to_diff_dict().items() if name in config.own_fields()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = model_class(config(**fields))
    state, wanted = model.state_dict(), made.state_dict()
    made.load_state_dict({name: tensor for name, tensor in state.items() if name in wanted}, strict=False)
    note = f"the heads of a {type(model).__name__} are left out"
    return replace(found, model=made.eval(), changes=(*found.changes, note))


_DEFAULT_SIZE, _PUBLISHED_SIZE = "small", "base"
# InterBERT shares BERT's layers out to its joint ones and those of the text.
_NOT_AS_DEEP = ("interbert",)


@dataclass(frozen=True, eq=False)
class TaskStart:
    """
    Attributes:
        found: the pre-trained model; None for new weights.
        first: the task that it has learned already; None for none.
        bert: start of new weights; None for none.
        fields: of a new model's configuration that differ from its size's.
    """

    system: TaskSystem
    found: ModelCheckpoint | None = None
    bert: PublishedBert | None = None
    size: str = _DEFAULT_SIZE
    fields: Mapping[str, Any] = field(default_factory=dict)
    first: FirstTask | None = None

    @property
    def source(self) -> object:
        return NEW if self.found is None else self.found.source

    @property
    def run(self) -> Path | None:
        """Folder of the run that the model is of, where it has one."""
        return None if self.found is None or self.found.tokenizer is None else self.found.tokenizer.parent

    @property
    def encoder(self) -> RegionEncoder | None:
        """Region encoder of a model that was trained end to end."""
        return region_encoder_of(self.found.joint) if isinstance(self.found, JointCheckpoint) else None

    @property
    def knows_images(self) -> bool:
        """Whether the images that the model was trained on are known; new weights have none."""
        if self.found is None:
            return True
        return self.run is not None and has_trained_images(self.run) and (self.first is None or self.first.knows_images)

    def model(self, *, vocab_size: int, width: int | None) -> Any:
        """The model; a new one is drawn from torch's random state.

        Args:
            width: of the features that it will read; None for that of its size, where it reads none.
        """
        if self.found is not None:
            return self.found.model
        sizes = {"vocab_size": vocab_size} if self.bert is None else dict(self.bert.sizes)
        if self.system.name in _NOT_AS_DEEP:
            sizes.pop("num_hidden_layers", None)
        if width is not None:
            sizes["region_feature_size"] = width
        fields = {**self.fields, **sizes}
        model = self.system.model_class(built_config(self.system.sizes[self.size], fields, fields))
        if self.bert is not None:
            start_from_bert(model, self.bert)
        return model

    def tokenizer(self, spec: str | None, texts: Iterable[str]) -> CaptionTokenizer:
        """
        Args:
            spec: named by the user; None for that of the model or the BERT, else one made from the texts.
        """
        if self.found is None:
            if self.bert is None:
                return load_tokenizer(spec or MADE_FROM_CAPTIONS, texts)
            tokenizer = load_tokenizer(spec or self.bert.spec, texts)
            if spec not in (None, self.bert.spec):
                check_words_of_bert(self.bert, tokenizer)
            return tokenizer
        if spec is None and self.found.tokenizer is None:
            raise ValueError(f"--tokenizer is missing: {self.found.source} has none beside it")
        tokenizer = load_tokenizer(spec or str(self.found.tokenizer))
        check_tokenizer(self.found, tokenizer)
        return tokenizer


def start_of(request: FinetuneRequest, recipe: TaskRecipe | None = None) -> TaskStart:
    """Start of a run; the user's own names come before the recipe's. Raises ValueError when there is no such model, or
    it is of another system."""
    system = request.system or (None if recipe is None else recipe.system)
    if request.from_ != NEW:
        found = without_heads(load_model_or_joint(request.from_))
        its = system_of(found.model)
        if system not in (None, its.name):
            raise ValueError(f"--from {request.from_} is a model of {its.name}, not of {system}")
        return TaskStart(its, found, first=FirstTask.of(found))
    assert system is not None
    published = recipe is not None and recipe.system == system
    named = preset("system", system, SYSTEMS)
    size = request.model or (_PUBLISHED_SIZE if published and not request.toy else _DEFAULT_SIZE)
    preset("model", size, named.sizes)  # raises for an unknown size
    bert = None if request.from_bert is None else read_bert(request.from_bert)
    as_published = published and (request.toy or size == _PUBLISHED_SIZE)
    sizes = {each for change in changed_by({TOY_TASK}) for each in change.fields} if request.toy else set()
    published_fields = recipe.model_fields if recipe is not None and as_published else {}
    fields = {name: value for name, value in published_fields.items() if f"model.{name}" not in sizes}
    return TaskStart(named, None, bert, size, fields)


def task_encoder(
    request: EncoderRequest, config: DetectorConfig, options: EncoderOptions, own: RegionEncoder | None
) -> RegionEncoder:
    """
    Args:
        own: of the run that this one starts from; None for that of the request.
    """
    if own is not None:
        return started_encoder(config, own.conventions, own, **options.of_network())
    chosen = chosen_encoder(request)
    return started_encoder(config, chosen.conventions, chosen.weights, **options.of_network())
