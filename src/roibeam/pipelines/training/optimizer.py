"""Optimizer and learning rate of a run: its parameters, clipping, schedule, and the published codes' optimizers.

The task chooses the groups of parameters. A part of a model is a prefix of parameters' names, up to a dot:
"embeddings", "encoder.layers.0", "head". Wrappers of a model and the name of its system may be left out:
"model.vlbert.encoder" is "encoder". "model" is all of a pre-trained model but its heads.

The published optimizers stand here where torch has none that takes the same steps. Neither clips gradients nor
schedules its rate: the training loop does both (`TrainConfig.clip_scope`, `schedule`). Letters in them: g gradient,
m and v the running means of g and g squared, lr rate, wd weight decay, p parameter.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roibeam.messages import name_hint
from roibeam.pipelines.common.console.progress import folded
from roibeam.pipelines.training.parameter_groups import ParameterGroup, group_parameters, with_scaled_part
from roibeam.pipelines.training.train_config import TASK_GROUPS, TrainConfig


def learning_rate_at(step: int, config: TrainConfig, *, falls: int = 0) -> float:
    """Rate of step 1, 2, ... `config.steps`.

    "linear" is VL-BERT's "triangle" schedule; "steps" with a linear rise is detectron2's WarmupMultiStepLR. VL-BERT's
    own WarmupMultiStepLR already falls in the step that a milestone names: its milestone is `decay_steps` + 1.

    Args:
        falls: for the schedule "plateau", from `plateau_falls`.
    """
    if config.starts_at_zero:
        step -= 1
    steps, every = config.steps, config.updates_per_schedule_step
    rounds = step // every  # finished ones: the schedule goes on with the first update of a round, epochs with the last
    if every > 1:
        step, steps = math.ceil(step / every), math.ceil(steps / every)
    if config.warmup_overwritten_every:
        return config.learning_rate * _overwritten_scale(step, rounds, config)
    rise = step / config.warmup_steps if step < config.warmup_steps else 1.0
    if config.schedule == "plateau":
        return config.learning_rate * rise * config.decay_factor**falls
    if rise < 1.0:
        return config.learning_rate * step / config.warmup_steps
    if config.schedule == "steps":
        return config.learning_rate * _decay(step, config)
    if config.schedule == "constant":
        return config.learning_rate
    fall = max(steps - config.warmup_steps, 1)
    if config.schedule == "cosine":
        return config.learning_rate * 0.5 * (1.0 - math.cos(math.pi * (steps - step) / fall))
    return config.learning_rate * (steps - step) / fall


def _decay(step: int, config: TrainConfig) -> float:
    return config.decay_factor ** sum(step > last for last in config.decay_steps)


def _overwritten_scale(step: int, rounds: int, config: TrainConfig) -> float:
    """facebookresearch/vilbert-multi-task, `--lr_scheduler mannul`: two schedules set the same rate in turn.

    The schedule of epochs sets it without the rise, at the start and at each epoch's end. That of the rise sets it
    without the falls, after the first update of each round until the rise is over. The later one counts.
    """
    epoch_start = rounds - rounds % config.warmup_overwritten_every
    risen = math.ceil(config.warmup_steps)
    if step == epoch_start or epoch_start >= risen:
        return _decay(epoch_start, config)
    return min(step / config.warmup_steps, 1.0)


def plateau_falls(scores: Sequence[float], config: TrainConfig) -> int:
    """Number of falls of the rate after these evaluations, by the rule of torch's ReduceLROnPlateau.

    A score is better if it beats the best one by `plateau_threshold` of that. After more than `plateau_patience` worse
    ones in a row, the rate falls; the next `plateau_cooldown` then do not count.

    Args:
        scores: of all evaluations behind the first step, in their order.
    """
    sign = 1.0 if config.highest_is_best else -1.0
    best, worse, cooldown, falls = -math.inf, 0, 0, 0
    for score in (sign * each for each in scores):
        if score > best + config.plateau_threshold * (sign * best if math.isfinite(best) else 0.0):
            best, worse = score, 0
        else:
            worse += 1
        if cooldown:
            cooldown, worse = cooldown - 1, 0
        if worse > config.plateau_patience:
            falls, cooldown, worse = falls + 1, config.plateau_cooldown, 0
    return falls


logger = logging.getLogger(__name__)

_MODEL = "model."
_BESIDE = ("head", "_score", "region_encoder", "detection")  # ends of first parts of names that "model" leaves out


def freeze_parts(model: nn.Module, parts: Sequence[str]) -> None:
    """Turns off the gradients of these parts, so that no step changes them."""
    if not parts:
        return
    names = _spellings(model)
    for part in parts:
        _check_part("train.frozen", part, names)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    for name, parameter in trained.items():
        parameter.requires_grad_(not any(_rest(part, names[name]) is not None for part in parts))
    left = sum(each.numel() for each in trained.values() if each.requires_grad)
    if not left:
        raise ValueError(f"train.frozen {list(parts)} leaves nothing to train; name fewer parts")
    whole = sum(each.numel() for each in trained.values())
    logger.info("%s", folded(f"train.frozen leaves {left:,} of {whole:,} numbers to train"))


def rated_groups(
    groups: Iterable[ParameterGroup], model: nn.Module, rates: Mapping[str, float]
) -> Sequence[ParameterGroup]:
    """The groups, with the rate of parameters of a part times its factor; the longest matching part wins."""
    names, groups = _spellings(model), list(groups)
    for part in rates:
        _check_part("train.rates", part, names)
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        rests = {part: _rest(part, names.get(name, ())) for part in rates}
        fitting = sorted((len(rest), part) for part, rest in rests.items() if rest is not None)
        if fitting:
            by_factor.setdefault(rates[fitting[0][1]], []).append(parameter)
    for factor, parameters in by_factor.items():
        groups = with_scaled_part(groups, parameters, factor)
    return groups


def _check_part(field: str, part: str, names: Mapping[str, Collection[str]]) -> None:
    if any(_rest(part, spelled) is not None for spelled in names.values()):
        return
    shortest = [min(spelled, key=len) for spelled in names.values()]
    parts = sorted({each.partition(".")[0] for each in shortest})
    if any(_rest("model", spelled) is not None for spelled in names.values()):
        parts.append("model")
    exact = max(shortest, key=lambda each: each.count(".")).rpartition(".")[0]
    raise ValueError(
        f"{field}: {part!r} names nothing that is trained; {name_hint(part, parts)}, or what is in one, such as {exact}"
    )


def _rest(part: str, spelled: Collection[str]) -> str | None:
    """The parameter's name without that of a part; None if it is not of the part."""
    found = [name[len(part) :] for name in spelled if name == part or name.startswith(f"{part}.")]
    return min(found, key=len) if found else None


