"""What releases do oddly to their steps, one thing at a time, each on one pair of task and system.

The accidents are those of `roibeam.pipelines.training.step_policies` that change what is learned; a warm-up of a length
that is no whole number changes one step. The last three are choices of a release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_VQA = ("vqa", "visualbert")


@dataclass(frozen=True)
class Accident:
    """
    Attributes:
        what: for people.
        settings: of `--set`.
        pair: task and system.
        against: name of the correct rule, of `CORRECT_RULES`; "" for the pair's own run.
        updates: how many stand for one of the pair's own steps.
    """

    what: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    pair: tuple[str, str] = _VQA
    against: str = ""
    updates: int = 1


_MICRO = {"train.accumulation": 4, "data.batch_size": 16}
_AVERAGE = {"train.average_rate": 0.9997}
# As the multi-task ViLBERT: a rise of two epochs, of 50 steps each here, and a rate that falls twice.
_IN_STEPS = {"train.schedule": "steps", "train.decay_steps": "[600,800]", "train.starts_at_zero": "true"}
_DECAY, _NO_DECAY = {"train.weight_decay": 0.01}, {"train.weight_decay": 0}
CORRECT_RULES: Mapping[str, Accident] = {
    "micro-batches": Accident("Four micro-batches, averaged over all their elements", _MICRO),
    "average-corrected": Accident("An average of the weights, corrected for its start", _AVERAGE),
    "in-steps": Accident("A rate that rises for 100 steps and falls in two", _IN_STEPS),
    "matrices-decay": Accident(
        "Weight decay on matrices", {**_DECAY, "train.parameter_groups": "vilbert-tasks"}, ("vqa", "vilbert")
    ),
    "no-decay": Accident("No weight decay", _NO_DECAY, ("nlvr2", "visualbert")),
}
ACCIDENTS: Mapping[str, Accident] = {
    "micro-means": Accident(
        "The mean of four micro-batches' means", {**_MICRO, "train.loss_mean": "micro_batch"}, against="micro-batches"
    ),
    "last-gradients": Accident(
        "Gradients of the last of four micro-batches", {**_MICRO, "train.step_gradients": "last"},
        against="micro-batches",
    ),
    "starts-at-zero": Accident("The schedule lags one step", {"train.starts_at_zero": "true"}),
    "warm-up-overwritten": Accident(
        "The full rate at the start and in the middle of the rise", {**_IN_STEPS, "train.warmup_overwritten_every": 50},
        against="in-steps",
    ),
    "average": Accident(
        "An average of the weights from before the first step", {**_AVERAGE, "train.average_start": "initial"},
        against="average-corrected",
    ),
    "decay-swapped": Accident(
        "Biases and LayerNorms decay, matrices do not",
        {**_DECAY, "train.parameter_groups": "vilbert-release-tasks"}, ("vqa", "vilbert"), "matrices-decay",
    ),
    "frozen-pooler": Accident(
        "The pooler, which the head reads, is not trained",
        {**_NO_DECAY, "train.parameter_groups": "visualbert-ucla"}, ("nlvr2", "visualbert"), "no-decay",
    ),
    "updates-apart": Accident(
        "An update for each of two problems, the first with gradients that the other left", {"vcr.updates": "task"},
        ("vcr", "visualbert"), updates=2,
    ),
    "clip-each": Accident("A choice: each tensor's gradients are clipped by themselves", {"train.clip_scope": "each"}),
    "uncorrected": Accident(
        "A choice: Adam without bias correction", {"train.optimizer": "adamw-transformers-uncorrected"}
    ),
    "bert-adam": Accident(
        "A choice: BertAdam, each tensor clipped", {"train.optimizer": "bert-adam", "train.clip_scope": "each"}
    ),
}  # fmt: skip
