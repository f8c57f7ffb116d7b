"""Pre-training as a task of the training loop: any of five models, on captions and stored records, or on text alone.

With a token budget the captions of a step go into micro-batches of alike lengths, shared out among processes: the same
steps as without, padded less. Lengths of rows are computed without reading features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import nn

from roibeam.features.store import FeatureStore
from roibeam.model.common.losses import PreTrainingOutput
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.pretraining import PreTrainingModel, only_matched, only_row
from roibeam.pipelines.analysis.evaluation.evaluation_results import figure_of
from roibeam.pipelines.analysis.evaluation.measures import Chance, HiddenWords, ImageTerms
from roibeam.pipelines.common.statistics.verdict import Bootstrap, Figure, Judged
from roibeam.pipelines.data.batches.batch_workers import batches_ahead
from roibeam.pipelines.data.batches.sample import PretrainSample, collate, in_float32
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.pretraining.samples.sampler import Sampler, TextRows, TextSampler
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer
from roibeam.pipelines.training.parameter_groups import ParameterGroup
from roibeam.pipelines.training.sample_order import SampleOrder, SourceMixture

EVALUATION_EPOCH = 2**31  # training never comes to this epoch, so its masks are new to the model
_TEXT_ONLY = "text_only"  # losses and accuracies of rows without an image have this prefix
_ORDER, MASKS = 1, 2  # first number of a seed: keeps the random streams of one run apart


class RowsTask(ABC):
    """Base of pre-training tasks: batches of samples by number, and the losses of a model on them.

    Args:
        seed: of sample order, masks and negatives. They follow from it and the number of a sample alone.
        mixture: of sources, see `SampleOrder`.
        validation: evaluation on held-out captions, in place of the first own ones in `evaluate`.
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
        self.model, self.num_samples, self.batch_size = model, num_samples, config.batch_size
        self._config = config
        self._pad_id = pad_id
        self._seed = seed
        self._validation = validation
        self._order = SampleOrder(num_samples, (_ORDER, seed), mixture=mixture)
        self.hidden_words: HiddenWords | None = None

    @abstractmethod
    def samples(self, epoch: int, row: int) -> list[PretrainSample]:
        """The samples of one number, with its masks of an epoch; rows of text alone come last."""

    def evaluation_rows(self, max_samples: int) -> Sequence[int]:
        """The first `max_samples` numbers of samples, or all."""
        return range(min(max_samples, self.num_samples))

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[VLBatch]:
        def places() -> Iterator[list[tuple[int, int]]]:
            return self._order.batches(start_sample, batch_size=self.batch_size, rank=rank, num_ranks=num_ranks)

        if not self._config.workers:
            return map(self._batch, places())
        return batches_ahead(places, self._batch, workers=self._config.workers)

    def counts(self, batch: VLBatch) -> Mapping[str, int]:
        return cast(PreTrainingModel, self.model).loss_counts(batch)

    def losses(self, model: nn.Module, batch: VLBatch) -> PreTrainingOutput:
        return cast(PreTrainingOutput, model(in_float32(batch)))

    def parameter_groups(self) -> list[ParameterGroup]:
        # One group: VL-BERT's release decays biases and LayerNorms too; the others have rules of their own by name.
        return [{"params": list(self.model.parameters())}]

    def sample_ids(self, batch: VLBatch) -> Sequence[str]:
        return batch.sample_ids

    def one_by_one(self, batch: VLBatch) -> Iterator[VLBatch]:
        return map(batch.row, range(batch.batch_size))

    def encoded(self, batch: VLBatch) -> tuple[VLBatch, VLOutput]:
        """See `HasEvaluationBatches`."""
        rows = in_float32(batch)
        return rows, cast(PreTrainingModel, self.model).encode(rows)

    def evaluate(self) -> Judged:
        """See `evaluate`: at each of the loop's evaluations."""
        return evaluate(self) if self._validation is None else self._validation.evaluate()

    def model_config(self) -> dict[str, Any]:
        config = cast(PreTrainingModel, self.model).config
        return {**config.to_diff_dict(), "architectures": [type(self.model).__name__]}

    def evaluation_batches(self, max_samples: int) -> Iterator[VLBatch]:
        """The first `max_samples` in file order, of several sources in turn, with masks that training does not draw."""
        rows = self.evaluation_rows(max_samples)
        for start in range(0, len(rows), self.batch_size):
            yield self._batch([(EVALUATION_EPOCH, row) for row in rows[start : start + self.batch_size]])

    def collate(self, samples: Sequence[PretrainSample]) -> VLBatch:
        return collate(samples, pad_id=self._pad_id)

    def _number(self, epoch: int, row: int) -> tuple[int, int, int]:
        """Seed of everything random about a sample."""
        return self._seed, 0 if self._config.fixed_masks else epoch, row

    def _batch(self, chosen: Sequence[tuple[int, int]]) -> VLBatch:
        samples = [sample for epoch, row in chosen for sample in self.samples(epoch, row)]
        return self.collate(sorted(samples, key=lambda sample: bool(sample.text_only)))


