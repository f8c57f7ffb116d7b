"""The optimizer of a run, over which parameters, and how their gradients are clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from roibeam.pipelines.training.optimizer.parts import freeze_parts, rated_groups
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
    """The parameter groups that `config` asks for; what it freezes has no gradient from now on.

    Args:
        own: gives the task's.
    Raises:
        ValueError: when the model is not the one that the named rule is for, or has no part of a name.
    """
    freeze_parts(model, config.frozen)
    if config.parameter_groups == TASK_GROUPS:
        groups = own()
    else:
        groups = group_parameters(model, config.parameter_groups, learning_rate=config.learning_rate)
    if config.frozen:  # a task may give what is not trained, too
        trained = [[each for each in group["params"] if each.requires_grad] for group in groups]
        groups = [{**group, "params": left} for group, left in zip(groups, trained, strict=True) if left]
    return rated_groups(groups, model, config.rates) if config.rates else groups


def clip_each(parameters: Iterable[nn.Parameter], largest_norm: float) -> None:
    """Scales the gradient of every tensor whose own norm is above `largest_norm` down to it, as BertAdam does."""
    for parameter in parameters:
        if parameter.grad is not None:
            nn.utils.clip_grad_norm_([parameter], largest_norm)
