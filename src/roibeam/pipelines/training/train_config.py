"""Settings of a training run of any task; and the number type in which a trained model computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, cast

from roibeam.pipelines.common.compute import check_device_name
from roibeam.pipelines.common.console.overrides import TRAIN_NAMES, apply_overrides
from roibeam.pipelines.common.statistics.measure_names import less_is_better
from roibeam.pipelines.training.parameter_groups import PARAMETER_RULES

OPTIMIZERS = ("adamw", "sgd", "bert-adam", "adamw-transformers", "adamw-transformers-uncorrected")
SCHEDULES = ("linear", "cosine", "constant", "steps", "plateau")
LOSS_MEANS = ("step", "micro_batch")
STEP_GRADIENTS = ("all", "last")
CLIP_SCOPES = ("all", "each")
PRECISIONS = ("fp32", "bf16", "fp16")
BY_NAME = "auto"  # of `best_is`
BEST_IS = (BY_NAME, "highest", "lowest")
AVERAGE_STARTS = ("first_update", "initial")
TASK_GROUPS = "task"
Resume = bool | str  # see `train`
DRY_RUN = "dry run"  # its value for a new run that only times its first steps
# Settings that options of the commands also set: by the option's name.
OPTIONS = {f"train.{name}": name for name in ("steps", "learning_rate", "warmup_steps", "device", "seed")}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the training of any task.

    Attributes:
        steps: optimizer steps; the schedule ends there.
        learning_rate: peak, for the whole global batch; never scaled by batch size or processes.
        warmup_steps: linear rise, step k uses learning_rate * k / warmup_steps. Need not be whole: releases take a
            share of all steps.
        warmup_overwritten_every: an accident of the multi-task ViLBERT's default schedule: at the first step, and
            behind every so many (an epoch), the rate is the full one although it still rises; 0 = never.
        schedule: after the rise: "linear" and "cosine", half of one, fall to 0 at `steps`; "constant" stays; "steps"
            stays, times `decay_factor` behind each of `decay_steps`, as detectors are trained; "plateau" stays, times
            `decay_factor` whenever the evaluations' `best_by` is no longer better.
        decay_steps: last step before each fall, ascending; () = none.
        decay_factor: of each fall.
        starts_at_zero: the schedule lags one step: the first has rate 0, as in releases that step their schedule after
            the optimizer.
        updates_per_schedule_step: of the schedule, and of `warmup_steps`; above 1 where tasks with updates of their own
            share a schedule, as in the multi-task ViLBERT.
        plateau_patience, plateau_cooldown, plateau_threshold: of "plateau": evaluations without a better one before a
            fall, those that do not count behind one, and the share of the best by which a better one beats it.
        optimizer: "adamw" (torch's), "sgd" with momentum, or one of a release: "bert-adam", "adamw-transformers",
            "adamw-transformers-uncorrected" (pipelines/training/optimizer.py).
        weight_decay: on every parameter unless its group has its own; decoupled in all but SGD.
        parameter_groups: "task" takes the task's own; a name of `PARAMETER_RULES` groups as that release does.
        frozen: parts of the model that are not trained, by the beginnings of their parameters' names, such as
            "embeddings" or "encoder.layers.0" (pipelines/training/optimizer.py). Their dropout stays.
        rates: such parts -> factor of the rate that they would have, such as {"head": 10}.
        betas, epsilon: of all but SGD. The defaults are those of VL-BERT's release (cfgs/pretrain).
        momentum: of SGD.
        clip_norm: largest gradient norm; 0 = no clipping.
        clip_scope: whether that is the norm of "all" gradients together, or of "each" tensor by itself.
        accumulation: micro-batches per step and process.
        loss_mean: elements that a loss is averaged over: all of a "step"; or each "micro_batch" by itself, whose
            means are then averaged, as in all releases.
        step_gradients: of "all" micro-batches of a step; or only of the "last" one, as VisualBERT's release does, which
            still divides by their number.
        precision: "fp32"; or "bf16" or "fp16" (autocast; weights stay fp32). fp16 needs an accelerator and scales the
            loss: a step whose gradients overflow is left out and the scale halved.
        activation_checkpointing: the model's layers compute their activations again in the backward pass instead of
            keeping them: the same numbers for less memory and more time.
        average_rate: what an exponential moving average of the weights keeps at each step, from 0 to below 1; 0 = none.
            Evaluations, and the folder `model` of a checkpoint, then have the average.
        average_start: of that average: weights count from the "first_update" on, those from before not at all; or the
            "initial" ones are averaged too, as InterBERT's release does (model/common/exponential_average.py).
        device: "auto" (an accelerator if there is one), "cpu", "cuda" or, for a single process, "cuda:<n>".
        seed: of dropout; tasks use it too.
        checkpoint_every: steps between two checkpoints; 0 = only at the end.
        keep: newest checkpoints that stay; 0 = all.
        evaluate_every: steps between two evaluations of a task that offers them; 0 = none. Else there is one before the
            first step and one at the end too.
        best_by: number of the evaluations whose best checkpoint stays too, such as "masked_word_accuracy"; "" = none.
        best_is: whether the "highest" or the "lowest" is best; "auto" goes by the name: losses and ranks are better
            when lower, all else when higher.
        patience: evaluations in a row behind the first step whose `best_by` is not better, after which the run ends
            before `steps`; 0 = it never does.
        tensorboard: write RUN/tensorboard too (extra `tensorboard`).
    """

    steps: int
    learning_rate: float = 1e-4
    warmup_steps: float = 0
    warmup_overwritten_every: int = 0
    schedule: str = "linear"
    decay_steps: tuple[int, ...] = ()
    decay_factor: float = 0.1
    starts_at_zero: bool = False
    updates_per_schedule_step: int = 1
    plateau_patience: int = 1
    plateau_cooldown: int = 1
    plateau_threshold: float = 1e-3
    optimizer: str = "adamw"
    weight_decay: float = 1e-4
    parameter_groups: str = TASK_GROUPS
    frozen: tuple[str, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    momentum: float = 0.9
    clip_norm: float = 10.0
    clip_scope: str = "all"
    accumulation: int = 1
    loss_mean: str = "step"
    step_gradients: str = "all"
    precision: str = "fp32"
    activation_checkpointing: bool = False
    average_rate: float = 0.0
    average_start: str = "first_update"
    device: str = "auto"
    seed: int = 0
    checkpoint_every: int = 1000
    keep: int = 2
    evaluate_every: int = 0
    best_by: str = ""
    best_is: str = BY_NAME
    patience: int = 0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        at_least_one = ("steps", "accumulation", "updates_per_schedule_step")
        for name, least in (*((name, 1) for name in at_least_one), ("warmup_steps", 0), ("seed", 0)):
            _require(getattr(self, name) >= least, f"{name} must be at least {least}, got {getattr(self, name)}")
        every = ("checkpoint_every", "evaluate_every", "warmup_overwritten_every")
        plateau = ("plateau_patience", "plateau_cooldown", "plateau_threshold")
        for name in ("weight_decay", "clip_norm", "keep", "patience", *every, *plateau):
            _require(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        _require(
            len(self.betas) == 2 and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in self.betas),
            f"betas must be two numbers in 0..1, got {self.betas}",
        )
        _require(0 <= self.momentum < 1, f"momentum must be in 0..1, got {self.momentum}")
        _require(0 <= self.average_rate < 1, f"average_rate must be from 0 to below 1, got {self.average_rate}")
        _require(
            not self.best_by or self.evaluate_every > 0,
            f"best_by {self.best_by!r} needs evaluations; set evaluate_every",
        )
        _require(
            not self.patience or bool(self.best_by),
            f"patience {self.patience} goes by evaluations; set evaluate_every and best_by",
        )
        _require(
            self.schedule != "plateau" or bool(self.best_by),
            "the schedule plateau goes by evaluations; set evaluate_every and best_by",
        )
        _require(
            all(isinstance(part, str) and bool(part) for part in self.frozen),
            f"frozen must name parts of the model, got {list(self.frozen)}",
        )
        rates = self.rates.items() if isinstance(self.rates, Mapping) else [("", self.rates)]
        for part, factor in rates:
            _require(
                bool(part) and type(factor) in (int, float) and 0 < factor < float("inf"),
                f'rates must have a factor above 0 for each part, as {{"head": 10}}, got {self.rates}; to train '
                f"nothing of a part, name it in frozen",
            )
        check_device_name(self.device)
        _require(
            self.precision != "fp16" or self.device != "cpu",
            "precision fp16 needs an accelerator, device is cpu; choose bf16 or fp32",
        )
        _require(self.learning_rate > 0, f"learning_rate must be positive, got {self.learning_rate}")
        _require(
            self.warmup_steps <= self.steps,
            f"warmup_steps {self.warmup_steps} is more than all {self.steps} steps; lower --warmup-steps",
        )
        _require(0 < self.decay_factor <= 1, f"decay_factor must be above 0 and at most 1, got {self.decay_factor}")
        falls = self.decay_steps
        _require(
            all(isinstance(step, int) and step >= self.warmup_steps for step in falls) and list(falls) == sorted(falls),
            f"decay_steps must be whole numbers, ascending, from warmup_steps {self.warmup_steps} on, got {falls}",
        )
        _require(
            self.schedule == "steps" or not falls,
            f"decay_steps {falls} belong to the schedule steps, not {self.schedule}",
        )
        _require(
            self.schedule == "steps" or not self.warmup_overwritten_every,
            f"warmup_overwritten_every belongs to the schedule steps, not {self.schedule}",
        )
        _require(
            self.clip_scope == "all" or self.clip_norm > 0,
            "clip_scope each needs a clip_norm above 0; there is no clipping",
        )
        for name, words in (
            ("schedule", SCHEDULES),
            ("optimizer", OPTIMIZERS),
            ("parameter_groups", (TASK_GROUPS, *PARAMETER_RULES)),
            ("clip_scope", CLIP_SCOPES),
            ("precision", PRECISIONS),
            ("best_is", BEST_IS),
            ("loss_mean", LOSS_MEANS),
            ("step_gradients", STEP_GRADIENTS),
            ("average_start", AVERAGE_STARTS),
        ):
            _require(getattr(self, name) in words, f"{name} must be {' or '.join(words)}, got {getattr(self, name)!r}")

    @property
    def highest_is_best(self) -> bool:
        """Whether the highest number of evaluations by `best_by` is best."""
        return not less_is_better(self.best_by) if self.best_is == BY_NAME else self.best_is == "highest"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"TrainConfig: {message}")