def _spellings(model: nn.Module) -> dict[str, set[str]]:
    """Names in use for each trained parameter."""
    inner: object = model
    while inner is not None and not getattr(inner, "base_model_prefix", ""):
        inner = getattr(inner, "model", None)
    base = f"{getattr(inner, 'base_model_prefix', '')}."
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    has_base = base != "." and any(base in name for name in trained)
    found = {}
    for name in trained:
        plain = name
        while plain.startswith(_MODEL):
            plain = plain.removeprefix(_MODEL)
        own = plain.removeprefix(base)
        first = own.partition(".")[0]
        is_model = plain.startswith(base) if has_base else inner is not None and not first.endswith(_BESIDE)
        found[name] = {plain, own} | ({_MODEL + plain, _MODEL + own} if is_model else set())
    return found


class BertAdam(Optimizer):
    """p -= lr * (m / (sqrt(v) + epsilon) + wd * p), without bias correction.

    pytorch_pretrained_bert optimization.py, BertAdam, as jiasenlu/vilbert_beta, uclanlp/visualbert and
    black4321/InterBERT use it. There it also clips each tensor to norm 1 by itself and runs its own schedule, in which
    every tensor counts its own steps; here the loop's step counts for all.
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
        loss = None if closure is None else torch.enable_grad()(closure)()
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
    """Adam's step, then p -= lr * wd * p on its result.

    pytorch_transformers optimization.py, AdamW: that of jackroos/VL-BERT (common/nlp/bert/optimization.py) and of
    facebookresearch/vilbert-multi-task. It differs from `torch.optim.AdamW` in two things: that one decays before the
    step, and adds epsilon after the correction of v instead of before. Without `correct_bias` it leaves Adam's bias
    correction out, as the multi-task ViLBERT's fine-tuning does.
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
        loss = None if closure is None else torch.enable_grad()(closure)()
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


def build_optimizer(
    groups: Sequence[ParameterGroup], config: TrainConfig, *, device: torch.device
) -> torch.optim.Optimizer:
    """The optimizer of a run on a device; each of its groups keeps its "learning_rate_scale"."""
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
    """The parameter groups of `config`, or those that `own` returns; frozen parameters have no gradient from now on."""
    freeze_parts(model, config.frozen)
    if config.parameter_groups == TASK_GROUPS:
        groups = own()
    else:
        groups = group_parameters(model, config.parameter_groups, learning_rate=config.learning_rate)
    if config.frozen:  # a task's groups may hold frozen parameters, too
        trained = [[each for each in group["params"] if each.requires_grad] for group in groups]
        groups = [{**group, "params": left} for group, left in zip(groups, trained, strict=True) if left]
    return rated_groups(groups, model, config.rates) if config.rates else groups


def clip_each(parameters: Iterable[nn.Parameter], largest_norm: float) -> None:
    """Scales the gradient of every tensor whose own norm is above `largest_norm` down to it, as BertAdam does."""
    for parameter in parameters:
        if parameter.grad is not None:
            nn.utils.clip_grad_norm_([parameter], largest_norm)
