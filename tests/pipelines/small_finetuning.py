"""Fine-tuning of any system on four small groups, for tests of the loop in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from small_pretraining import in_floats_of
from task_groups import ASKED, LOSS, batches, groups, small_network

from roibeam.pipelines.finetuning.frame.finetune_settings import FinetuneData
from roibeam.pipelines.finetuning.frame.group_task import GroupTask
from roibeam.pipelines.finetuning.frame.losses import loss_named
from roibeam.pipelines.finetuning.frame.task_batch import TaskBatch
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction, TaskSplit
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.run_in_work import TrainResult
from roibeam.pipelines.training.train_config import TrainConfig


def judge_by_first_choice(said_of: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Mapping[str, Measure]:
    best = [float(each.scores.argmax()) for each in predictions]
    return {"first choice": Measure("first choice", best, [group.images[0] for group in said_of])}


class SmallGroupTask(GroupTask):
    """In the float type of its model."""

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[TaskBatch]:
        dtype = next(self.model.parameters()).dtype
        for batch in super().batches(start_sample, rank=rank, num_ranks=num_ranks):
            targets = batch.targets
            if targets is not None and targets.is_floating_point():
                targets = targets.to(dtype)
            yield replace(batch, inputs=in_floats_of(batch.inputs, dtype), targets=targets)


def make_task(
    system: str, kind: str, *, batch_size: int, double: bool = False, dropout: float = 0.0, head: str = "ours",
    workers: int = 0, mirrored: Callable[[TaskGroup], TaskGroup] | None = None,
) -> SmallGroupTask:  # fmt: skip
    network = small_network(system, kind, double=double, dropout=dropout, head=head)
    form = ASKED[kind].form
    task = DownstreamTask(
        name="small", form=form, loss=LOSS[kind], read=lambda split: TaskSplit(groups(kind)), train="train",
        validation=None, judge=judge_by_first_choice, answers=lambda groups, said: iter(()),
        write=lambda path, entries: None, labels=tuple("abc"), mirrored=mirrored, mirrors=True,
    )  # fmt: skip
    made = batches(network, system, kind)
    data = FinetuneData(batch_size=batch_size, workers=workers)
    return SmallGroupTask(
        network, made, task, ASKED[kind], loss_named(form, LOSS[kind]), groups(kind),
        [] if double else groups(kind), data, seed=3,
    )  # fmt: skip


@dataclass(frozen=True)
class SmallFinetuning:
    """A run, to be called in a process of its own."""

    folder: Path
    config: TrainConfig
    batch_size: int
    system: str = "vlbert"
    kind: str = "choice"
    double: bool = False
    dropout: float = 0.0
    stop_at_step: int | None = None
    workers: int = 0

    def __call__(self) -> TrainResult:
        task = make_task(
            self.system, self.kind, batch_size=self.batch_size, double=self.double, dropout=self.dropout,
            workers=self.workers,
        )  # fmt: skip
        torch.manual_seed(0)
        description: dict[str, Any] = {"kind": "small", "data": {"batch_size": self.batch_size}}
        return train(
            task, self.config, self.folder, description=description, resume="auto", stop_at_step=self.stop_at_step
        )
