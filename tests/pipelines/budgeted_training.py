"""The small training of `small_pretraining`, with rows of very different lengths, under a token budget or not."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from objectives import NUM_CLASSES, WIDTH, WORDS, record, tokenizer
from small_pretraining import digest, in_floats_of

from roibeam.model.inputs import VLBatch
from roibeam.model.vlbert.config import vlbert_small
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, VLBertSampling
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler
from roibeam.pipelines.pretraining.task import BudgetedTask, PretrainTask, RowLengths
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.train_config import TrainConfig

NUM_ROWS, BUDGET = 30, 60


class InDouble(BudgetedTask):
    """With batches for a model in float64; it notes the samples of each step in `seen`, and how long batches were."""

    seen: list[list[str]]
    padded: list[int]

    def steps(self, start_sample: int, *, step_samples: int, rank: int, num_ranks: int) -> Iterator[list[VLBatch]]:
        for step in super().steps(start_sample, step_samples=step_samples, rank=rank, num_ranks=num_ranks):
            self.seen.append([digest(batch.row(row)) for batch in step for row in range(batch.batch_size)])
            self.padded += [batch.batch_size * (batch.text_ids.shape[1] + batch.region_mask.shape[1]) for batch in step]
            yield [in_floats_of(batch, torch.float64) for batch in step]


def make_task(*, batch_size: int, max_tokens: int = BUDGET, workers: int = 0) -> InDouble:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "coordinate_embedding_size": 8, "region_feature_size": WIDTH}
    sizes |= {"vocab_size": tokenizer().vocab_size, "num_region_labels": NUM_CLASSES + 1}
    sizes |= {"with_relationship_head": True, "with_pooler": True}
    sizes |= dict.fromkeys(("hidden_dropout", "attention_dropout", "region_dropout"), 0.0)
    model = VLBertForPreTraining(vlbert_small(**sizes)).double()
    draw = np.random.default_rng(7)
    store = {f"image-{number}": record(number, (1, 13)) for number in range(NUM_ROWS)}
    captions = [(number, " ".join(draw.choice(WORDS, int(draw.integers(1, 16))))) for number in range(NUM_ROWS)]
    rules = VLBertSampler(VLBertSampling(), tokenizer(), model.config, num_classes=NUM_CLASSES)
    corpus = Corpus(store, CaptionTable(list(store), captions))
    data = DataConfig(batch_size, workers, max_tokens=max_tokens)
    lengths = RowLengths(corpus, np.array([each.num_regions for each in store.values()]), tokenizer())
    task = InDouble(model, corpus, rules, data, lengths=lengths, pad_id=tokenizer().pad_id, seed=3)
    task.seen, task.padded = [], []
    return task


def whole_steps(task: PretrainTask, start: int, step_samples: int) -> Iterator[VLBatch]:
    """The same steps as one batch each."""
    for places in task._order.batches(start, batch_size=step_samples, rank=0, num_ranks=1):
        yield task._batch(places)


@dataclasses.dataclass(frozen=True)
class BudgetedTraining:
    """A run, to be called in a process of its own; what it saw is left in `folder`.seen-<rank>, a step a line."""

    folder: Path
    steps: int
    accumulation: int
    batch_size: int
    stop_at_step: int | None = None

    def __call__(self) -> None:
        task = make_task(batch_size=self.batch_size)
        config = TrainConfig(steps=self.steps, learning_rate=1e-3, device="cpu", accumulation=self.accumulation)
        description = {"data": {"batch_size": self.batch_size, "max_tokens": BUDGET}}
        train(task, config, self.folder, description=description, resume="auto", stop_at_step=self.stop_at_step)
        seen = self.folder.with_name(f"{self.folder.name}.seen-{os.environ.get('RANK', '0')}")
        with seen.open("a") as file:
            file.writelines(" ".join(step) + "\n" for step in task.seen)
