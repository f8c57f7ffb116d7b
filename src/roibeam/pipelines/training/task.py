"""Training tasks: protocols of the loop, and their optional parts.

`AlternatingTask` is several tasks that one model learns in turn, as ViLBERT learns both problems of VCR. `rehearse`
runs the largest batch first, so that a run that does not fit into memory fails in its first minute: a forward and a
backward pass, whose effect is undone; parameters, random states and log are those of a run without it.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from torch import nn

from roibeam.messages import byte_count, plural
from roibeam.model.common.losses import PreTrainingOutput, SumCount
from roibeam.pipelines.common.console.progress import duration
from roibeam.pipelines.training.parameter_groups import ParameterGroup


class LossOutput(Protocol):
    """Output of one micro-batch: the means of `losses` add up to the total loss, those of `metrics` are only reported.

    Each by name, a sum over the micro-batch as a scalar with a gradient graph (float), and the number of its elements.
    """

    @property
    def losses(self) -> Mapping[str, SumCount]: ...

    @property
    def metrics(self) -> Mapping[str, SumCount]: ...


class TrainTask(Protocol):
    """Members of a task that the loop needs; docs/train.md has one of forty lines.

    Batches are the task's own type with `to(device)`, which gives the batch on a torch.device.

    Samples are numbered without end: sample n is element n % num_samples of epoch n // num_samples. Everything random
    about a sample follows from its number, so the position in the data is one integer, and a run may go on with
    another batch size or number of processes.
    """

    @property
    def model(self) -> nn.Module:
        """The trained model, on the CPU before the run starts; its state_dict is saved in checkpoints."""

    @property
    def batch_size(self) -> int:
        """Samples per micro-batch and process."""

    @property
    def num_samples(self) -> int:
        """Samples in one epoch."""

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[Any]:
        """Endless micro-batches from sample `start_sample` on.

        Each round takes batch_size * num_ranks samples; rank r gets the r-th batch_size of them. Tensors are on the
        CPU. The same arguments give the same batches.
        """

    def counts(self, batch: Any) -> Mapping[str, int]:
        """Elements each loss is averaged over, a whole number by its name, known before the model runs: the names of
        `losses`, each in every batch, perhaps with 0."""

    def losses(self, model: nn.Module, batch: Any) -> LossOutput:
        """Sums over one micro-batch; `model` is `self.model`, perhaps wrapped for several devices, and must be called
        as a whole (`model(...)`), so that gradients of all processes meet. The batch is on the model's device."""

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        """Each a dictionary with "params", a list, and perhaps "learning_rate_scale" and "weight_decay"."""

    def sample_ids(self, batch: Any) -> Sequence[str]:
        """Names of the samples for an error message, as many as the batch has."""

    def model_config(self) -> Mapping[str, Any]:
        """Arguments to build the model again, as JSON values; written beside its weights."""


@runtime_checkable
class EvaluatedTask(Protocol):
    """Optional evaluation of a `TrainTask`."""

    def evaluate(self) -> Mapping[str, float | None]:
        """Quality of `model` as numbers by name; None for those that could not be measured.

        Every process calls it at the same step and must come to the same names; the main process's values are kept. It
        may draw from torch's random state, which is put back.
        """


@runtime_checkable
class PlannedTask(Protocol):
    """A `TrainTask` that plans the micro-batches of its steps, and their samples."""

    def steps(self, start_sample: int, *, step_samples: int, rank: int, num_ranks: int) -> Iterator[Sequence[Any]]:
        """Endless steps from sample `start_sample` on: the micro-batches of one process, as many as in any other. All
        processes together have the next `step_samples` samples in each."""


def steps_of(
    task: TrainTask, start_sample: int, *, accumulation: int, rank: int, num_ranks: int
) -> Iterator[Sequence[Any]]:
    """Yields the micro-batches of each step in one process, without end."""
    if isinstance(task, PlannedTask):
        step_samples = task.batch_size * accumulation * num_ranks
        yield from task.steps(start_sample, step_samples=step_samples, rank=rank, num_ranks=num_ranks)
    stream = task.batches(start_sample, rank=rank, num_ranks=num_ranks)
    while True:
        yield [next(stream) for _ in range(accumulation)]


logger = logging.getLogger(__name__)

_STATE_TENSORS = 2  # that Adam keeps for each parameter, from its first step on


@dataclass(frozen=True, eq=False)
class WorstBatch:
    """The largest batch, by the method `worst_batch` of a `TrainTask` that knows it.

    Attributes:
        batch: of the task's own type.
        remedies: settings of the task that need less memory.
    """

    batch: Any
    what: str
    remedies: str


def rehearse(
    task: Any, model: nn.Module, optimizer: torch.optim.Optimizer, accelerator: Accelerator, *, accumulation: int
) -> None:
    """Runs the worst batch of a task that has one; ValueError with the remedy if memory does not suffice.

    Args:
        accumulation: micro-batches of a step: with several, gradients are held while the next one runs.
    """
    if not hasattr(task, "worst_batch"):
        return
    worst: WorstBatch = task.worst_batch()
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
                with accelerator.autocast():
                    losses = task.losses(model, worst.batch.to(device)).losses.values()
                    loss = sum((term.mean for term in losses), start=torch.zeros((), device=device))
                accelerator.backward(loss)
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


TIMED_STEPS = 3


