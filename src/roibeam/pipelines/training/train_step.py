"""One optimizer step of the loop, over the micro-batches of all processes.

counts of all -> losses over them -> backward -> clip -> check finite -> optimizer -> means of all

Where a loss or a gradient is not finite, `blame` finds the weights or the samples, each tried alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from roibeam.model.common.losses import SumCount
from roibeam.pipelines.training.checkpoint import way_back
from roibeam.pipelines.training.optimizer import clip_each
from roibeam.pipelines.training.task import TrainTask
from roibeam.pipelines.training.train_config import TrainConfig


class SumsOverProcesses:
    """Adds up rows of `width` numbers by name.

    A process may have names that others lack, such as the loss of a kind of sample that its batch has none of. The list
    of names is updated if a process has a new one; otherwise one reduction suffices.
    """

    def __init__(self, accelerator: Accelerator, width: int) -> None:
        self._accelerator, self._width = accelerator, width
        self._names: list[str] = []

    def __call__(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By name (width,) float64 on the accelerator's device, for all names that any process has; every process
        calls it with its own (width,) numbers, and gets the same."""
        device = self._accelerator.device
        mine = {name: row.to(device, torch.float64) for name, row in own.items()}
        if self._accelerator.num_processes == 1:
            return mine
        sums = self._reduce(mine)
        if sums[-1, 0] > 0:  # some process has a name that is not in the list
            known = set(self._names)
            self._names += sorted({name for name in gather_object(list(own)) if name not in known})
            sums = self._reduce(mine)
        place = {name: index for index, name in enumerate(self._names)}
        present = sums[:, -1].tolist()
        found = [*own, *(name for name in self._names if name not in own and present[place[name]])]
        return {name: sums[place[name], :-1] for name in found}

    def _reduce(self, mine: Mapping[str, Tensor]) -> Tensor:
        """(names + 1, width + 1): sums and how many processes have the name; last, how many names are not listed."""
        rows = torch.zeros(len(self._names) + 1, self._width + 1, dtype=torch.float64, device=self._accelerator.device)
        for index, name in enumerate(self._names):
            if name in mine:
                rows[index, :-1] = mine[name]
                rows[index, -1] = 1
        rows[-1, 0] = len(mine.keys() - set(self._names))
        return self._accelerator.reduce(rows, "sum")


_FEW = 3  # samples that may all be bad


@runtime_checkable
class SplitsBatches(Protocol):
    """Optional splitting of a `TrainTask`'s batches into samples, so that one bad sample can be named."""

    def one_by_one(self, batch: Any) -> Iterator[Any]:
        """Batches of one sample each, in the order of `sample_ids`."""


