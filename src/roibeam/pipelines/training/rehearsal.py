"""The largest batch first: a run that will not fit into memory says so in its first minute, not in its second night.

A forward and a backward pass, whose effect is undone: parameters, random states and log are those of a run without.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from torch import Tensor, nn

logger = logging.getLogger(__name__)

_STATE_TENSORS = 2  # that Adam keeps for each parameter, from its first step on


@dataclass(frozen=True, eq=False)
class WorstBatch:
    """Attributes:
    batch: of the task's own type.
    what: it, for people.
    remedies: settings of the task that need less memory.
    """

    batch: Any
    what: str
    remedies: str


@runtime_checkable
class RehearsedTask(Protocol):
    """A `TrainTask` that knows how large its batches get."""

    def worst_batch(self) -> WorstBatch: ...


def rehearse(
    task: Any, model: nn.Module, optimizer: torch.optim.Optimizer, accelerator: Accelerator, *, accumulation: int
) -> None:
    """Runs the worst batch of a task that has one.

    Args:
        model: in training mode, as it will be trained.
        accumulation: micro-batches of a step: with several, gradients are held while the next one runs.
    Raises:
        ValueError: when memory does not suffice, saying what to do.
    """
    if not isinstance(task, RehearsedTask):
        return
    worst = task.worst_batch()
    device, started = accelerator.device, time.monotonic()
    on_cuda = device.type == "cuda"
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    try:
        # The optimizer's state comes with the first step; a resumed run has it already.
        room = [] if optimizer.state else [torch.empty_like(each) for each in trained for _ in range(_STATE_TENSORS)]
        with torch.random.fork_rng(devices=[device] if on_cuda else []):
            for _ in range(min(accumulation, 2)):
                _run(task, model, worst.batch, accelerator)
        del room
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)):
            raise
        raise ValueError(
            f"the largest batch, {worst.what}, does not fit into the memory of {device}; a smaller batch_size with "
            f"train.accumulation, train.precision=bf16, {worst.remedies} need less"
        ) from None
    optimizer.zero_grad()
    peak = f", {torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB at most" if on_cuda else ""
    logger.info("the largest batch, %s, fits: %.1f s%s", worst.what, time.monotonic() - started, peak)
    if on_cuda:
        torch.cuda.empty_cache()


def _run(task: Any, model: nn.Module, batch: Any, accelerator: Accelerator) -> None:
    with accelerator.autocast():
        losses = task.losses(model, batch.to(accelerator.device)).losses
        loss = sum((term.mean for term in losses.values()), start=torch.zeros((), device=accelerator.device))
    assert isinstance(loss, Tensor)
    accelerator.backward(loss)
