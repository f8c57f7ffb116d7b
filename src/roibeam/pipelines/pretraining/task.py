"""Pre-training as a task of the one loop: any of the five models, on captions and stored records, or on text alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import nn

from roibeam.model.common.losses import PreTrainingOutput
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.pretraining import PreTrainingModel, only_matched, only_row
from roibeam.pipelines.analysis.evaluation.chance import Chance
from roibeam.pipelines.analysis.evaluation.evaluation_results import figure_of
from roibeam.pipelines.analysis.evaluation.measures import ImageTerms
from roibeam.pipelines.analysis.evaluation.words_alone import HiddenWords
from roibeam.pipelines.common.statistics.bootstrap import Bootstrap
from roibeam.pipelines.common.statistics.verdict import Figure, Judged
from roibeam.pipelines.data.batches.batch_workers import batches_ahead
from roibeam.pipelines.data.batches.sample import PretrainSample, collate, in_float32
from roibeam.pipelines.data.captioned.corpus import Corpus
from roibeam.pipelines.pretraining.samples.data_config import DataConfig
from roibeam.pipelines.pretraining.samples.sampler import Sampler
from roibeam.pipelines.pretraining.samples.text_rows import TextRows, TextSampler
from roibeam.pipelines.training.parameter_groups import ParameterGroup
from roibeam.pipelines.training.sample_order import SampleOrder
from roibeam.pipelines.training.source_mixture import SourceMixture

EVALUATION_EPOCH = 2**31  # training never comes to this epoch, so its masks are new to the model
_TEXT_ONLY = "text_only"  # losses and accuracies of rows without an image begin so
_ORDER, MASKS = 1, 2  # first number of a seed: keeps the random streams of one run apart


class RowsTask(ABC):
    """What the tasks of pre-training share: batches of samples by number, and the losses of a model on them.

    Args:
        model: one of the five with its pre-training heads (`PreTrainingModel`).
        num_samples: in one epoch.
        pad_id: the tokenizer's padding piece.
        seed: of sample order, masks and negatives. They follow from it and the number of a sample alone.
        mixture: of sources, see `SampleOrder`.
        validation: of held-out captions, takes the place of its own first ones in `evaluate`.

    Attributes:
        hidden_words: that the last evaluation of it asked for; None before one.
    """

    def __init__(
        self,
        model: nn.Module,
        num_samples: int,
        config: DataConfig,
        *,
        pad_id: int,
        seed: int,
        mixture: SourceMixture | None = None,
        validation: Evaluates | None = None,
    ) -> None:
        self._model = model
        self._num_samples = num_samples
        self._config = config
        self._pad_id = pad_id
        self._seed = seed
        self._validation = validation
        self._order = SampleOrder(num_samples, (_ORDER, seed), mixture=mixture)
        self.hidden_words: HiddenWords | None = None

    @abstractmethod
    def samples(self, epoch: int, row: int) -> list[PretrainSample]:
        """What one number brings into a batch, with its masks of an epoch; rows of text alone come last."""

    def evaluation_rows(self, max_samples: int) -> Sequence[int]:
        """So many numbers of samples, or all, the first ones."""
        return range(min(max_samples, self._num_samples))

    @property
    def model(self) -> nn.Module:
        return self._model

    @property
    def batch_size(self) -> int:
        return self._config.batch_size

    @property
    def num_samples(self) -> int:
        return self._num_samples

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[VLBatch]:
        def places() -> Iterator[list[tuple[int, int]]]:
            return self._order.batches(start_sample, batch_size=self.batch_size, rank=rank, num_ranks=num_ranks)

        if not self._config.workers:
            return map(self._batch, places())
        return batches_ahead(places, self._batch, workers=self._config.workers)

    def counts(self, batch: VLBatch) -> Mapping[str, int]:
        return cast(PreTrainingModel, self._model).loss_counts(batch)

    def losses(self, model: nn.Module, batch: VLBatch) -> PreTrainingOutput:
        return cast(PreTrainingOutput, model(in_float32(batch)))

    def parameter_groups(self) -> list[ParameterGroup]:
        # One group: VL-BERT's release decays biases and LayerNorms too; the others have rules of their own by name.
        return [{"params": list(self._model.parameters())}]

    def sample_ids(self, batch: VLBatch) -> Sequence[str]:
        return batch.sample_ids

    def one_by_one(self, batch: VLBatch) -> Iterator[VLBatch]:
        return map(batch.row, range(batch.batch_size))

    def encoded(self, batch: VLBatch) -> tuple[VLBatch, VLOutput]:
        """See `HasEvaluationBatches`."""
        rows = in_float32(batch)
        return rows, cast(PreTrainingModel, self._model).encode(rows)

    def evaluate(self) -> Judged:
        """See `evaluate`: at each of the loop's evaluations."""
        return evaluate(self) if self._validation is None else self._validation.evaluate()

    def model_config(self) -> dict[str, Any]:
        config = cast(PreTrainingModel, self._model).config
        return {**config.to_diff_dict(), "architectures": [type(self._model).__name__]}

    def evaluation_batches(self, max_samples: int) -> Iterator[VLBatch]:
        """The first `max_samples` in file order, of several sources in turn, with masks that training does not draw."""
        rows = self.evaluation_rows(max_samples)
        for start in range(0, len(rows), self.batch_size):
            yield self._batch([(EVALUATION_EPOCH, row) for row in rows[start : start + self.batch_size]])

    def collate(self, samples: Sequence[PretrainSample]) -> VLBatch:
        return collate(samples, pad_id=self._pad_id)

    def _number(self, epoch: int, row: int) -> tuple[int, int, int]:
        """What everything random about a sample follows from."""
        return self._seed, 0 if self._config.fixed_masks else epoch, row

    def _batch(self, chosen: Sequence[tuple[int, int]]) -> VLBatch:
        samples = [sample for epoch, row in chosen for sample in self.samples(epoch, row)]
        return self.collate(sorted(samples, key=lambda sample: bool(sample.text_only)))