class PretrainTask(RowsTask):
    """The objectives of a model on captioned records: a `TrainTask`.

    Args:
        lines: a text corpus, for a sampler that is a `TextSampler`.
        weights: of the corpus's sources, see `SourceMixture`; None makes every caption of all of them as likely.
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
            corpus: a view of the task's own with other words; None for the task's own.
        """
        number = self._number(epoch, row)
        random = np.random.default_rng([MASKS, *number])
        sample = self._sampler.sample(corpus or self._corpus, row, random)
        pair = (each for each in (sample, sample.twin) if each is not None)
        rows = [replace(each, draw_seed=int(random.integers(2**63))) for each in pair]
        return rows if self._texts is None else [*rows, *self._texts.samples(*number[1:])]


class TextTask(RowsTask):
    """A model on rows of text alone, without any image: a `TrainTask`. Each line of the corpus begins one row
    an epoch."""

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
    """Members that an evaluation reads of a task, and sets."""

    hidden_words: HiddenWords | None

    @property
    def model(self) -> nn.Module: ...

    def evaluation_batches(self, max_samples: int) -> Iterator[Any]:
        """Batches of the task's own type, of its first samples, with masks that training does not draw."""

    def encoded(self, batch: Any) -> tuple[VLBatch, VLOutput]:
        """Rows of such a batch, on the model's device, as the model reads them, and its hidden states."""


def evaluate(task: HasEvaluationBatches, *, max_samples: int = 256) -> Judged:
    """Mean losses and accuracies without dropout, on captions of the task with masks it does not train on; each with
    its interval over images, or over texts that have none, and the level of chance. None if nothing was predicted.
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
    """Figures of texts without an image by these texts, all others by images."""
    bootstraps = [Bootstrap(terms.num_images) for terms in (of_images, of_texts)]
    found = [{each.name: each for each in terms.measures(levels)} for terms in (of_images, of_texts)]
    for name in {**found[0], **found[1]}:
        place = int(name.startswith(_TEXT_ONLY))
        if name in found[place]:
            yield figure_of(found[place][name], bootstraps[place])
        else:
            yield Figure(name, None, None, None, None, None, 0)


def _predicted(config: Any, rows: VLBatch) -> VLBatch:
    """The rows with only those labels that the model of this configuration is scored on."""
    if rows.match_labels is None:
        return rows
    if getattr(config, "masked_loss_pairs", "all") == "matched":
        return only_matched(rows)
    if getattr(config, "region_loss_pairs", "all") == "matched":
        matched = only_matched(rows)
        return replace(rows, region_targets=matched.region_targets, region_target_mask=matched.region_target_mask)
    return rows


# Numbers of bands of alike region counts that a step is cut into before words are read; the least padded wins.
_BANDS = (1, 2, 4, 8)
_UNKNOWN = -1


class RowLengths:
    """Lengths of captions and records. A caption is cut into pieces on first use, and its length kept: 4 bytes a row.

    Args:
        num_regions: (rows,) int, of each row's record, see `count_regions`.
    """

    def __init__(self, corpus: Corpus, num_regions: np.ndarray, tokenizer: CaptionTokenizer) -> None:
        self._corpus, self._num_regions, self._tokenizer = corpus, num_regions, tokenizer
        self._pieces = np.full(len(corpus), _UNKNOWN, np.int32)

    @property
    def most_regions(self) -> int:
        """Largest number of regions of any record."""
        return int(self._num_regions.max())

    def pieces(self, row: int) -> int:
        """Number of pieces of the row's caption, first and last special token counted."""
        if self._pieces[row] == _UNKNOWN:
            self._pieces[row] = self._tokenizer.count_pieces(self._corpus.caption(row))
        return int(self._pieces[row])

    def regions(self, row: int) -> int:
        """Number of regions of the row's record."""
        return int(self._num_regions[row])


def count_regions(sources: Iterable[tuple[FeatureStore, CaptionTable]]) -> np.ndarray:
    """(rows,) int32: number of regions of each row's record, or of several together, source behind source; from the
    stores' offset indexes alone."""
    return np.concatenate([rows.by_row(store.num_regions_of(rows.captioned_ids())) for store, rows in sources])


def padded_tokens(sizes: np.ndarray) -> int:
    """Words and regions of a batch, padding counted; sizes: (captions, 3) int: rows of the batch that a caption brings,
    the most pieces and the most regions of one."""
    return int(sizes[:, 0].sum() * (sizes[:, 1].max() + sizes[:, 2].max()))


