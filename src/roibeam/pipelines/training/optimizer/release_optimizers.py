"""The optimizers of the published codes, where torch has none that takes the same steps.

Neither clips gradients nor schedules its rate: the training loop does both (`TrainConfig.clip_scope`, `schedule`).

Letters below: g gradient, m and v the running means of g and g squared, lr rate, wd weight decay, p parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class BertAdam(Optimizer):
    """p -= lr * (m / (sqrt(v) + epsilon) + wd * p), without bias correction.

    pytorch_pretrained_bert optimization.py, BertAdam, as jiasenlu/vilbert_beta, uclanlp/visualbert and
    black4321/InterBERT use it. There it also clips each tensor to norm 1 by itself and runs its own schedule, in which
    every tensor counts its own steps; here the loop's step counts for all.

    Args:
        params: tensors, or groups of them with their own "lr" and "weight_decay".
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = _closure_loss(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean, square = _running_means(self.state[parameter], parameter, group["betas"])
                update = mean / square.sqrt().add_(group["eps"])
                update.add_(parameter, alpha=group["weight_decay"])
                parameter.sub_(update, alpha=group["lr"])
        return loss


class TransformersAdamW(Optimizer):
    """Adam's step first, then p -= lr * wd * p on what it made of p.

    pytorch_transformers optimization.py, AdamW: that of jackroos/VL-BERT (common/nlp/bert/optimization.py) and of
    facebookresearch/vilbert-multi-task. It differs from `torch.optim.AdamW` in two things: that one decays before the
    step, and adds epsilon after the correction of v instead of before.

    Args:
        params: tensors, or groups of them with their own "lr" and "weight_decay".
        correct_bias: False leaves Adam's bias correction out, as the multi-task ViLBERT's fine-tuning does.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.correct_bias = correct_bias

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = _closure_loss(closure)
        for group in self.param_groups:
            rate, betas = group["lr"], group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                mean, square = _running_means(state, parameter, betas)
                step_size = rate
                if self.correct_bias:
                    # A tensor, so that a checkpoint of safetensors holds it; torch keeps "step" on the CPU.
                    state["step"] = state.get("step", torch.zeros(())) + 1
                    count = float(state["step"])
                    step_size = rate * math.sqrt(1 - betas[1] ** count) / (1 - betas[0] ** count)
                parameter.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-step_size)
                parameter.add_(parameter, alpha=-rate * group["weight_decay"])
        return loss


def _running_means(state: dict[str, Tensor], parameter: Tensor, betas: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """m and v after the gradient of this step; they start at 0."""
    if "exp_avg" not in state:
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    gradient = parameter.grad
    assert gradient is not None
    mean = state["exp_avg"].mul_(betas[0]).add_(gradient, alpha=1 - betas[0])
    square = state["exp_avg_sq"].mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    return mean, square


def _closure_loss(closure: Callable[[], float] | None) -> float | None:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
