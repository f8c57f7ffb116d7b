"""VL-BERT's pre-training on a dozen drawn records, in milliseconds a step, for tests of the loop in any process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from features.record import RegionRecord
from model.inputs import IGNORE_INDEX, VLBatch
from model.vlbert import VLBertForPreTraining
from model.vlbert_config import vlbert_small
from pipelines.caption_table import CaptionTable
from pipelines.pretraining.corpus import Corpus
from pipelines.pretraining.sample import PretrainSample
from pipelines.pretraining.task import DataConfig, PretrainTask
from pipelines.pretraining.vlbert_samples import VLBertSampler, VLBertSampling
from pipelines.tokenizer import load_tokenizer
from pipelines.train_config import TrainConfig
from pipelines.training import TrainResult, train

NUM_IMAGES, WIDTH, NUM_CLASSES = 10, 8, 5
WORDS = "a the red blue green dog cat ball house tree runs sits under over near two three small large old".split()
UNMASKED = frozenset({0, 3, 4, 7})  # rows of which nothing is predicted
TEXT_ONLY = frozenset({2, 5, 8})  # rows without an image, where a test wants some
DROPOUTS = ("hidden_dropout", "attention_dropout", "region_dropout")


@functools.cache
def tokenizer() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
        return load_tokenizer(str(path))


def record(number: int) -> RegionRecord:
    draw = np.random.default_rng(number)
    count = int(draw.integers(2, 6))
    corner, extent = draw.uniform(0, 200, (count, 2)), draw.uniform(20, 200, (count, 2))
    return RegionRecord(
        image_id=f"image-{number}",
        height=400,
        width=450,
        boxes=np.concatenate([corner, corner + extent], axis=1).astype(np.float32),
        features=draw.standard_normal((count, WIDTH)).astype(np.float16),
        class_ids=draw.integers(NUM_CLASSES, size=count).astype(np.uint16),
        class_scores=draw.random(count).astype(np.float32),
    )


class SomeUnmasked(VLBertSampler):
    """VL-BERT's rules, but rows of `UNMASKED` have nothing to predict."""

    text_only: frozenset[int] = frozenset()

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        sample = super().sample(corpus, row, random)
        if row in UNMASKED:
            nothing = np.full_like(sample.text_labels, IGNORE_INDEX)
            sample = dataclasses.replace(sample, text_labels=nothing, predicted=np.zeros_like(sample.predicted))
        if row in self.text_only:
            no_region: dict[str, Any] = {
                name: getattr(sample, name)[:0] for name in ("features", "boxes", "masked", "predicted")
            }
            sample = dataclasses.replace(sample, **no_region, region_targets=None, whole_image=None, text_only=True)
        elif self.text_only:
            sample = dataclasses.replace(sample, text_only=None)  # so that batches differ in the losses they have
        return sample


class SomeTextOnly(SomeUnmasked):
    """And rows of `TEXT_ONLY` have no image."""

    text_only = TEXT_ONLY


class SmallTask(PretrainTask):
    """In the float type of its model; it notes the samples of each batch in `seen`."""

    seen: list[str]

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[VLBatch]:
        dtype = next(self.model.parameters()).dtype
        for batch in super().batches(start_sample, rank=rank, num_ranks=num_ranks):
            self.seen += [digest(batch.row(row)) for row in range(batch.batch_size)]
            parts = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
            floats = {
                name: part.to(dtype)
                for name, part in parts.items()
                if isinstance(part, Tensor) and part.is_floating_point()
            }
            yield dataclasses.replace(batch, **floats)

    def evaluate(self) -> dict[str, float | None]:
        """The sum of the weights: an evaluation of no time."""
        return {"weights": float(sum(weight.detach().double().sum() for weight in self.model.parameters()))}


def digest(sample: VLBatch) -> str:
    """Of one row's name, words, what is hidden of them, and regions; padding left out."""
    text, regions = sample.text_mask[0], sample.region_mask[0]
    parts: list[Any] = [sample.sample_ids, sample.text_ids[0, text].tolist(), sample.region_boxes[0, regions].tolist()]
    parts.append(sample.masked_regions[0, regions].tolist())
    if sample.text_labels is not None:
        parts.append(sample.text_labels[0, text].tolist())
    if sample.region_target_mask is not None:
        parts.append(sample.region_target_mask[0, regions].tolist())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def make_task(
    *, batch_size: int, dropout: float = 0.0, double: bool = False, sampler: type[VLBertSampler] = SomeUnmasked
) -> SmallTask:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "coordinate_embedding_size": 8, "region_feature_size": WIDTH}
    sizes |= {"vocab_size": tokenizer().vocab_size, "num_region_labels": NUM_CLASSES + 1}
    sizes |= {"with_text_only": sampler is SomeTextOnly}
    model = VLBertForPreTraining(vlbert_small(**sizes, **dict.fromkeys(DROPOUTS, dropout)))
    draw = np.random.default_rng(7)
    store: Mapping[str, RegionRecord] = {f"image-{number}": record(number) for number in range(NUM_IMAGES)}
    captions = [(number, " ".join(draw.choice(WORDS, int(draw.integers(3, 9))))) for number in range(NUM_IMAGES)]
    rules = sampler(VLBertSampling(), tokenizer(), model.config, num_classes=NUM_CLASSES)
    corpus = Corpus(store, CaptionTable(list(store), captions))
    task = SmallTask(
        model.double() if double else model, corpus, rules, DataConfig(batch_size), pad_id=tokenizer().pad_id, seed=3
    )
    task.seen = []
    return task


def settings(**changes: Any) -> TrainConfig:
    defaults: dict[str, Any] = {"steps": 10, "learning_rate": 1e-3, "warmup_steps": 2, "device": "cpu", "log_every": 99}
    return TrainConfig(**(defaults | changes))


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
        description = {"kind": "small", "data": {"batch_size": self.batch_size}}
        result = train(
            task, self.config, self.folder, description=description, resume="auto", stop_at_step=self.stop_at_step
        )
        seen = self.folder.with_name(f"{self.folder.name}.seen-{os.environ.get('RANK', '0')}")
        with seen.open("a") as file:
            file.writelines(f"{each}\n" for each in task.seen)
        return result


def seen_by(folder: Path, num_ranks: int, batch_size: int) -> list[str]:
    """Digests of all samples of a run in the order in which one process would have seen them."""
    each = [folder.with_name(f"{folder.name}.seen-{rank}").read_text().split() for rank in range(num_ranks)]
    rounds: Sequence[int] = range(0, min(map(len, each)), batch_size)
    return [sample for start in rounds for rank in each for sample in rank[start : start + batch_size]]
