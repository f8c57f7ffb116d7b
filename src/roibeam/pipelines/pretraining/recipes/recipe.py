"""Published pre-training run as data: its settings, its results, and open points of its source."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from roibeam.pipelines.training.step_policies import PublishedRun
from roibeam.pipelines.training.train_config import TrainConfig

if TYPE_CHECKING:
    from roibeam.model.common.bert import BertSizes

# Settings of every toy variant: some minutes on 2 cores, see BENCHMARKS.md.
TOY_STEPS, TOY_RATE, TOY_BATCH = 400, 1e-3, 32
TOY_STEPS_END_TO_END = 40


@dataclass(frozen=True)
class ModelFields:
    """A model's configuration as plain data: module and name of its class, and fields. Called with other fields, it
    builds the configuration, which imports torch."""

    config_class: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **overrides: Any) -> BertSizes:
        module, _, name = self.config_class.rpartition(".")
        return cast("BertSizes", getattr(importlib.import_module(module), name)(**{**self.fields, **overrides}))

    def changed(self, **fields: Any) -> ModelFields:
        """The configuration with these fields too."""
        return replace(self, fields={**self.fields, **fields})


@dataclass(frozen=True, kw_only=True)
class Recipe(PublishedRun):
    """One published run.

    Attributes:
        system: a name of `SYSTEMS`.
        build: the model's configuration.
        changes: fields of the model's configuration that differ in a run which continues another one.
        toy_build: the same choices at a size that trains on 2 cores.
        sampling: of the system's own class.
        start: the BERT it starts from; "" for none.
        after: the recipe whose run it continues; "" for none.
        task_text: whether it trains on a task's own text, see `TaskTexts`, and no captions.
        text_corpus: whether rows of text alone are mixed in.
        masking: of a run end to end, what becomes of a masked region, one of `MASKINGS`; its `build` has the same.
        on_stored: of such a run, whether it may also be trained on stored features; its network then stays as it
            is, and outlines are not read.
    """

    build: ModelFields
    toy_build: ModelFields
    sampling: Any
    data: str
    start: str = "bert-base-uncased"
    after: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0
    task_text: bool = False
    text_corpus: bool = False
    masking: str = ""
    on_stored: bool = False

    def train_config(self, num_captions: int, *, micro_batch: int, processes: int, **changes: Any) -> TrainConfig:
        """The run's training settings on a number of captions; `changes` are fields that the user set.

        Args:
            micro_batch: captions of a process and micro-batch; the rest of the published batch is accumulated.
        """
        accumulation = self.accumulation(micro_batch, processes)
        steps = changes.get("steps") or max(1, math.ceil(self.epochs * num_captions / self.batch_size))
        warmup = round(self.warmup * steps) if self.warmup < 1 else round(self.warmup)
        fields: dict[str, Any] = {
            **self.settings,
            "steps": steps,
            "learning_rate": self.learning_rate,
            "warmup_steps": min(warmup, steps),
            "accumulation": accumulation,
        }
        return TrainConfig(**(fields | changes))

    def toy_config(self, *, micro_batch: int, **changes: Any) -> TrainConfig:
        """Training settings of the toy variant: same optimiser and groups, few steps, a rate for small models."""
        steps = changes.get("steps", TOY_STEPS_END_TO_END if self.end_to_end else TOY_STEPS)
        fields: dict[str, Any] = {
            **self.settings,
            "steps": steps,
            "learning_rate": TOY_RATE,
            "warmup_steps": steps // 10,
            "accumulation": max(1, TOY_BATCH // micro_batch),
        }
        return TrainConfig(**(fields | changes))
