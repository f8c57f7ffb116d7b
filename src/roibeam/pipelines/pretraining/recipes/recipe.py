"""Published pre-training run as data: its settings, its results, and open points of its source."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from roibeam.pipelines.common.statistics.paper_figures import PaperFigure
from roibeam.pipelines.data.feature_settings import Features
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
class Recipe:
    """One published run.

    Attributes:
        source: paper section, or file of the released code, that the settings are from.
        system: a name of `SYSTEMS`.
        build: the model's configuration.
        changes: fields of the model's configuration that differ in a run which continues another one.
        toy_build: the same choices at a size that trains on 2 cores.
        sampling: of the system's own class.
        settings: fields of `TrainConfig` beside steps, rate and warm-up.
        learning_rate: peak, for the whole batch.
        batch_size: captions of a step over all processes.
        epochs: over the captions.
        warmup: steps, or below 1 the share of all steps.
        start: the BERT it starts from; "" for none.
        after: the recipe whose run it continues; "" for none.
        features: required features of the images; None for a run on texts alone.
        task_text: whether it trains on a task's own text, see `TaskTexts`, and no captions.
        text_corpus: whether rows of text alone are mixed in.
        end_to_end: whether the detector's head is trained along.
        masking: of such a run, what becomes of a masked region, one of `MASKINGS`; its `build` has the same.
        on_stored: of such a run, whether it may also be trained on stored features; its network then stays as it
            is, and outlines are not read.
        detector: of such a run, the preset of its network; "" for the usual one.
        encoder: of such a run, fields of `EncoderOptions`.
        photos: of such a run, fields of `PhotoRules`.
        figures: results printed for it, of paper_figures.csv.
        left_open: settings that the source omits or contradicts elsewhere, and the choice made here.
    """

    summary: str
    source: str
    system: str
    build: ModelFields
    toy_build: ModelFields
    sampling: Any
    settings: Mapping[str, Any]
    learning_rate: float
    batch_size: int
    epochs: float
    warmup: float
    data: str
    features: Features | None
    start: str = "bert-base-uncased"
    after: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0
    task_text: bool = False
    text_corpus: bool = False
    end_to_end: bool = False
    masking: str = ""
    on_stored: bool = False
    detector: str = ""
    encoder: Mapping[str, Any] = field(default_factory=dict)
    photos: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[PaperFigure, ...] = ()
    left_open: tuple[str, ...] = field(default=())

    def at_once(self, processes: int) -> int:
        """Captions per process and micro-batch by default: the largest divisor of the batch, up to 32."""
        return max((count for count in range(1, 33) if self.batch_size % (count * processes) == 0), default=32)

    def train_config(self, num_captions: int, *, micro_batch: int, processes: int, **changes: Any) -> TrainConfig:
        """The run's training settings on a number of captions; `changes` are fields that the user set.

        Args:
            micro_batch: captions of a process and micro-batch; the rest of the published batch is accumulated.
        """
        at_once = micro_batch * processes
        if self.batch_size % at_once:
            raise ValueError(
                f"this recipe's batch of {self.batch_size} captions is no multiple of {micro_batch} on {processes} "
                f"processes; choose another --batch-size"
            )
        steps = changes.get("steps") or max(1, math.ceil(self.epochs * num_captions / self.batch_size))
        warmup = round(self.warmup * steps) if self.warmup < 1 else round(self.warmup)
        fields: dict[str, Any] = {
            **self.settings,
            "steps": steps,
            "learning_rate": self.learning_rate,
            "warmup_steps": min(warmup, steps),
            "accumulation": self.batch_size // at_once,
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
