"""Pre-training of any objective on ten drawn rows, for tests of the loop in any process."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from objectives import NUM_CAPTIONS, OBJECTIVES, small_corpus, small_lines, small_model, small_rules, tokenizer
from torch import Tensor

from roibeam.model.inputs import VLBatch
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.task import PretrainTask, RowsTask, TextTask
from roibeam.pipelines.training.hooks import TrainResult
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.task import TrainTask
from roibeam.pipelines.training.train_config import TrainConfig

AnyBatch = TypeVar("AnyBatch", bound=Any)
SAMPLES = 4  # of a step of one row each: one for each of four processes


class SmallTask(RowsTask):
    """In the float type of its model; it notes the samples of each batch in `seen`."""

    seen: list[str]

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[VLBatch]:
        dtype = next(self.model.parameters()).dtype
        for batch in super().batches(start_sample, rank=rank, num_ranks=num_ranks):
            self.seen += [digest(batch.row(row)) for row in range(batch.batch_size)]
            yield in_floats_of(batch, dtype)

    def evaluate(self) -> dict[str, float | None]:
        """The sum of the weights: an evaluation of no time."""
        return {"weights": float(sum(weight.detach().double().sum() for weight in self.model.parameters()))}


class SmallPretrainTask(SmallTask, PretrainTask):
    pass


class SmallTextTask(SmallTask, TextTask):
    pass


def in_floats_of(batch: AnyBatch, dtype: torch.dtype) -> AnyBatch:
    """A dataclass with all of its floating point tensors in one type."""
    parts = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    floats = {name: each for name, each in parts.items() if isinstance(each, Tensor) and each.is_floating_point()}
    return dataclasses.replace(batch, **{name: each.to(dtype) for name, each in floats.items()})


def digest(sample: VLBatch) -> str:
    """Of all that is drawn for one row: its words, what is predicted and hidden, its pair, its targets; padding left
    out."""
    text, regions = sample.text_mask[0], sample.region_mask[0]
    parts: list[Any] = [sample.sample_ids, sample.draw_seeds, sample.text_ids[0, text].tolist()]
    parts += [sample.region_boxes[0, regions].tolist()]
    parts.append(None if sample.match_labels is None else sample.match_labels.tolist())
    parts.append(sample.masked_regions[0, regions].tolist())
    if sample.text_labels is not None:
        parts.append(sample.text_labels[0, text].tolist())
    targets = sample.region_targets
    if targets is not None and sample.region_target_mask is not None:
        parts.append(sample.region_target_mask[0, regions].tolist())
        parts.append((targets if targets.ndim == 2 else targets[0, regions]).tolist())
    if sample.whole_image_features is not None and regions.any():
        parts.append(sample.whole_image_features.tolist())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def make_task(
    objective: str = "vlbert", *, batch_size: int, dropout: float = 0.0, double: bool = False, workers: int = 0
) -> SmallTask:
    torch.manual_seed(0)
    model, chosen = small_model(objective, dropout=dropout), OBJECTIVES[objective]
    model = model.double() if double else model
    rules = small_rules(objective, model.config)
    data = DataConfig(batch_size, workers=workers, texts_per_caption=chosen.texts or 1.0)
    numbers = {"pad_id": tokenizer().pad_id, "seed": 3}
    task: SmallTask
    if chosen.text_alone:
        task = SmallTextTask(model, small_lines(NUM_CAPTIONS), rules, data, **numbers)
    else:
        lines = small_lines() if chosen.texts else None
        task = SmallPretrainTask(model, small_corpus(chosen.task), rules, data, **numbers, lines=lines)
    task.seen = []
    return task


def rows_of_steps(
    objective: str, *, num_ranks: int = 1, accumulation: int = 1, workers: int = 0, steps: int
) -> list[list[str]]:
    """Digests of the rows of each step, sorted: all processes and micro-batches together."""
    size = SAMPLES * OBJECTIVES[objective].group // num_ranks // accumulation
    task = make_task(objective, batch_size=size, workers=workers)
    streams = [task.batches(0, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    found = []
    for _ in range(steps):
        task.seen.clear()
        for stream in streams * accumulation:
            next(stream)
        found.append(sorted(task.seen))
    return found


def settings(**changes: Any) -> TrainConfig:
    defaults: dict[str, Any] = {"steps": 10, "learning_rate": 1e-3, "warmup_steps": 2, "device": "cpu"}
    return TrainConfig(**(defaults | changes))


def train_small(
    task: TrainTask, config: TrainConfig, folder: Path, *, batch_size: int, stop_at_step: int | None = None
) -> TrainResult:
    """A run that goes on where there is one."""
    description = {"kind": "small", "data": {"batch_size": batch_size}}
    return train(task, config, folder, description=description, resume="auto", stop_at_step=stop_at_step)


@dataclasses.dataclass(frozen=True)
class Training:
    """A run, to be called in a process of its own; what it saw is left in `folder`.seen-<rank>."""

    folder: Path
    config: TrainConfig
    batch_size: int
    task: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stop_at_step: int | None = None

    def __call__(self) -> TrainResult:
        import os

        task = make_task(batch_size=self.batch_size, **self.task)
        place = {"batch_size": self.batch_size, "stop_at_step": self.stop_at_step}
        result = train_small(task, self.config, self.folder, **place)
        seen = self.folder.with_name(f"{self.folder.name}.seen-{os.environ.get('RANK', '0')}")
        with seen.open("a") as file:
            file.writelines(f"{each}\n" for each in task.seen)
        return result


def seen_by(folder: Path, num_ranks: int, batch_size: int) -> list[str]:
    """Digests of all samples of a run in the order in which one process would have seen them."""
    each = [folder.with_name(f"{folder.name}.seen-{rank}").read_text().split() for rank in range(num_ranks)]
    rounds: Sequence[int] = range(0, min(map(len, each)), batch_size)
    return [sample for start in rounds for rank in each for sample in rank[start : start + batch_size]]
