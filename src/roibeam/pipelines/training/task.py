"""What the training loop needs to know about what is trained, and what a task may offer beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from roibeam.model.common.losses import SumCount
from roibeam.pipelines.training.parameter_groups import ParameterGroup


class LossOutput(Protocol):
    """What one micro-batch gave: the means of `losses` add up to the total loss, those of `metrics` are only reported.

    Each by name, a sum over the micro-batch as a scalar with a gradient graph (float), and the number of its elements.
    """

    @property
    def losses(self) -> Mapping[str, SumCount]: ...

    @property
    def metrics(self) -> Mapping[str, SumCount]: ...


class TrainTask(Protocol):
    """What the loop needs to know about a task; docs/train.md has one of forty lines.

    Batches are the task's own type with `to(device)`, which gives the batch on a torch.device.

    Samples are numbered without end: sample n is element n % num_samples of epoch n // num_samples. Everything random
    about a sample follows from its number, so the position in the data is one integer, and a run may go on with
    another batch size or number of processes.
    """

    @property
    def model(self) -> nn.Module:
        """What is trained, on the CPU before the run begins; its state_dict is what checkpoints hold."""

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
        """Elements each loss is averaged over, a whole number by its name, known before the model runs: the names that
        `losses` has, each in every batch, perhaps with 0."""

    def losses(self, model: nn.Module, batch: Any) -> LossOutput:
        """Sums over one micro-batch; `model` is `self.model`, perhaps wrapped for several devices, and must be called
        as a whole (`model(...)`), so that gradients of all processes meet. The batch is on the model's device."""

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        """Each a dictionary with "params", a list, and perhaps "learning_rate_scale" and "weight_decay"."""

    def sample_ids(self, batch: Any) -> Sequence[str]:
        """Names of the samples for an error message, as many as the batch has."""

    def model_config(self) -> Mapping[str, Any]:
        """What is needed to build the model again, of what JSON holds; written beside its weights."""


@runtime_checkable
class EvaluatedTask(Protocol):
    """What a `TrainTask` may offer beside."""

    def evaluate(self) -> Mapping[str, float | None]:
        """Numbers that tell how good `model` is now; None where there was nothing to measure.

        Every process calls it at the same step and must come to the same names; the main process's values are kept. It
        may draw from torch's random state, which is put back.
        """


@runtime_checkable
class PlannedTask(Protocol):
    """A `TrainTask` that says itself which samples of a step share a micro-batch, and how many micro-batches it has."""

    def steps(self, start_sample: int, *, step_samples: int, rank: int, num_ranks: int) -> Iterator[Sequence[Any]]:
        """Endless steps from sample `start_sample` on: of each the micro-batches of one process, as many as any other
        has. All processes together have the next `step_samples` samples in each."""


def steps_of(
    task: TrainTask, start_sample: int, *, accumulation: int, rank: int, num_ranks: int
) -> Iterator[Sequence[Any]]:
    """The micro-batches of each step in one process, without end."""
    if isinstance(task, PlannedTask):
        step_samples = task.batch_size * accumulation * num_ranks
        yield from task.steps(start_sample, step_samples=step_samples, rank=rank, num_ranks=num_ranks)
    stream = task.batches(start_sample, rank=rank, num_ranks=num_ranks)
    while True:
        yield [next(stream) for _ in range(accumulation)]
