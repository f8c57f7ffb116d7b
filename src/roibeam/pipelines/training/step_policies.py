"""Settings of the releases' steps, the accidents among them, and the step rules of a run.

    TrainConfig(steps=..., learning_rate=1e-4, warmup_steps=..., **release_settings("vilbert-release"))

    RELEASE_SETTINGS  fields of `TrainConfig` that the code of a release sets
    ACCIDENTS         those that are mistakes of the release
    STEP_RULES        choices of a fine-tuning run by `steps.rule`: the correct rule, or that of a release

Steps, peak rate, epochs and length of the rise belong to an experiment, so they are arguments here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from roibeam.pipelines.common.statistics.paper_figures import PaperFigure
from roibeam.pipelines.data.feature_settings import Features

_BERT_ADAM: Mapping[str, Any] = MappingProxyType(
    {
        "optimizer": "bert-adam",
        "betas": (0.9, 0.999),
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "clip_scope": "each",
        "starts_at_zero": True,
    }
)
_VL_BERT: Mapping[str, Any] = MappingProxyType(
    {
        "optimizer": "adamw-transformers",
        "betas": (0.9, 0.999),
        "epsilon": 1e-6,
        "weight_decay": 1e-4,
        "parameter_groups": "vl-bert",
    }
)
# Loss of fine-tuning: the mean of micro-batches' means.
_MICRO_BATCHES: Mapping[str, Any] = MappingProxyType({"loss_mean": "micro_batch"})
RELEASE_SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # jackroos/VL-BERT cfgs/pretrain/base_prec_4x16G_fp32.yaml.
        "vl-bert": {**_VL_BERT, "clip_norm": 10.0},
        # cfgs/vqa and cfgs/refcoco; cfgs/vcr has "sgd", the schedule "steps" and a clip_norm of 10.
        "vl-bert-tasks": {**_VL_BERT, **_MICRO_BATCHES, "clip_norm": 1.0},
        "vilbert-release": {**_BERT_ADAM, "parameter_groups": "vilbert-release"},
        # Its rate is constant after the rise and falls tenfold after epochs 12 and 16: set decay_steps.
        "vilbert-release-tasks": {
            **_BERT_ADAM,
            **_MICRO_BATCHES,
            "parameter_groups": "vilbert-release-tasks",
            "schedule": "steps",
        },
        "vilbert-release-mt": {
            "optimizer": "adamw-transformers",
            "betas": (0.9, 0.98),
            "epsilon": 1e-8,
            "weight_decay": 0.01,
            "clip_norm": 0.0,
            "parameter_groups": "vilbert-release-mt",
        },
        "vilbert-release-mt-tasks": {
            "optimizer": "adamw-transformers-uncorrected",
            "betas": (0.9, 0.999),
            "epsilon": 1e-6,
            "weight_decay": 0.01,
            "clip_norm": 0.0,
            "starts_at_zero": True,
            "parameter_groups": "vilbert-release-mt-tasks",
            **_MICRO_BATCHES,
        },
        "visualbert-ucla": {**_BERT_ADAM, "parameter_groups": "visualbert-ucla"},
        "visualbert-ucla-tasks": {
            **_BERT_ADAM,
            **_MICRO_BATCHES,
            "parameter_groups": "visualbert-ucla",
            "step_gradients": "last",
        },
        "interbert-release": {**_BERT_ADAM, "parameter_groups": "interbert-release"},
        # As ViLBERT's; the falls come after epochs 12, 16, 20, 22 and 26.
        "interbert-release-tasks": {
            **_BERT_ADAM,
            **_MICRO_BATCHES,
            "parameter_groups": "interbert-release-tasks",
            "schedule": "steps",
            "average_start": "initial",
        },
    }
)


# Fields by which a release deviates from its intention. Everything else is a choice.
ACCIDENTS = (
    "loss_mean",  # the mean of micro-batches' means: every release (train_step.py)
    "step_gradients",  # set to zero in each micro-step, so that the last one's are left: VisualBERT (train_step.py)
    "parameter_groups",  # decay swapped: ViLBERT, InterBERT; a frozen pooler: VisualBERT (parameter_groups.py)
    "starts_at_zero",  # the schedule lags one step: BertAdam, 12-in-1 (optimizer/schedule.py)
    "average_start",  # the initial weights are averaged too: InterBERT (model/common/exponential_average.py)
    "warmup_steps",  # a share of all steps that is not rounded, such as 3.6: BertAdam, 12-in-1 (`schedule_fields`)
    "warmup_overwritten_every",  # by the schedule of epochs: 12-in-1 (optimizer/schedule.py)
    "updates_per_schedule_step",  # above 1 where tasks have updates of their own: 12-in-1 (optimizer/schedule.py)
)


class UpdatesApart(NamedTuple):
    """A release's updates for each of several problems in turn, with the gradients that are left.

    Attributes:
        where: fields of the task's options by which one model learns several problems.
        fields: those by which each has its own update (`AlternatingTask`).
    """

    where: Mapping[str, Any]
    fields: Mapping[str, Any]
    problems: int


VCR_UPDATES_APART = UpdatesApart({"problem": "both"}, {"updates": "task"}, 2)


@dataclass(frozen=True)
class StepRule:
    """Rules by which a run makes the steps of a recipe.

    Attributes:
        as_released: whether the recipe's accidents are kept; False for the correct rule alone.
        settings: fields of `TrainConfig` that replace the recipe's, if it follows another code.
        systems: systems of its recipes; () for all that have accidents.
        falls_after: epochs after which the rate falls; None takes the recipe's.
        is_overwritten: whether the rate is the full one at the start of each epoch, although it still rises.
        by_evaluations: whether the rate falls after two epochs in a row whose evaluations are no better.
        is_shared: whether problems with updates of their own take one step of the schedule together.
    """

    words: str
    as_released: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    systems: tuple[str, ...] = ()
    falls_after: tuple[int, ...] | None = None
    is_overwritten: bool = False
    by_evaluations: bool = False
    is_shared: bool = False


CORRECT, RELEASE = "correct", "release"
_MULTI_TASK = RELEASE_SETTINGS["vilbert-release-mt-tasks"]
STEP_RULES: Mapping[str, StepRule] = MappingProxyType(
    {
        CORRECT: StepRule("as the source intends", as_released=False),
        RELEASE: StepRule("as the authors' code does, bugs included"),
        # jiasenlu/vilbert_beta train_tasks.py, `--lr_scheduler automatic`.
        "release-plateau": StepRule(
            "as release, with falls behind two epochs whose evaluations are no better",
            settings={"schedule": "plateau", "decay_factor": 0.2},
            systems=("vilbert",),
            falls_after=(),
            by_evaluations=True,
        ),
        # facebookresearch/vilbert-multi-task train_tasks.py: its default `mannul`, and its README's `warmup_linear`.
        "release-mt": StepRule(
            "as the multi-task release's default, whose epochs overwrite the warm-up",
            settings={**_MULTI_TASK, "clip_scope": "all", "schedule": "steps", "decay_factor": 0.2},
            systems=("vilbert",),
            falls_after=(5, 7),
            is_overwritten=True,
            is_shared=True,
        ),
        "release-mt-linear": StepRule(
            "as the multi-task release with its linear fall",
            settings={**_MULTI_TASK, "clip_scope": "all", "schedule": "linear"},
            systems=("vilbert",),
            falls_after=(),
            is_shared=True,
        ),
    }
)


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """Common part of the recipes of pre-training and of fine-tuning.

    Attributes:
        source: paper section, or file of the released code, that the settings are from.
        features: required of the images; None for a run on texts alone.
        settings: fields of `TrainConfig` beside steps, rate and warm-up.
        learning_rate: peak, for the whole batch.
        batch_size: captions, or groups of a task, of a step over all processes.
        epochs: over the captions or groups.
        warmup: steps, or below 1 the share of all steps.
        end_to_end: whether features were made of photos in every step, through the detector's network, whose unfrozen
            parts were trained along.
        detector: of such a run, the preset of its network; "" for the usual one.
        encoder: of such a run, fields of `EncoderOptions`.
        photos: of such a run, fields of `PhotoRules` or `PhotoRequest`.
        figures: results printed for it, of paper_figures.csv.
        left_open: settings that the source omits or contradicts elsewhere, and the choice made here.
    """

    summary: str
    source: str
    system: str
    features: Features | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float
    batch_size: int
    epochs: float
    warmup: float
    end_to_end: bool = False
    detector: str = ""
    encoder: Mapping[str, Any] = field(default_factory=dict)
    photos: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[PaperFigure, ...] = ()
    left_open: tuple[str, ...] = ()

    def at_once(self, processes: int, *, most: int = 32) -> int:
        """Default number that each process takes at once: the most that divide the batch."""
        fitting = [count for count in range(1, most + 1) if self.batch_size % (count * processes) == 0]
        return max(fitting, default=most)

    def accumulation(self, batch_size: int, processes: int) -> int:
        """Micro-batches of a step. Raises ValueError when the published batch is no multiple of what the processes take
        at once."""
        if self.batch_size % (batch_size * processes):
            raise ValueError(
                f"this recipe's batch of {self.batch_size} is no multiple of {batch_size} on {processes} processes; "
                f"choose another --batch-size"
            )
        return self.batch_size // (batch_size * processes)


class PublishedSchedule(NamedTuple):
    """Attributes:
    epochs: of the whole run.
    warmup: steps, or below 1 the share of all steps.
    decays_at: shares of all steps after which the rate falls.
    judged_by: measure of the evaluations that chooses the best; "" if it is not published.
    """

    epochs: float
    warmup: float
    decays_at: tuple[float, ...] = ()
    judged_by: str = ""


def schedule_fields(
    rule: StepRule, published: PublishedSchedule, *, steps: int, lags: bool = False, problems: int = 1
) -> dict[str, Any]:
    """The fields of `TrainConfig` that count steps.

    Args:
        steps: updates of the run. The published rise ends with a shorter run.
        lags: `TrainConfig.starts_at_zero`: falls come at the ends of epochs all the same.
        problems: with updates of their own; a release's rise ignores their number.
    """
    is_share = published.warmup < 1
    rise = published.warmup * steps if is_share else published.warmup
    if not rule.as_released:
        falls = tuple(round(share * steps) for share in published.decays_at)
        return {"warmup_steps": min(round(rise), steps, *falls), "decay_steps": falls}
    shared = problems if rule.is_shared else 1
    counted, per_epoch = steps / shared, steps / published.epochs
    shares = published.decays_at
    if rule.falls_after is not None:
        shares = tuple(epoch / published.epochs for epoch in rule.falls_after if epoch < published.epochs)
    falls = tuple(max(0, round(share * counted) - lags) for share in shares)
    rise = rise / problems if is_share else rise
    fields = {"warmup_steps": min(rise, counted, *falls), "decay_steps": falls}
    if shared > 1:
        fields["updates_per_schedule_step"] = shared
    if rule.is_overwritten:
        fields["warmup_overwritten_every"] = max(1, round(per_epoch / shared))
    if rule.by_evaluations:
        fields |= {"evaluate_every": max(1, round(per_epoch)), "best_by": published.judged_by}
    return fields


def parted_settings(
    name: str, *, meant: Mapping[str, Any] = MappingProxyType({})
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a release without its accidents, and the accidents; `meant` replaces fields in the first
    of them."""
    every = release_settings(name)
    accidents = {field: value for field, value in every.items() if field in ACCIDENTS and meant.get(field) != value}
    return {**{field: value for field, value in every.items() if field not in ACCIDENTS}, **meant}, accidents


def release_settings(name: str) -> dict[str, Any]:
    """Fields of `TrainConfig`, for one of `RELEASE_SETTINGS`."""
    if name not in RELEASE_SETTINGS:
        raise ValueError(f"no release settings {name!r}; there are {', '.join(RELEASE_SETTINGS)}")
    return dict(RELEASE_SETTINGS[name])