def with_settings(config: TrainConfig, settings: Sequence[str]) -> TrainConfig:
    """The config with the changes of "train.field=value"; ValueError also for a value other than the default that
    nothing reads."""
    changed = cast(TrainConfig, apply_overrides({"train": config}, settings, called=TRAIN_NAMES)["train"])
    idle, defaults = idle_fields(vars(changed)), {each.name: each.default for each in fields(TrainConfig)}
    for setting in settings:
        name = setting.partition("=")[0].strip().removeprefix("train.")
        if name in idle and getattr(changed, name) != defaults[name]:
            raise ValueError(f"--set {setting!r} has no effect: it {idle[name]}; leave it out")
    return changed


def idle_fields(train: Mapping[str, Any]) -> dict[str, str]:
    """The fields of `TrainConfig` that nothing reads beside these others, each with its purpose."""
    optimizer, schedule, is_sgd = train["optimizer"], train["schedule"], train["optimizer"] == "sgd"
    of_plateau = (schedule == "plateau", f"is for the schedule plateau, not {schedule}")
    not_of_sgd = (not is_sgd, "is for other optimizers than sgd")
    rules = {
        "momentum": (is_sgd, f"is for the optimizer sgd, not {optimizer}"),
        "betas": not_of_sgd,
        "epsilon": not_of_sgd,
        "decay_factor": (schedule in ("steps", "plateau"), f"is for the schedules steps and plateau, not {schedule}"),
        "plateau_patience": of_plateau,
        "plateau_cooldown": of_plateau,
        "plateau_threshold": of_plateau,
        "best_is": (bool(train["best_by"]), "is for best_by, and none is set"),
        "average_start": (train["average_rate"] > 0, "is for an average, and average_rate is 0"),
    }
    return {name: what for name, (is_read, what) in rules.items() if not is_read}


