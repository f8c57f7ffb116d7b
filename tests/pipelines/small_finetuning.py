"""Fine-tuning of any system on four small groups, for tests of the loop in any process."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from small_pretraining import in_floats_of, settings, train_small
from task_groups import ASKED, LOSS, batches, groups, small_network

from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.rows import CHOICE, TaskGroup
from roibeam.pipelines.finetuning.run.finetune_settings import FinetuneData
from roibeam.pipelines.finetuning.run.group_batches import TaskBatch
from roibeam.pipelines.finetuning.run.group_task import GroupTask
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.task import DownstreamTask, Judge, Prediction, TaskSplit
from roibeam.pipelines.training.hooks import TrainResult
from roibeam.pipelines.training.loop import make_accelerator
from roibeam.pipelines.training.processes import shared_out
from roibeam.pipelines.training.train_config import TrainConfig


def judge_by_first_choice(said_of: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Mapping[str, Measure]:
    best = [float(each.scores.argmax()) for each in predictions]
    return {"first choice": Measure("first choice", best, [group.images[0] for group in said_of])}


def judge_each_by_itself(said_of: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Mapping[str, Measure]:
    """To the last bit: a measure for each group, of all of its scores."""
    return {
        group.id: Measure(group.id, [float(each.scores @ range(1, len(each.scores) + 1))], [group.images[0]])
        for group, each in zip(said_of, predictions, strict=True)
    }


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
    workers: int = 0, mirrored: Callable[[TaskGroup], TaskGroup] | None = None, judge: Judge = judge_by_first_choice,
) -> SmallGroupTask:  # fmt: skip
    network = small_network(system, kind, double=double, dropout=dropout, head=head)
    form = ASKED[kind].form
    task = DownstreamTask(
        name="small", form=form, loss=LOSS[kind], read=lambda split: TaskSplit(groups(kind)), train="train",
        validation=None, judge=judge, answers=lambda groups, said: iter(()),
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
        place = {"batch_size": self.batch_size, "stop_at_step": self.stop_at_step}
        return train_small(task, self.config, self.folder, **place)


@dataclass(frozen=True)
class SmallEvaluation:
    """An evaluation of a new model, told by each process in a file of its own; and an error in one of them, by all."""

    folder: Path

    def __call__(self) -> None:
        rank = make_accelerator(settings(steps=4)).process_index
        torch.manual_seed(0)
        task = make_task("vlbert", CHOICE, batch_size=3, judge=judge_each_by_itself)
        broken = ""
        try:
            shared_out(range(5), 2, _broken_at_two)
        except ValueError as error:
            broken = str(error)
        told = {"values": task.evaluate(), "order": shared_out(range(5), 2, list), "broken": broken}
        (self.folder / f"told-{rank}.json").write_text(json.dumps(told))


def _broken_at_two(items: Sequence[int]) -> list[int]:
    if 2 in items:
        raise ValueError("item 2 is broken")
    return list(items)
