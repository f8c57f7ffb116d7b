"""What a fine-tuning run starts from: a pre-trained model, or new weights; and the words that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.near_names import name_hint
from roibeam.pipelines.data.mode_changes import TOY_TASK, changed_by
from roibeam.pipelines.finetuning.frame.finetune_request import NEW, FinetuneRequest
from roibeam.pipelines.finetuning.frame.start.first_task import FirstTask, without_heads
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.systems.named_systems import system_named, system_of
from roibeam.pipelines.finetuning.systems.task_system import TaskSystem
from roibeam.pipelines.training.model_files.bert_start import (
    PublishedBert,
    check_words_of_bert,
    read_bert,
    start_from_bert,
)
from roibeam.pipelines.training.model_files.changed_model import built_config
from roibeam.pipelines.training.model_files.joint_checkpoint import (
    JointCheckpoint,
    load_model_or_joint,
    region_encoder_of,
)
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.tokenizer import MADE_FROM_CAPTIONS, CaptionTokenizer, load_tokenizer
from roibeam.pipelines.training.model_files.trained_with import check_tokenizer
from roibeam.pipelines.training.run_folder.trained_images import is_told

_DEFAULT_SIZE, _PUBLISHED_SIZE = "small", "base"
# InterBERT shares BERT's layers out to its joint ones and those of the text.
_NOT_AS_DEEP = ("interbert",)


@dataclass(frozen=True, eq=False)
class TaskStart:
    """
    Attributes:
        system: that the model is of.
        found: the pre-trained model; None for new weights.
        first: the task that it has learned already; None for none.
        bert: that new weights start from; None for none.
        size: of a new model.
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
        """Of a model that was trained end to end."""
        return region_encoder_of(self.found.joint) if isinstance(self.found, JointCheckpoint) else None

    @property
    def tells_images(self) -> bool:
        """Whether it is known what the model was trained on; new weights were on nothing."""
        if self.found is None:
            return True
        return self.run is not None and is_told(self.run) and (self.first is None or self.first.tells_images)

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
            spec: that the user names; None for that of the model or the BERT, else one made from the texts.
        Raises:
            ValueError: when it has other words than the model, or nobody knows those.
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
    """What a run starts from; the user's own names come before the recipe's.

    Raises:
        ValueError: when there is no such model, or it is of another system.
    """
    system = request.system or (None if recipe is None else recipe.system)
    if request.start != NEW:
        found = without_heads(load_model_or_joint(request.start))
        its = system_of(found.model)
        if system not in (None, its.name):
            raise ValueError(f"--from {request.start} is a model of {its.name}, not of {system}")
        return TaskStart(its, found, first=FirstTask.of(found))
    assert system is not None
    published = recipe is not None and recipe.system == system
    named, size = (
        system_named(system),
        request.size or (_PUBLISHED_SIZE if published and not request.toy else _DEFAULT_SIZE),
    )
    if size not in named.sizes:
        raise ValueError(f"--model {size!r}: {name_hint(size, named.sizes)}")
    bert = None if request.from_bert is None else read_bert(request.from_bert)
    as_published = published and (request.toy or size == _PUBLISHED_SIZE)
    sizes = {each for change in changed_by({TOY_TASK}) for each in change.fields} if request.toy else set()
    published_fields = recipe.model_fields if recipe is not None and as_published else {}
    fields = {name: value for name, value in published_fields.items() if f"model.{name}" not in sizes}
    return TaskStart(named, None, bert, size, fields)