FLOAT32 = "float32"
# Names of --precision -> values of `TrainConfig.precision`.
PRECISION_NAMES: Mapping[str, str] = MappingProxyType({FLOAT32: "fp32", "bf16": "bf16", "fp16": "fp16"})


def check_precision(requested: str | None) -> None:
    """Raises ValueError for an unknown name; None leaves the choice to `precision_of`."""
    if requested is not None and requested not in PRECISION_NAMES:
        raise ValueError(f"--precision {requested!r}: choose one of {', '.join(PRECISION_NAMES)}")


def trained_precision(train: Mapping[str, Any]) -> str:
    """Precision by the settings of a run, as named in `PRECISION_NAMES`."""
    kept = train.get("precision", "fp32")
    return next((name for name, value in PRECISION_NAMES.items() if value == kept), FLOAT32)


def precision_of(requested: str | None, learned: str, device: str) -> str:
    """Precision to compute in: the requested one, else on CUDA that of the run's training, elsewhere float32."""
    if requested == "fp16" and device == "cpu":
        raise ValueError("--precision fp16 needs an accelerator, device is cpu; choose bf16 or float32")
    return requested or (learned if device.startswith("cuda") else FLOAT32)


def autocast_to(precision: str, device: str) -> AbstractContextManager[Any]:
    """Context in which a model computes in this precision; its weights stay float32."""
    import torch

    if precision == FLOAT32:
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16 if precision == "bf16" else torch.float16)
