"""The optimizer of a run and its learning rate at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from roibeam.pipelines.training.optimizer.release_optimizers import BertAdam, TransformersAdamW
from roibeam.pipelines.training.parameter_groups import ParameterGroup, group_parameters
from roibeam.pipelines.training.train_config import TASK_GROUPS, TrainConfig


def build_optimizer(
    groups: Sequence[ParameterGroup], config: TrainConfig, *, device: torch.device
) -> torch.optim.Optimizer:
    """The optimizer of a run; each of its groups keeps its "learning_rate_scale".

    Args:
        device: where the parameters will be when it takes its steps.
    """
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
        # On a CPU torch's own choice is one tensor after the other, six times as slow. The fused step pairs numbers by
        # their place in memory: a weight that is not contiguous would meet the means of others once these were saved
        # and read. A loss scale, which it would apply by itself, is for GPUs.
        whole = all(parameter.is_contiguous() for group in options for parameter in group["params"])
        fused = True if device.type == "cpu" and whole else None
        return torch.optim.AdamW(options, lr=rate, betas=betas, eps=epsilon, fused=fused)
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
    rise = config.rise
    if config.schedule == "epochs-over-warmup":
        return _epochs_over_warmup(step, config)
    if config.starts_at_zero:
        step -= 1
    if step < rise:
        return config.learning_rate * step / rise
    if config.schedule == "steps":
        return config.learning_rate * _fallen(step, config)
    return config.learning_rate * (config.steps - step) / max(config.steps - rise, 1)


def _fallen(step: int, config: TrainConfig) -> float:
    return config.decay_factor ** sum(step > last for last in config.decay_steps)


def _epochs_over_warmup(step: int, config: TrainConfig) -> float:
    """Two schedulers write one rate (facebookresearch/vilbert-multi-task train_tasks.py, `--lr_scheduler mannul`).

    That of epochs, made last, writes before the first step and at the end of each epoch; that of the rise after each
    step that lies in it.
    """
    risen = step - 1
    if risen % config.epoch_steps and risen < config.rise:
        return config.learning_rate * risen / config.rise
    return config.learning_rate * _fallen(step, config)