@dataclass(frozen=True)
class DryRun:
    """Time and memory of a run, by its first steps.

    Attributes:
        samples: of a step, in all processes.
        epoch: samples in an epoch.
        memory: most bytes until then: of tensors on CUDA, else of the process.
        seconds: of `TIMED_STEPS` steps, reading included.
    """

    steps: int
    samples: int
    epoch: int
    parameters: int
    device: str
    memory: int
    seconds: tuple[float, ...]

    def text(self) -> str:
        """For the terminal."""
        typical = statistics.median(self.seconds)
        each = ", ".join(f"{one:.3g}" for one in self.seconds)
        where = "tensors" if self.device.startswith("cuda") else "the process"
        return "\n".join((
            f"dry run: nothing written; {len(self.seconds)} steps timed on {self.device}",
            f"  data       {plural(self.epoch, 'sample')} in an epoch",
            f"  steps      {self.steps:,} of {plural(self.samples, 'sample')}: "
            f"{self.steps * self.samples / self.epoch:.3g} epochs",
            f"  model      {plural(self.parameters, 'parameter')}",
            f"  memory     {byte_count(self.memory)} of {where} at most",
            f"  time       {typical:.3g} s a step ({each}): {duration(self.steps * typical)} without evaluations",
        ))  # fmt: skip


class DryRunDone(Exception):
    """The end of a dry run."""

    def __init__(self, found: DryRun) -> None:
        super().__init__("dry run")
        self.found = found


UPDATES = ("step", "task")


@dataclass(frozen=True, eq=False)
class PartBatch:
    """A micro-batch of one of the tasks.

    Attributes:
        batch: of the task's own type.
    """

    task: str
    batch: Any

    def to(self, device: torch.device | str) -> PartBatch:
        return PartBatch(self.task, self.batch.to(device))


class AlternatingTask:
    """Tasks that one model learns in turn, micro-batch by micro-batch; each has its own data and its own position.

    Args:
        tasks: by name, over one model and with one batch size. Losses are named "<task>/<loss>".
        loss_scales: by name, factors of a task's losses; 1 by default (the releases of ViLBERT: the task's rate
            over the smallest of all).
        updates: "step": one update a step, of `accumulation` micro-batches of each task. "task", as both releases of
            ViLBERT do: in the last round each task makes an update of its own. The first one's has the gradients of all
            micro-batches before, the others' only that of their last one. `TrainConfig.steps` then counts those
            updates: as many as there are tasks for each `accumulation` rounds.
    Raises:
        ValueError: for no task, unlike batch sizes, a scale without a task, or another kind of updates.
    """

    def __init__(
        self, tasks: Mapping[str, TrainTask], *, loss_scales: Mapping[str, float] | None = None, updates: str = "step"
    ) -> None:
        self._tasks, self._scales, self._updates = dict(tasks), dict(loss_scales or {}), updates
        sizes = {task.batch_size for task in self._tasks.values()}
        if len(sizes) != 1:
            raise ValueError(f"tasks that alternate need one batch size, got {sorted(sizes)}")
        if strangers := sorted(self._scales.keys() - self._tasks.keys()):
            raise ValueError(f"a loss scale for {strangers[0]!r}; the tasks are {', '.join(self._tasks)}")
        if updates not in UPDATES:
            raise ValueError(f"updates must be {' or '.join(UPDATES)}, got {updates!r}")
        self._first = next(iter(self._tasks.values()))
        self.model = self._first.model
        # Of one micro-batch; of one of every task, if they make one update together.
        self.batch_size = self._first.batch_size * (len(self._tasks) if updates == "step" else 1)
        self.num_samples = sum(task.num_samples for task in self._tasks.values())

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[PartBatch]:
        """One micro-batch of each task in turn."""
        rounds = start_sample // (self._first.batch_size * len(self._tasks) * num_ranks)
        streams = self._streams(rounds, rank, num_ranks)
        while True:
            yield from (PartBatch(name, next(stream)) for name, stream in streams.items())

    def steps(self, start_sample: int, *, step_samples: int, rank: int, num_ranks: int) -> Iterator[list[PartBatch]]:
        """See `PlannedTask.steps`."""
        accumulation = step_samples // (self.batch_size * num_ranks)
        done, skipped, count = start_sample // step_samples, 0, len(self._tasks)
        if self._updates == "task":
            done, skipped = divmod(done, count)
        streams = self._streams(done * accumulation, rank, num_ranks)
        while True:
            rounds = [PartBatch(name, next(s)) for _ in range(accumulation) for name, s in streams.items()]
            first = len(rounds) if self._updates == "step" else len(rounds) - count + 1
            updates = [rounds[:first], *([last] for last in rounds[first:])]
            yield from updates[skipped:]
            skipped = 0

    def _streams(self, rounds: int, rank: int, num_ranks: int) -> dict[str, Iterator[Any]]:
        return {
            name: task.batches(rounds * task.batch_size * num_ranks, rank=rank, num_ranks=num_ranks)
            for name, task in self._tasks.items()
        }

    def counts(self, batch: PartBatch) -> dict[str, int]:
        of_task = self._tasks[batch.task].counts(batch.batch)
        return {f"{batch.task}/{name}": count for name, count in of_task.items()}

    def losses(self, model: nn.Module, batch: PartBatch) -> LossOutput:
        output, scale = self._tasks[batch.task].losses(model, batch.batch), self._scales.get(batch.task, 1.0)
        return PreTrainingOutput(
            {f"{batch.task}/{n}": SumCount(t.total * scale, t.count, t.epsilon) for n, t in output.losses.items()},
            {f"{batch.task}/{name}": term for name, term in output.metrics.items()},
        )

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        return self._first.parameter_groups()

    def sample_ids(self, batch: PartBatch) -> Sequence[str]:
        return self._tasks[batch.task].sample_ids(batch.batch)

    def model_config(self) -> Mapping[str, Any]:
        return self._first.model_config()