def blame(task: Any, micro_batches: Sequence[Any], accelerator: Accelerator, *, remedy: str = "") -> str:
    """A clause with the cause of a step that is not finite, over all processes; every process calls it.

    Args:
        task: a `TrainTask`, whose model has the weights from before the step. Its gradients are dropped.
        remedy: for bad weights; "" before any step, which cannot have spoiled them.
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
            f"not finite by itself: {', '.join(guilty)} (of {len(names)} samples in the step); see what is stored for "
            "them"
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


_STOP = "stop signal"  # travels with the losses, so that processes agree without another reduction
_SMALLEST_SCALE = 2.0**-14  # of an fp16 loss; gradients that overflow below it are no matter of its scale


@dataclass(frozen=True)
class StepOutcome:
    """Attributes:
    values: loss, gradient norm, and the mean over all processes of every loss and metric; None where none was counted.
    moved: whether the optimizer took its step; False when fp16 gradients overflowed.
    stop: the stop signal that any process received, or 0.
    """

    values: dict[str, float | None]
    moved: bool
    stop: int


class TrainStep:
    """The steps of a run.

    Args:
        stop_signal: called at the end of each step; returns the stop signal that this process received, or 0.
        run_dir: folder of the checkpoints to name if the weights are to blame.
    """

    def __init__(
        self,
        task: TrainTask,
        model: nn.Module,
        optimizer: Any,
        accelerator: Accelerator,
        config: TrainConfig,
        *,
        stop_signal: Callable[[], int],
        run_dir: Path | None = None,
    ) -> None:
        self._task, self._model, self._optimizer = task, model, optimizer
        self._accelerator, self._config, self._stop_signal = accelerator, config, stop_signal
        self._run_dir = run_dir
        # Clip only parameters that the optimizer has; some releases leave out parameters that get gradients.
        grouped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._trained = [parameter for parameter in model.parameters() if id(parameter) in grouped]
        self._add_counts = SumsOverProcesses(accelerator, 1)
        self._add_sums = SumsOverProcesses(accelerator, 3)

    def take(self, micro_batches: Sequence[Any], step: int) -> StepOutcome:
        """Takes step `step`; ValueError if loss or gradients are not finite, naming the cause: the weights stay
        unchanged."""
        accelerator, config = self._accelerator, self._config
        counts = [self._task.counts(batch) for batch in micro_batches]
        denominators = self._denominators(counts)
        sums: dict[str, SumCount] = {}
        for index, batch in enumerate(micro_batches):
            last = index == len(micro_batches) - 1
            if last and config.step_gradients == "last":
                self._model.zero_grad()
            with nullcontext() if last else accelerator.no_sync(self._model):
                with accelerator.autocast():
                    loss = self._loss(batch, counts[index], denominators, sums)
                # Gradients are averaged over processes, so each contributes its share times their number.
                accelerator.backward(loss * accelerator.num_processes)
        all_together = config.clip_scope == "all" and config.clip_norm
        norm = accelerator.clip_grad_norm_(self._trained, config.clip_norm if all_together else math.inf)

        means, stop = self._means(sums)
        loss_value = sum(value for name, value in means.items() if name in denominators and value is not None)
        values = {"loss": loss_value, "gradient_norm": float(norm), **means}
        moved = math.isfinite(loss_value) and math.isfinite(float(norm))
        scaler = accelerator.scaler
        if not moved and (scaler is None or not math.isfinite(loss_value) or scaler.get_scale() < _SMALLEST_SCALE):
            raise ValueError(
                f"step {step}: loss {loss_value} ({means}), gradient norm {float(norm)} are not finite; "
                + blame(self._task, micro_batches, accelerator, remedy=way_back(self._run_dir, step, config))
            )
        if moved and config.clip_scope == "each" and config.clip_norm:
            clip_each(self._trained, config.clip_norm)
        if scaler is not None:
            values |= {"gradient_norm": float(norm) if moved else None, "loss_scale": scaler.get_scale()}
        self._optimizer.step()  # with a scaler: only changes the scale if gradients are not finite
        self._model.zero_grad()  # the optimizer's own would let gradients pile up in parameters that it does not have
        return StepOutcome(values, moved, stop)

    def _denominators(self, counts: Sequence[Mapping[str, int]]) -> dict[str, Tensor]:
        own: Counter[str] = Counter()
        for of_batch in counts:
            own.update(of_batch)
        added = self._add_counts({name: torch.tensor([count]) for name, count in own.items()})
        return {name: count.squeeze(0).long().clamp(min=1) for name, count in added.items()}

    def _loss(
        self, batch: Any, counts: Mapping[str, int], denominators: dict[str, Tensor], sums: dict[str, SumCount]
    ) -> Tensor:
        """This micro-batch's share of the step's loss; its sums are added to `sums`."""
        device = self._accelerator.device
        output = self._task.losses(self._model, batch.to(device))
        if set(output.losses) != set(counts):
            raise ValueError(f"task gave losses {sorted(output.losses)} but counts for {sorted(counts)}")
        for name, term in {**output.losses, **output.metrics}.items():
            if not isinstance(term, SumCount):
                raise ValueError(f"task gave {name!r} as {type(term).__name__}; expected a SumCount of sum and count")
        config, processes = self._config, self._accelerator.num_processes
        losses = {name: reported(term, config) for name, term in output.losses.items()}
        for name, term in {**losses, **{name: term.detach() for name, term in output.metrics.items()}}.items():
            sums[name] = sums[name] + term if name in sums else term
        terms = ((term, denominators[name]) for name, term in output.losses.items())
        shares = (share_of_step(*each, config, num_processes=processes) for each in terms)
        return sum(shares, start=torch.zeros((), device=device))

    def _means(self, sums: dict[str, SumCount]) -> tuple[dict[str, float | None], int]:
        """Means over all processes, None (null in the log) if nothing was counted: 0 would read as a perfect loss or as
        no hit at all; and the stop signal that any of them received."""
        # An epsilon counts as often as there are elements: a process may know a loss only from the others.
        rows = {
            name: torch.stack([term.total.double(), term.count.double(), term.count.double() * term.epsilon])
            for name, term in sums.items()
        }
        stop = self._stop_signal()
        rows[_STOP] = torch.tensor([stop, bool(stop), 0])
        added = self._add_sums(rows)
        totals = dict(zip(added, torch.stack(list(added.values())).tolist(), strict=True))
        signals, count, _ = totals.pop(_STOP)
        means = {name: total / (n + epsilons / n) if n else None for name, (total, n, epsilons) in totals.items()}
        return means, int(signals // count) if count else 0


def share_of_step(term: SumCount, denominator: Tensor, config: TrainConfig, *, num_processes: int) -> Tensor:
    """One micro-batch's share of the loss of a step; all processes' shares add up to that loss. `denominator` counts
    the elements of this loss in the whole step, in all processes."""
    if config.loss_mean == "step":
        return term.over(denominator)
    # The releases divide by the configured accumulation, for any number of micro-batches in an update.
    return term.mean / (config.accumulation * num_processes)


def reported(term: SumCount, config: TrainConfig) -> SumCount:
    """The sum and count by which a loss is reported, so that the log has the mean that was trained on."""
    detached = term.detach()
    return detached if config.loss_mean == "step" else SumCount(detached.mean, torch.ones_like(detached.count))
