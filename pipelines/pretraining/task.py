"""Pre-training as a task of the one loop: any of the five models, on captions and stored records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from model.inputs import VLBatch
from model.losses import PreTrainingOutput, SumCount
from model.pretraining import PreTrainingModel
from pipelines.parameter_groups import ParameterGroup
from pipelines.pretraining.corpus import Corpus
from pipelines.pretraining.sample import collate
from pipelines.pretraining.sampler import Sampler
from pipelines.sample_order import SampleOrder

EVALUATION_EPOCH = 2**31  # training never comes to this epoch, so its masks are new to the model
_ORDER, _MASKS = 1, 2  # first number of a seed: keeps the random streams of one run apart


@dataclass(frozen=True)
class DataConfig:
    """How samples become batches, whatever the system.

    Attributes:
        batch_size: captions per micro-batch and process.
        fixed_masks: every epoch, and evaluation, draws the masks of epoch 0: for checking that a model can over-fit.
    """

    batch_size: int = 64
    fixed_masks: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"DataConfig: batch_size must be at least 1, got {self.batch_size}")


class PretrainTask:
    """The objectives of a model on captioned records: a `TrainTask`.

    Args:
        model: one of the five with its pre-training heads (`PreTrainingModel`).
        sampler: the rules of its system.
        pad_id: the tokenizer's padding piece.
        seed: of sample order, masks and negatives. They follow from it and the number of a sample alone.
    Raises:
        ValueError: when the first record does not fit the model.
    """

    def __init__(
        self, model: nn.Module, corpus: Corpus, sampler: Sampler, config: DataConfig, *, pad_id: int, seed: int
    ) -> None:
        self._model = model
        self._corpus = corpus
        self._sampler = sampler
        self._config = config
        self._pad_id = pad_id
        self._seed = seed
        self._order = SampleOrder(len(corpus), (_ORDER, seed))
        sampler.check(corpus.record(0))

    @property
    def model(self) -> nn.Module:
        return self._model

    @property
    def batch_size(self) -> int:
        return self._config.batch_size

    @property
    def num_samples(self) -> int:
        return len(self._corpus)

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[VLBatch]:
        places = self._order.batches(start_sample, batch_size=self.batch_size, rank=rank, num_ranks=num_ranks)
        return map(self._batch, places)

    def counts(self, batch: VLBatch) -> Mapping[str, int]:
        return cast(PreTrainingModel, self._model).loss_counts(batch)

    def losses(self, model: nn.Module, batch: VLBatch) -> PreTrainingOutput:
        return cast(PreTrainingOutput, model(batch))

    def parameter_groups(self) -> list[ParameterGroup]:
        # One group: VL-BERT's release decays biases and LayerNorms too; the others have rules of their own by name.
        return [{"params": list(self._model.parameters())}]

    def sample_ids(self, batch: VLBatch) -> Sequence[str]:
        return batch.sample_ids

    def one_by_one(self, batch: VLBatch) -> Iterator[VLBatch]:
        return map(batch.row, range(batch.batch_size))

    def evaluate(self) -> dict[str, float | None]:
        """See `evaluate`: a quick look at each of the loop's evaluations."""
        return evaluate(self)

    def model_config(self) -> dict[str, Any]:
        config = cast(PreTrainingModel, self._model).config
        return {**config.to_diff_dict(), "architectures": [type(self._model).__name__]}

    def evaluation_batches(self, max_samples: int) -> Iterator[VLBatch]:
        """The first `max_samples` captions in file order, with masks that training does not draw."""
        last = min(max_samples, self.num_samples)
        for start in range(0, last, self.batch_size):
            yield self._batch([(EVALUATION_EPOCH, row) for row in range(start, min(start + self.batch_size, last))])

    def _batch(self, chosen: Sequence[tuple[int, int]]) -> VLBatch:
        samples = []
        for epoch, row in chosen:
            random = np.random.default_rng([_MASKS, self._seed, 0 if self._config.fixed_masks else epoch, row])
            samples.append(self._sampler.sample(self._corpus, row, random))
        return collate(samples, pad_id=self._pad_id)


def evaluate(task: PretrainTask, *, max_samples: int = 256) -> dict[str, float | None]:
    """Mean losses and accuracies without dropout, on captions of the task with masks it does not train on.

    None where nothing was predicted.
    """
    model, device = task.model, next(task.model.parameters()).device
    was_training = model.training
    model.eval()
    sums: dict[str, SumCount] = {}
    with torch.no_grad():
        for batch in task.evaluation_batches(max_samples):
            output = task.losses(model, batch.to(device))
            for name, term in {**output.losses, **output.metrics}.items():
                sums[name] = sums[name] + term if name in sums else term
    model.train(was_training)
    return {name: float(term.mean) if int(term.count) else None for name, term in sums.items()}
