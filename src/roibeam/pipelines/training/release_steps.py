"""What releases do at odds with the loop's rules, where no setting of a single step says it; chosen by recipes alone.

The rest stands where it acts: `TrainConfig` (means of micro-batches, the last micro-batch alone, warm-up by shares,
epochs over the warm-up, the average from before the first update), `parameter_groups.py` (swapped decay, rates of
heads, what is not trained) and `optimizer/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

Batch = TypeVar("Batch")


def joint_steps(micro_batches: Sequence[Batch], *, num_tasks: int, accumulation: int) -> list[list[Batch]]:
    """Which micro-batches' gradients each update has where tasks take turns and each ends with an update of its own.

    Both ViLBERT releases, VCR's two problems (train_tasks.py): gradients are cleared by updates alone, so the first
    task's has those of all tasks since, the others' only their own last one. Our rule is one update with all of them.

    Args:
        micro_batches: A0 B0 A1 B1 ..., in the order in which they are computed.
    """
    in_one = num_tasks * accumulation
    steps = []
    for start in range(0, len(micro_batches), in_one):
        round_ = list(micro_batches[start : start + in_one])
        first = in_one - num_tasks + 1
        steps += [round_[:first], *([each] for each in round_[first:])]
    return steps


def plateau_rates(rate: float, scores: Sequence[float]) -> list[float]:
    """The rate of each epoch where it falls when the validation score does not rise (`--lr_scheduler automatic`).

    jiasenlu/vilbert_beta train_tasks.py: to a fifth after the second epoch without a better score, then an epoch's
    rest. In vilbert-multi-task the option raises.

    Args:
        scores: of the epochs so far.
    Returns:
        one more than there are scores.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=0.2, patience=1, cooldown=1, threshold=0.001
    )
    rates = [rate]
    for score in scores:
        scheduler.step(score)
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates
