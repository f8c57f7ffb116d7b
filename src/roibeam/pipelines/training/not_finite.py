"""Why a loss or a gradient is not finite: which weights, or which samples, each tried alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

_FEW = 3  # samples that may all be bad


@runtime_checkable
class SplitsBatches(Protocol):
    """What a `TrainTask` may offer beside: its batches sample by sample, so that one bad sample can be named."""

    def one_by_one(self, batch: Any) -> Iterator[Any]:
        """Batches of one sample each, in the order of `sample_ids`."""


def blame(task: Any, micro_batches: Sequence[Any], accelerator: Accelerator, *, remedy: str = "") -> str:
    """A clause that says who is to blame for a step of all processes that came out not finite; every process calls it.

    Args:
        task: a `TrainTask`, whose model has the weights from before the step. Its gradients are dropped.
        remedy: what to do where the weights are to blame; "" before any step, which cannot have spoiled them.
    """
    broken = [name for name, weight in task.model.named_parameters() if not bool(weight.isfinite().all())]
    if broken:
        return (
            f"the weights were not finite before it ({broken[0]}, {len(broken)} in all); "
            f"{remedy or 'look at what the run starts from'}"
        )
    names = [name for batch in micro_batches for name in task.sample_ids(batch)]
    guilty = list(_guilty(task, micro_batches, accelerator)) if isinstance(task, SplitsBatches) else []
    if accelerator.num_processes > 1:
        names, guilty = gather_object(names), gather_object(guilty)
    if remedy and len(guilty) == len(names) > _FEW:
        return f"none of its {len(names)} samples is finite by itself: the weights are spoiled, not the data; {remedy}"
    if guilty:
        return (
            f"not finite by itself: {', '.join(guilty)} (of {len(names)} samples in the step); look at what is stored "
            f"for them"
        )
    alone = ", each of them finite alone" if isinstance(task, SplitsBatches) else ""
    return f"samples: {', '.join(names)}{alone}; look at their features, or lower the learning rate and start again"


def _guilty(task: Any, micro_batches: Sequence[Any], accelerator: Accelerator) -> Iterator[str]:
    """Samples whose own loss, or whose gradient by itself, is not finite; without dropout."""
    model: nn.Module = task.model
    model.eval()
    for batch in micro_batches:
        for name, single in zip(task.sample_ids(batch), task.one_by_one(batch), strict=True):
            model.zero_grad(set_to_none=True)
            with accelerator.autocast():
                losses = task.losses(model, single.to(accelerator.device)).losses.values()
                total = sum((term.total for term in losses), start=torch.zeros((), device=accelerator.device))
            finite = bool(total.isfinite())
            if finite and total.requires_grad:
                total.backward()
                finite = all(
                    bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None
                )
            if not finite:
                yield name
    model.zero_grad(set_to_none=True)
    model.train()
