"""The learning rate of each step: the rise, what comes behind it, and the accidents of the releases by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roibeam.pipelines.training.train_config import TrainConfig


def learning_rate_at(step: int, config: TrainConfig, *, falls: int = 0) -> float:
    """Rate of step 1, 2, ... `config.steps`.

    "linear" is VL-BERT's "triangle" schedule; "steps" with a linear rise is detectron2's WarmupMultiStepLR. VL-BERT's
    own WarmupMultiStepLR already falls in the step that a milestone names: its milestone is `decay_steps` + 1.

    Args:
        falls: of the schedule "plateau", from `plateau_falls`.
    """
    if config.starts_at_zero:
        step -= 1
    steps, every = config.steps, config.updates_per_schedule_step
    rounds = step // every  # that are over: the schedule goes on with the first update of a round, epochs with the last
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

    That of the epochs sets it without the rise, at the start and at each epoch's end. That of the rise sets it without
    the falls, after the first update of each round until the rise is over. The later one counts.
    """
    epoch_start = rounds - rounds % config.warmup_overwritten_every
    risen = math.ceil(config.warmup_steps)
    if step == epoch_start or epoch_start >= risen:
        return _decay(epoch_start, config)
    return min(step / config.warmup_steps, 1.0)


def plateau_falls(scores: Sequence[float], config: TrainConfig) -> int:
    """How often the rate has fallen after these evaluations, by the rule of torch's ReduceLROnPlateau.

    A score is better when it beats the best one by `plateau_threshold` of that. After more than `plateau_patience` in a
    row that are not, the rate falls; the next `plateau_cooldown` then do not count.

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