class PretrainTask(RowsTask):
    """The objectives of a model on captioned records: a `TrainTask`.

    Args:
        model, pad_id, seed, validation: as of `RowsTask`.
        sampler: the rules of its system.
        lines: a text corpus, for a sampler that is a `TextSampler`.
        weights: of the corpus's sources, see `SourceMixture`; None makes every caption of all of them as likely.
    Raises:
        ValueError: when the first record of a source, or the size of a batch, does not fit the model, or weights are
            none.
    """

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        sampler: Sampler,
        config: DataConfig,
        *,
        pad_id: int,
        seed: int,
        lines: Sequence[str] | None = None,
        weights: Sequence[float] | None = None,
        validation: Evaluates | None = None,
    ) -> None:
        mixture = None if weights is None else SourceMixture(corpus.sizes, weights)
        super().__init__(model, len(corpus), config, pad_id=pad_id, seed=seed, mixture=mixture, validation=validation)
        self._corpus = corpus
        self._sampler = sampler
        self._texts: TextRows | None = None
        if lines is not None:
            self._texts = TextRows(
                lines,
                cast(TextSampler, sampler),
                num_captions=len(corpus),
                per_caption=config.texts_per_caption,
                seed=seed,
            )
        for row in corpus.first_rows(len(corpus.sizes)):  # one of each source
            sampler.check(corpus.record(row))
        # Under a token budget micro-batches have any number of rows.
        rows_at_once = 1 if config.max_tokens else config.batch_size
        cast(PreTrainingModel, model).config.check_batch_size(rows_at_once)

    def evaluation_rows(self, max_samples: int) -> Sequence[int]:
        return self._corpus.first_rows(max_samples)

    def samples(self, epoch: int, row: int, corpus: Corpus | None = None) -> list[PretrainSample]:
        """See `RowsTask`; `row` is that of a caption.

        Args:
            corpus: a view of the task's own with other words; None for that itself.
        """
        number = self._number(epoch, row)
        random = np.random.default_rng([MASKS, *number])
        sample = self._sampler.sample(corpus or self._corpus, row, random)
        rows = [
            replace(each, draw_seed=int(random.integers(2**63))) for each in (sample, sample.twin) if each is not None
        ]
        return rows if self._texts is None else [*rows, *self._texts.samples(*number[1:])]


