"""Several tasks that one model learns in turn, as ViLBERT learns both problems of VCR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from roibeam.model.common.losses import SumCount
from roibeam.pipelines.training.parameter_groups import ParameterGroup
from roibeam.pipelines.training.task import LossOutput, TrainTask

UPDATES = ("step", "task")


@dataclass(frozen=True, eq=False)
class PartBatch:
    """A micro-batch of one of the tasks.

    Attributes:
        task: its name.
        batch: of the task's own type.
    """

    task: str
    batch: Any

    def to(self, device: torch.device | str) -> PartBatch:
        return PartBatch(self.task, self.batch.to(device))


@dataclass(frozen=True, eq=False)
class _Losses:
    losses: Mapping[str, SumCount]
    metrics: Mapping[str, SumCount]


class AlternatingTask:
    """Tasks that one model learns in turn, micro-batch by micro-batch; each has its own data and its own position.

    Args:
        tasks: by name, over one model and with one batch size. Losses are named "<task>/<loss>".
        loss_scales: by name, what a task's losses are multiplied by; 1 where there is none (the releases of ViLBERT:
            the task's rate over the smallest of all).
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

    @property
    def model(self) -> nn.Module:
        return self._first.model

    @property
    def batch_size(self) -> int:
        """Samples of one micro-batch; of one of every task, where they make one update together."""
        return self._first.batch_size * (len(self._tasks) if self._updates == "step" else 1)

    @property
    def num_samples(self) -> int:
        return sum(task.num_samples for task in self._tasks.values())

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[PartBatch]:
        """One micro-batch of each task in turn."""
        streams = self._streams(self._rounds_before(start_sample, num_ranks), rank, num_ranks)
        while True:
            yield from (PartBatch(name, next(stream)) for name, stream in streams.items())

    def steps(self, start_sample: int, *, step_samples: int, rank: int, num_ranks: int) -> Iterator[list[PartBatch]]:
        """As `PlannedTask.steps`."""
        accumulation = step_samples // (self.batch_size * num_ranks)
        done, count = start_sample // step_samples, len(self._tasks)
        if self._updates == "task":
            done, skipped = done // count, done % count
        else:
            skipped = 0
        streams = self._streams(done * accumulation, rank, num_ranks)
        while True:
            rounds = [PartBatch(name, next(s)) for _ in range(accumulation) for name, s in streams.items()]
            first = len(rounds) if self._updates == "step" else len(rounds) - count + 1
            updates = [rounds[:first], *([last] for last in rounds[first:])]
            yield from updates[skipped:]
            skipped = 0

    def _rounds_before(self, start_sample: int, num_ranks: int) -> int:
        return start_sample // (self._first.batch_size * len(self._tasks) * num_ranks)

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
        return _Losses(
            {f"{batch.task}/{n}": SumCount(t.total * scale, t.count, t.epsilon) for n, t in output.losses.items()},
            {f"{batch.task}/{name}": term for name, term in output.metrics.items()},
        )

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        """Those of the first task."""
        return self._first.parameter_groups()

    def sample_ids(self, batch: PartBatch) -> Sequence[str]:
        return self._tasks[batch.task].sample_ids(batch.batch)

    def model_config(self) -> Mapping[str, Any]:
        return self._first.model_config()
