"""How a run is trained, whatever its task: its settings, its optimizer and its learning rate at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipelines.parameter_groups import PARAMETER_RULES, ParameterGroup, group_parameters
from pipelines.release_optimizers import BertAdam, TransformersAdamW

OPTIMIZERS = ("adamw", "sgd", "bert-adam", "adamw-transformers", "adamw-transformers-uncorrected")
SCHEDULES = ("linear", "steps")
CLIP_SCOPES = ("all", "each")
TASK_GROUPS = "task"


@dataclass(frozen=True)
class TrainConfig:
    """How to train, whatever the task.

    Attributes:
        steps: optimizer steps; the schedule ends there.
        learning_rate: peak, for the whole global batch; never scaled by batch size or processes.
        warmup_steps: linear rise, step k uses learning_rate * k / warmup_steps.
        schedule: after the rise: "linear" falls to 0 at `steps`; "steps" stays, times `decay_factor` behind each of
            `decay_steps`, as detectors are trained.
        decay_steps: last step before each fall, ascending; () = none.
        decay_factor: of each fall.
        starts_at_zero: the schedule lags one step: the first has rate 0, as in releases that step their schedule after
            the optimizer.
        optimizer: "adamw" (torch's), "sgd" with momentum, or one of a release: "bert-adam", "adamw-transformers",
            "adamw-transformers-uncorrected" (pipelines/release_optimizers.py).
        weight_decay: on every parameter unless its group says otherwise; decoupled in all but SGD.
        parameter_groups: "task" takes the task's own; a name of `PARAMETER_RULES` groups as that release does.
        betas, epsilon: of all but SGD. The defaults are those of VL-BERT's release (cfgs/pretrain).
        momentum: of SGD.
        clip_norm: largest gradient norm; 0 = no clipping.
        clip_scope: whether that is the norm of "all" gradients together, or of "each" tensor by itself.
        accumulation: micro-batches per step and process. The loss is the mean over all of them together.
        precision: "fp32", or "bf16" (autocast; weights stay fp32).
        device: "auto" (an accelerator if there is one) or "cpu".
        seed: of dropout; tasks take theirs from here too.
        log_every: steps between two lines for people; log.jsonl has every step.
        checkpoint_every: steps between two checkpoints; 0 = only at the end.
        keep: newest checkpoints that stay; 0 = all.

    Raises:
        ValueError: naming the field, what it holds and what it may hold.
    """

    steps: int
    learning_rate: float = 1e-4
    warmup_steps: int = 0
    schedule: str = "linear"
    decay_steps: tuple[int, ...] = ()
    decay_factor: float = 0.1
    starts_at_zero: bool = False
    optimizer: str = "adamw"
    weight_decay: float = 1e-4
    parameter_groups: str = TASK_GROUPS
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    momentum: float = 0.9
    clip_norm: float = 10.0
    clip_scope: str = "all"
    accumulation: int = 1
    precision: str = "fp32"
    device: str = "auto"
    seed: int = 0
    log_every: int = 20
    checkpoint_every: int = 1000
    keep: int = 2

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("accumulation", 1), ("log_every", 1), ("warmup_steps", 0), ("seed", 0)):
            _require(getattr(self, name) >= least, f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("weight_decay", "clip_norm", "checkpoint_every", "keep"):
            _require(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        _require(
            len(self.betas) == 2 and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in self.betas),
            f"betas must be two numbers in 0..1, got {self.betas}",
        )
        _require(0 <= self.momentum < 1, f"momentum must be in 0..1, got {self.momentum}")
        _require(self.learning_rate > 0, f"learning_rate must be positive, got {self.learning_rate}")
        _require(
            self.warmup_steps <= self.steps, f"warmup_steps {self.warmup_steps} is more than all {self.steps} steps"
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
            self.clip_scope == "all" or self.clip_norm > 0,
            "clip_scope each needs a clip_norm above 0; there is no clipping",
        )
        for name, words in (
            ("schedule", SCHEDULES),
            ("optimizer", OPTIMIZERS),
            ("parameter_groups", (TASK_GROUPS, *PARAMETER_RULES)),
            ("clip_scope", CLIP_SCOPES),
            ("precision", ("fp32", "bf16")),
            ("device", ("auto", "cpu")),
        ):
            _require(getattr(self, name) in words, f"{name} must be {' or '.join(words)}, got {getattr(self, name)!r}")


def build_optimizer(groups: Sequence[ParameterGroup], config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer of a run; each of its groups keeps its "learning_rate_scale"."""
    options: list[dict[str, Any]] = [
        {
            "params": list(group["params"]),
            "weight_decay": group.get("weight_decay", config.weight_decay),
            "learning_rate_scale": group.get("learning_rate_scale", 1.0),
        }
        for group in groups
    ]
    rate, betas, epsilon = config.learning_rate, config.betas, config.epsilon
    if config.optimizer == "sgd":
        return torch.optim.SGD(options, lr=rate, momentum=config.momentum)
    if config.optimizer == "bert-adam":
        return BertAdam(options, lr=rate, betas=betas, eps=epsilon)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(options, lr=rate, betas=betas, eps=epsilon)
    correct = config.optimizer == "adamw-transformers"
    return TransformersAdamW(options, lr=rate, betas=betas, eps=epsilon, correct_bias=correct)


def chosen_groups(
    model: nn.Module, own: Callable[[], Sequence[ParameterGroup]], config: TrainConfig
) -> Sequence[ParameterGroup]:
    """The parameter groups that `config` asks for.

    Args:
        own: gives the task's.
    Raises:
        ValueError: when the model is not the one that the named rule is for.
    """
    if config.parameter_groups == TASK_GROUPS:
        return own()
    return group_parameters(model, config.parameter_groups, learning_rate=config.learning_rate)


def clip_each(parameters: Iterable[nn.Parameter], largest_norm: float) -> None:
    """Scales the gradient of every tensor whose own norm is above `largest_norm` down to it, as BertAdam does."""
    for parameter in parameters:
        if parameter.grad is not None:
            nn.utils.clip_grad_norm_([parameter], largest_norm)


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Rate of step 1, 2, ... `config.steps`.

    "linear" is VL-BERT's "triangle" schedule; "steps" with a linear rise is detectron2's WarmupMultiStepLR. VL-BERT's
    own WarmupMultiStepLR already falls in the step that a milestone names: its milestone is `decay_steps` + 1.
    """
    if config.starts_at_zero:
        step -= 1
    if step < config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    if config.schedule == "steps":
        return config.learning_rate * config.decay_factor ** sum(step > last for last in config.decay_steps)
    return config.learning_rate * (config.steps - step) / max(config.steps - config.warmup_steps, 1)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"TrainConfig: {message}")