def plan_step(sizes: np.ndarray, *, max_tokens: int, max_captions: int, processes: int) -> list[list[np.ndarray]]:
    """Micro-batches of one step: every caption in one of them, as many for each process, all of about one size.

    It depends on its arguments alone, so all processes come to the same plan.

    Args:
        sizes: (captions, 3) int as of `padded_tokens`.
        max_tokens: of a padded micro-batch. A caption that has more by itself is a micro-batch of its own.
        processes: of which the number of captions is a multiple.
    Returns:
        for each process its micro-batches, the largest first; each the numbers of its captions, ascending.
    """
    assert len(sizes) % processes == 0
    tried = [(order, _greedy(sizes, order, max_tokens, max_captions)) for order in _orders(sizes)]
    order, batches = min(tried, key=lambda each: sum(padded_tokens(sizes[batch]) for batch in each[1]))
    # Never more than there are captions, if these can be shared out evenly.
    wanted = -(-len(batches) // processes) * processes
    batches = _evened(sizes, order, max_tokens, max_captions, wanted)
    while len(batches) < wanted:
        splittable = (at for at, batch in enumerate(batches) if len(batch) > 1)
        at = max(splittable, key=lambda at: padded_tokens(sizes[batches[at]]))
        batches[at : at + 1] = np.array_split(batches[at], 2)
    batches.sort(key=lambda each: (-padded_tokens(sizes[each]), each[0]))
    shares: list[list[np.ndarray]] = [[] for _ in range(processes)]
    for at, batch in enumerate(batches):
        turn, place = divmod(at, processes)
        # There and back, so that no process always gets the larger one.
        shares[place if turn % 2 == 0 else processes - 1 - place].append(np.sort(batch))
    return shares


def _orders(sizes: np.ndarray) -> list[np.ndarray]:
    """Ways to put captions of alike sizes beside each other: bands of region counts, in each up or down by pieces."""
    by_regions = np.lexsort((-sizes[:, 1], -sizes[:, 2]))
    orders = []
    for count in _BANDS:
        bands = [band[np.argsort(-sizes[band, 1], kind="stable")] for band in np.array_split(by_regions, count)]
        orders.append(np.concatenate([band if at % 2 == 0 else band[::-1] for at, band in enumerate(bands)]))
    return orders


def _greedy(sizes: np.ndarray, order: np.ndarray, max_tokens: int, max_captions: int) -> list[np.ndarray]:
    """Starts a new batch where the next caption would exceed the budget."""
    cuts, first, rows, pieces, regions = [], 0, 0, 0, 0
    listed = sizes[order].tolist()
    for at, (own_rows, own_pieces, own_regions) in enumerate(listed):
        rows, pieces, regions = rows + own_rows, max(pieces, own_pieces), max(regions, own_regions)
        if at > first and (rows * (pieces + regions) > max_tokens or at - first == max_captions):
            cuts.append(at)
            first, rows, pieces, regions = at, own_rows, own_pieces, own_regions
    return np.split(order, cuts)


def _evened(sizes: np.ndarray, order: np.ndarray, max_tokens: int, max_captions: int, most: int) -> list[np.ndarray]:
    """The cut with the smallest budget that still makes no more than `most` batches."""
    low, high = 0, max_tokens  # too small, and small enough
    while high - low > max(1, max_tokens // 64):
        middle = (low + high) // 2
        if len(_greedy(sizes, order, middle, max_captions)) <= most:
            high = middle
        else:
            low = middle
    return _greedy(sizes, order, high, max_captions)


_LEAST_PIECES = 3  # first and last special token, and one between

_Place = tuple[int, int]  # epoch and row


class BudgetedTask(PretrainTask):
    """A `PretrainTask` that shares the captions of each step out by itself: a `PlannedTask`; `config.max_tokens` is the
    budget.

    The captions of a step are the same ones as without a budget, and so are their masks and partners; every loss is a
    mean over the step. So what is trained is the same, but for the last digits. A loss that draws among rows must do so
    within one row (contrastive: negative_rows=1), since a micro-batch has any number of them. Lengths are looked up by
    what is drawn for a sample before its masks: each process plans the whole step, and reads the records of its share.
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

        def parts() -> Iterator[tuple[list[_Place], bool]]:  # a micro-batch, and whether it is the last of its step
            for places in self._order.batches(start_sample, batch_size=step_samples, rank=0, num_ranks=1):
                share = self._planned(places, num_ranks)[rank]
                yield from ((part, at == len(share) - 1) for at, part in enumerate(share))

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

    def _made(self, part: tuple[list[_Place], bool]) -> tuple[VLBatch, bool]:
        return self._batch(part[0]), part[1]

    def _planned(self, places: Sequence[_Place], num_ranks: int) -> list[list[list[_Place]]]:
        """The micro-batches of a step, for each process."""
        sizes = np.array([self._size(epoch, row) for epoch, row in places], np.int64)
        config = self._config
        shares = plan_step(sizes, max_tokens=config.max_tokens, max_captions=config.batch_size, processes=num_ranks)
        return [[[places[number] for number in batch] for batch in share] for share in shares]

    def _size(self, epoch: int, row: int) -> tuple[int, int, int]:
        """Number of rows that a caption brings into a batch, and the most pieces and regions of one."""
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
