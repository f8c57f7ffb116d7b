"""Pre-training in micro-batches of alike lengths that keep a token budget: the same steps as without, padded less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from roibeam.model.inputs import VLBatch
from roibeam.pipelines.data.batches.batch_workers import batches_ahead
from roibeam.pipelines.data.captioned.corpus import Corpus
from roibeam.pipelines.pretraining.samples.data_config import DataConfig
from roibeam.pipelines.pretraining.samples.sampler import Sampler
from roibeam.pipelines.pretraining.task import EVALUATION_EPOCH, MASKS, PretrainTask
from roibeam.pipelines.pretraining.token_budget import RowLengths, plan_step

_LEAST_PIECES = 3  # first and last special token, and one between

_Place = tuple[int, int]  # epoch and row


class _Part(NamedTuple):
    """A micro-batch, or what it is made of, and whether it is the last of its step."""

    of: Any
    ends_step: bool


class BudgetedTask(PretrainTask):
    """A `PretrainTask` that shares the captions of each step out by itself: a `PlannedTask`.

    The captions of a step are the same ones as without a budget, and so are their masks and partners; every loss is a
    mean over the step. So what is trained is the same, but for the last digits. A loss that draws among rows must do so
    within one row (contrastive: negative_rows=1), since a micro-batch has any number of them. Lengths are looked up by
    what is drawn for a sample before its masks: each process plans the whole step, and reads the records of its share.

    Args:
        lengths: of the corpus's captions and records.
        others: as of `PretrainTask`; `config.max_tokens` is the budget.
    Raises:
        ValueError: as `PretrainTask`; when a record's regions alone are more than the budget.
    """

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        sampler: Sampler,
        config: DataConfig,
        *,
        lengths: RowLengths,
        **others: Any,
    ) -> None:
        super().__init__(model, corpus, sampler, config, **others)
        self._lengths = lengths
        sizes = sampler.sizes(corpus, 0, _Shortest(lengths.most_regions), np.random.default_rng(0))
        least = len(sizes) * max(pieces + regions for pieces, regions in sizes)
        if least > config.max_tokens:
            raise ValueError(
                f"DataConfig: max_tokens {config.max_tokens} is less than one caption with its image may need, "
                f"{lengths.most_regions} regions and its words; give at least {least}, better some times as many"
            )

    def steps(self, start_sample: int, *, step_samples: int, rank: int, num_ranks: int) -> Iterator[list[VLBatch]]:
        """See `PlannedTask`."""

        def parts() -> Iterator[_Part]:
            for places in self._order.batches(start_sample, batch_size=step_samples, rank=0, num_ranks=1):
                share = self._planned(places, num_ranks)[rank]
                yield from (_Part(part, at == len(share) - 1) for at, part in enumerate(share))

        workers = self._config.workers
        made = batches_ahead(parts, self._made, workers=workers) if workers else map(self._made, parts())
        step = []
        for batch, ends_step in made:
            step.append(batch)
            if ends_step:
                yield step
                step = []

    def evaluation_batches(self, max_samples: int) -> Iterator[VLBatch]:
        places = [(EVALUATION_EPOCH, row) for row in self._corpus.first_rows(max_samples)]
        yield from map(self._batch, self._planned(places, 1)[0])

    def _made(self, part: _Part) -> _Part:
        return part._replace(of=self._batch(part.of))

    def _planned(self, places: Sequence[_Place], num_ranks: int) -> list[list[list[_Place]]]:
        """Of each process the micro-batches of a step."""
        sizes = np.array([self._size(epoch, row) for epoch, row in places], np.int64)
        config = self._config
        shares = plan_step(sizes, max_tokens=config.max_tokens, max_captions=config.batch_size, processes=num_ranks)
        return [[[places[number] for number in batch] for batch in share] for share in shares]

    def _size(self, epoch: int, row: int) -> tuple[int, int, int]:
        """Rows that a caption brings into a batch, and the most pieces and regions of one."""
        number = self._number(epoch, row)
        sizes = self._sampler.sizes(self._corpus, row, self._lengths, np.random.default_rng([MASKS, *number]))
        if self._texts is not None:
            sizes += self._texts.sizes(*number[1:])
        return len(sizes), max(pieces for pieces, _ in sizes), max(regions for _, regions in sizes)


class _Shortest(NamedTuple):
    """Lengths of a corpus whose every row has the shortest caption and the most regions."""

    most_regions: int

    def pieces(self, row: int) -> int:
        return _LEAST_PIECES

    def regions(self, row: int) -> int:
        return self.most_regions