class TextTask(RowsTask):
    """A model on rows of text alone, without any image: a `TrainTask`. Each line of the corpus begins one row an epoch.

    Args:
        model, pad_id, seed: as of `RowsTask`.
        lines: of the corpus, at least one.
        sampler: the rules of a system that reads text alone.
    """

    def __init__(
        self,
        model: nn.Module,
        lines: Sequence[str],
        sampler: TextSampler,
        config: DataConfig,
        *,
        pad_id: int,
        seed: int,
    ) -> None:
        super().__init__(model, len(lines), config, pad_id=pad_id, seed=seed)
        self._lines = lines
        self._sampler = sampler

    def samples(self, epoch: int, row: int) -> list[PretrainSample]:
        """See `RowsTask`; `row` is that of a line."""
        random = np.random.default_rng([MASKS, *self._number(epoch, row)])
        return [self._sampler.text_sample(self._lines, row, random)]


class Evaluates(Protocol):
    def evaluate(self) -> Judged:
        """Numbers by name, None where there was nothing to measure, each beside chance."""


class HasEvaluationBatches(Protocol):
    """What evaluation asks of a task, and leaves with it."""

    hidden_words: HiddenWords | None

    @property
    def model(self) -> nn.Module: ...

    def evaluation_batches(self, max_samples: int) -> Iterator[Any]:
        """Batches of the task's own type, of its first samples, with masks that training does not draw."""

    def encoded(self, batch: Any) -> tuple[VLBatch, VLOutput]:
        """Rows of such a batch, on the model's device, as the model reads them, and the states that it makes of
        them."""


def evaluate(task: HasEvaluationBatches, *, max_samples: int = 256) -> Judged:
    """Mean losses and accuracies without dropout, on captions of the task with masks it does not train on; each with
    its interval over images, or over texts that have none, and what chance reaches. None where nothing was predicted.
    """
    model, device = task.model, next(task.model.parameters()).device
    was_training = model.training
    model.eval()
    scorer = cast(PreTrainingModel, model.model if isinstance(model, EndToEndModel) else model)
    chance, words = Chance(scorer.config), HiddenWords()
    of_images, of_texts = ImageTerms(), ImageTerms()
    with torch.no_grad():
        for batch in task.evaluation_batches(max_samples):
            given = _predicted(scorer.config, batch if isinstance(batch, VLBatch) else batch.rows)
            chance.see(given)
            words.see(given)
            rows, states = task.encoded(batch.to(device))
            for row, sample_id in enumerate(rows.sample_ids):
                output = scorer.score(only_row(rows, row), states)
                has_image = rows.text_only is None or not bool(rows.text_only[row])
                (of_images if has_image else of_texts).add(sample_id, {**output.losses, **output.metrics})
    model.train(was_training)
    task.hidden_words = words
    return Judged(_figures(of_images, of_texts, chance.levels()))


def _figures(of_images: ImageTerms, of_texts: ImageTerms, levels: Mapping[str, float]) -> Iterator[Figure]:
    """Those of texts without an image by these texts, all others by images."""
    bootstraps = [Bootstrap(terms.num_images) for terms in (of_images, of_texts)]
    found = [{each.name: each for each in terms.measures(levels)} for terms in (of_images, of_texts)]
    for name in {**found[0], **found[1]}:
        place = int(name.startswith(_TEXT_ONLY))
        if name in found[place]:
            yield figure_of(found[place][name], bootstraps[place])
        else:
            yield Figure(name, None, None, None, None, None, 0)


def _predicted(config: Any, rows: VLBatch) -> VLBatch:
    """The rows with those labels alone that the model of this configuration is scored on."""
    if rows.match_labels is None:
        return rows
    if getattr(config, "masked_loss_pairs", "all") == "matched":
        return only_matched(rows)
    if getattr(config, "region_loss_pairs", "all") == "matched":
        matched = only_matched(rows)
        return replace(rows, region_targets=matched.region_targets, region_target_mask=matched.region_target_mask)
    return rows
