"""Measures on captions, image by image: masked words and regions, matching; and the baselines beside them.

The model's own `score` does the arithmetic, one row at a time, so that an image's figures do not depend on the batch it
was in. Draws follow from the seed and the number of the caption alone.

Baselines: chance, the figures of a model that knows only the frequency of each answer; and words alone, a count of
neighbouring words without any picture, on the very words that the evaluation hides. The second is a level to compare
with, and no model: one that is trained on words alone reads the whole text, and may find more.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.model.common.losses import PreTrainingOutput, SumCount
from roibeam.model.imagebert.model import ImageBertConfig
from roibeam.model.inputs import IGNORE_INDEX, VLBatch, VLOutput
from roibeam.model.interbert.model import InterBertConfig
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationRow, EvaluationSamples, region_objective
from roibeam.pipelines.common.statistics.neighbour_counts import UNKNOWN, NeighbourCounts, count_neighbours
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

_ROWS = "rows"  # of VL-BERT's settings: a loss is a mean over rows


class Chance:
    """Chance levels on the labels seen. Accuracy: always the commonest label. Loss: the entropy of the labels'
    frequencies, in nats, or the variance of features. One of several candidates: drawn at random."""

    def __init__(self, config: Any) -> None:
        self._config, self._objective = config, region_objective(config)
        self._word_means = getattr(config, "word_loss_mean", "") == _ROWS
        self._region_means = getattr(config, "region_loss_mean", "") == _ROWS
        self._words, self._text_only_words, self._matches, self._classes = (_Frequencies() for _ in range(4))
        self._distributions, self._features = _Distributions(), _Features()
        self._num_contrasted = 0

    def see(self, batch: VLBatch) -> None:
        """
        Args:
            batch: with labels and targets where the model is scored, and nowhere else.
        """
        text_only = torch.zeros(batch.batch_size, dtype=torch.bool, device=batch.text_ids.device)
        text_only = text_only if batch.text_only is None else batch.text_only
        if batch.text_labels is not None:
            for frequencies, rows in ((self._words, ~text_only), (self._text_only_words, text_only)):
                hidden = (batch.text_labels != IGNORE_INDEX) & rows[:, None]
                frequencies.see(batch.text_labels[hidden], _weights(hidden, by_row=self._word_means))
        if batch.match_labels is not None:
            labels = batch.match_labels[(batch.match_labels != IGNORE_INDEX) & ~text_only]
            self._matches.see(labels, torch.ones(len(labels)))
        if batch.region_target_mask is not None and batch.region_targets is not None:
            self._see_regions(batch, batch.region_target_mask)

    def _see_regions(self, batch: VLBatch, predicted: Tensor) -> None:
        objective, config = self._objective, self._config
        if isinstance(config, ImageBertConfig) and config.with_region_feature_head:
            stored = batch.region_feature_targets
            self._features.see((batch.region_features if stored is None else stored)[predicted])
        if objective is None:
            return
        if objective.loss == "contrastive":
            self._num_contrasted += int(predicted.sum())
        elif objective.loss == "regression" and not isinstance(config, ImageBertConfig):
            self._features.see(batch.targets_of(predicted))
        if not objective.labels:
            return
        targets = batch.targets_of(predicted)[:, : objective.labels]
        weights = _weights(predicted, by_row=self._region_means)
        # A hard label is the best class; background, the last one, is none.
        is_hard = getattr(config, "region_labels", "") == "hard"
        best, classes = (targets[:, :-1] if is_hard else targets).max(dim=1)
        counted = torch.ones_like(best, dtype=torch.bool) if is_hard else best > 0
        self._classes.see(classes[counted], weights[counted])
        self._distributions.see(targets, weights)

    def levels(self) -> dict[str, float]:
        """Levels by the name of the loss or accuracy, as in `PreTrainingOutput`; only of those that were evaluated."""
        found = {
            "masked_word_accuracy": self._words.commonest,
            "text_only_word_accuracy": self._text_only_words.commonest,
            "masked_region_accuracy": self._classes.commonest,
            "matching_accuracy": self._matches.commonest,
            "masked_words": self._words.entropy,
            "text_only_words": self._text_only_words.entropy,
            "matching": self._matches.entropy,
            **self._region_levels(),
        }
        return {name: level for name, level in found.items() if level is not None}

    def _region_levels(self) -> dict[str, float | None]:
        objective, config = self._objective, self._config
        summed = isinstance(config, InterBertConfig) or getattr(config, "feature_reduction", "mean") == "sum"
        spread = self._features.variance(over_width="sum" if summed else "mean")
        if isinstance(config, ImageBertConfig):
            return {"masked_regions": self._classes.entropy, "masked_region_features": spread}
        if objective is None:
            return {}
        if objective.loss == "contrastive":
            return {"masked_regions": math.log(1 + objective.negatives) if self._num_contrasted else None}
        if objective.loss == "regression":
            return {"masked_regions": spread}
        if getattr(config, "region_labels", "") == "hard":
            return {"masked_regions": self._classes.entropy}
        # A divergence is the cross-entropy less what no prediction can avoid.
        return {"masked_regions": self._distributions.entropy(less_unavoidable=objective.loss == "kl")}


class _Frequencies:
    """Counts of the labels seen."""

    def __init__(self) -> None:
        self._counts = Counter[int]()
        self._weights: dict[int, float] = {}

    def see(self, labels: Tensor, weights: Tensor) -> None:
        """Adds (n,) long labels with (n,) float weights in the loss."""
        self._counts.update(labels.tolist())
        for label, weight in zip(labels.tolist(), weights.tolist(), strict=True):
            self._weights[label] = self._weights.get(label, 0.0) + weight

    @property
    def commonest(self) -> float | None:
        """Share of the commonest label."""
        return max(self._counts.values()) / self._counts.total() if self._counts else None

    @property
    def entropy(self) -> float | None:
        return _entropy(torch.tensor([*self._weights.values()], dtype=torch.float64)) if self._weights else None


class _Distributions:
    """Weighted sums of distributions and of their entropies."""

    def __init__(self) -> None:
        self._entropy, self._weight, self._total = 0.0, 0.0, torch.zeros(1, dtype=torch.float64)

    def see(self, targets: Tensor, weights: Tensor) -> None:
        """Adds (n, C) float distributions with (n,) float weights in the loss."""
        targets, weights = targets.double().cpu(), weights.double().cpu()
        self._entropy += float((torch.special.entr(targets).sum(dim=1) * weights).sum())
        self._weight += float(weights.sum())
        self._total = self._total + (targets * weights[:, None]).sum(dim=0)

    def entropy(self, *, less_unavoidable: bool) -> float | None:
        if not self._weight:
            return None
        return _entropy(self._total) - (self._entropy / self._weight if less_unavoidable else 0.0)


class _Features:
    """Sums for the variance of features."""

    def __init__(self) -> None:
        self._count, self._squares, self._total = 0, 0.0, torch.zeros(1, dtype=torch.float64)

    def see(self, features: Tensor) -> None:
        """Adds (n, D) float features."""
        features = features.double().cpu()
        self._count += len(features)
        self._squares += float(features.square().sum())
        self._total = self._total + features.sum(dim=0)

    def variance(self, *, over_width: str) -> float | None:
        """Mean over features of the squared distance, its sum or mean over the width."""
        if not self._count:
            return None
        summed = self._squares / self._count - float((self._total / self._count).square().sum())
        return summed / len(self._total) if over_width == "mean" else summed


def _weights(chosen_BX: Tensor, *, by_row: bool) -> Tensor:
    """(n,) float64 weights of each True in a mean over all of them, or over the means of the rows."""
    counts = chosen_BX.sum(dim=1, keepdim=True).double()
    weights = 1.0 / counts.clamp(min=1) if by_row else torch.ones_like(counts)
    return weights.expand(chosen_BX.shape)[chosen_BX].cpu()


def _entropy(counts: Tensor) -> float:
    """Entropy in nats of the frequencies of (labels,) counts, at least one of them above 0."""
    return float(torch.special.entr(counts / counts.sum()).sum())


MOST_TEXTS = 100_000  # a few seconds of one core
_MOST_PIECES = 2_000_000
_DRAWN = 7  # first number of a seed: keeps this random stream apart from the others of a run


class HiddenWords:
    """Hidden words of an evaluation, each with its neighbours as far as they are visible to the model."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._sample_ids: list[str] = []
        self._triples: list[np.ndarray] = []

    def see(self, batch: VLBatch) -> None:
        if batch.text_labels is None:
            return
        labels = batch.text_labels.numpy(force=True)
        hidden = labels != IGNORE_INDEX
        is_visible = batch.text_mask.numpy(force=True).astype(bool) & ~hidden
        visible = np.pad(
            np.where(is_visible, batch.text_ids.numpy(force=True), UNKNOWN), ((0, 0), (1, 1)), constant_values=UNKNOWN
        )
        rows, places = hidden.nonzero()
        self._triples.append(np.stack([visible[rows, places], labels[rows, places], visible[rows, places + 2]], axis=1))
        self._sample_ids += [batch.sample_ids[row] for row in rows]
        alone = [False] * batch.batch_size if batch.text_only is None else batch.text_only.tolist()
        self._names += ["text_only_word_accuracy" if alone[row] else "masked_word_accuracy" for row in rows]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
        """Yields, per word, the name of its accuracy, its sample's id, and (left neighbour, word, right neighbour);
        `UNKNOWN` for a neighbour that is hidden too."""
        for name, sample_id, triple in zip(self._names, self._sample_ids, np.concatenate(self._triples), strict=True):
            left, word, right = map(int, triple)
            yield name, sample_id, (left, word, right)


class _All(Container[str]):
    def __contains__(self, sample_id: object) -> bool:
        return True


ALL: Container[str] = _All()
NONE: Container[str] = frozenset()


def words_alone(
    hidden: HiddenWords, counts: NeighbourCounts, tokenizer: CaptionTokenizer, *, counted_ids: Container[str]
) -> dict[str, float]:
    """Share of the hidden words that their neighbours predict, 0..1, by the name of the accuracy.

    Args:
        counts: of the captions that the model was trained on, in pieces of `tokenizer`.
        counted_ids: of the samples whose captions are among those: such a word itself is taken out of the counts.
    """
    found: dict[str, list[bool]] = {}
    for name, sample_id, (left, word, right) in hidden:
        sides = (tokenizer.sep_id if side == tokenizer.cls_id else side for side in (left, right))
        guessed = counts.guess(*sides, without=word if sample_id in counted_ids else None)
        found.setdefault(name, []).append(guessed == word)
    return {name: sum(right) / len(right) for name, right in found.items()}


def count_words(
    columns: Sequence[Sequence[str]], tokenizer: CaptionTokenizer, *, seed: int, most_texts: int = MOST_TEXTS
) -> NeighbourCounts:
    """Counts so many texts, drawn by seed, or all; both ends of a text are [SEP].

    Args:
        columns: texts of each source; at least one text.
        most_texts: fewer of long ones, so that they have about two million pieces at most.
    """
    ends = np.cumsum([len(column) for column in columns])
    starts, total = ends - [len(column) for column in columns], int(ends[-1])
    drawn = np.random.default_rng([_DRAWN, seed]).choice(total, min(total, most_texts), replace=False)

    def rows() -> Iterator[np.ndarray]:
        pieces = 0
        for number in drawn.tolist():
            column = int(np.searchsorted(ends, number, side="right"))
            # A task's text has several lines, which are counted separately.
            for line in columns[column][number - int(starts[column])].split("\n"):
                ids = tokenizer.encode(line).ids
                ids[0] = tokenizer.sep_id
                yield ids
                pieces += len(ids)
            if pieces > _MOST_PIECES:
                return

    return count_neighbours(rows())


_MASKS, _PAIRS = 3, 4  # first number of a seed; training has others


@dataclass(frozen=True, eq=False)
class CaptionMeasure:
    """A mean over items (words, regions, pairs, captions), kept by image.

    Attributes:
        name: as in `PreTrainingOutput`, or of retrieval.
        sums, counts: (images,) float64, of the items of each image.
        chance: level of a model that knows nothing; None where that is not defined.
        best_possible: upper limit by the data, where it is below a perfect score.
        words_alone: level of counting neighbouring words, see `words_alone`; None where nothing was counted.
    """

    name: str
    sums: np.ndarray
    counts: np.ndarray
    chance: float | None
    best_possible: float | None = None
    words_alone: float | None = None

    @property
    def items(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float | None:
        """Mean over all items; None without items."""
        return float(self.sums.sum() / self.counts.sum()) if self.items else None


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """The captions that are evaluated.

    Attributes:
        corpus: all captions with a record; mismatched images are drawn from it.
        rows: (captions,) int64, those of `corpus` that are evaluated.
        image_of_caption: (captions,) int64, numbers of images, in the order in which captions name them.
    """

    corpus: Corpus
    rows: np.ndarray
    image_of_caption: np.ndarray
    image_ids: tuple[str, ...]


def evaluation_set(corpus: Corpus, *, max_images: int = 0, seed: int = 0) -> EvaluationSet:
    """All captions, or those of `max_images` images. A larger subset of one seed contains the smaller ones."""
    first_rows = np.array([corpus.rows_of_image(row)[0] for row in range(len(corpus))])
    images, image_of_row = np.unique(first_rows, return_inverse=True)
    if 0 < max_images < len(images):
        kept = np.sort(np.random.default_rng(seed).permutation(len(images))[:max_images])
        number = np.full(len(images), -1)
        number[kept] = np.arange(max_images)
        images, image_of_row = images[kept], number[image_of_row]
    rows = np.flatnonzero(image_of_row >= 0)
    return EvaluationSet(corpus, rows, image_of_row[rows], tuple(corpus.record_id(int(row)) for row in images))


class ImageTerms:
    """Sums and counts of losses and accuracies, by name and image.

    Args:
        image_ids: in their order, those without a term too; others come behind them when they are first added.
    """

    def __init__(self, image_ids: Sequence[str] = ()) -> None:
        self._number = {image_id: number for number, image_id in enumerate(image_ids)}
        self._terms: dict[str, list[tuple[int, float, int]]] = {}

    def add(self, image_id: str, terms: Mapping[str, SumCount]) -> None:
        """Terms of one row of a batch, by name."""
        number = self._number.setdefault(image_id, len(self._number))
        for name, term in terms.items():
            self._terms.setdefault(name, []).append((number, float(term.total), int(term.count)))

    @property
    def num_images(self) -> int:
        return len(self._number)

    def measures(
        self, chances: Mapping[str, float], alone: Mapping[str, float] = MappingProxyType({})
    ) -> list[CaptionMeasure]:
        found = []
        for name, terms in self._terms.items():
            numbers, totals, counts = zip(*terms, strict=True)
            sums, items = (np.bincount(numbers, each, self.num_images) for each in (totals, counts))
            found.append(CaptionMeasure(name, sums, items, chances.get(name), words_alone=alone.get(name)))
        return found


@torch.inference_mode()
def masked_measures(
    model: Any,
    samples: EvaluationSamples,
    chosen: EvaluationSet,
    *,
    seed: int,
    batch_size: int,
    device: torch.device,
    alone: Callable[[HiddenWords], Mapping[str, float]] = lambda _words: {},
    progress: Callable[[], None] = lambda: None,
) -> list[CaptionMeasure]:
    """Losses and accuracies of hidden words and regions in pairs that belong together.

    Args:
        model: a `PreTrainingModel` in evaluation mode, on `device`.
        alone: returns the levels of counting neighbouring words, by name; empty without counts.
        progress: is called after each caption.
    """
    terms = ImageTerms(chosen.image_ids)
    chance, words = Chance(samples.config), HiddenWords()
    for numbers in _chunks(len(chosen.rows), batch_size):
        randoms = [np.random.default_rng([_MASKS, seed, int(chosen.rows[number])]) for number in numbers]
        rows = [
            samples.masked(chosen.corpus, int(chosen.rows[number]), random)
            for number, random in zip(numbers, randoms, strict=True)
        ]
        for place, (batch, scored) in enumerate(scored_rows(model, samples, rows, randoms, device)):
            image_id = chosen.image_ids[chosen.image_of_caption[numbers[place]]]
            terms.add(image_id, _terms_of(scored, matching=False))
            chance.see(batch)
            words.see(batch)
            progress()
    return terms.measures(chance.levels(), alone(words))


@torch.inference_mode()
def matching_measures(
    model: Any,
    samples: EvaluationSamples,
    chosen: EvaluationSet,
    *,
    seed: int,
    batch_size: int,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> list[CaptionMeasure]:
    """Loss and accuracy of "does it match": each caption once with its image and once with another one. Raises
    ValueError when there is only one image."""
    terms = ImageTerms(chosen.image_ids)
    for numbers in _chunks(len(chosen.rows), max(1, batch_size // 2)):
        randoms = [np.random.default_rng([_PAIRS, seed, int(chosen.rows[number])]) for number in numbers]
        rows = []
        for row, random in zip((int(chosen.rows[number]) for number in numbers), randoms, strict=True):
            other = chosen.corpus.draw_row_of_another_image(row, random)
            rows += [samples.pair(chosen.corpus, row, row), samples.pair(chosen.corpus, row, other)]
        twice = [random for random in randoms for _ in range(2)]
        for place, (_, scored) in enumerate(scored_rows(model, samples, rows, twice, device)):
            number = numbers[place // 2]
            terms.add(chosen.image_ids[chosen.image_of_caption[number]], _terms_of(scored, matching=True))
            if place % 2:
                progress()
    return terms.measures({"matching": math.log(2), "matching_accuracy": 0.5})


def _terms_of(output: PreTrainingOutput, *, matching: bool) -> dict[str, SumCount]:
    """Terms of matching, or the others."""
    terms = {**output.losses, **output.metrics}
    return {name: term for name, term in terms.items() if name.startswith("matching") == matching}


def _chunks(count: int, at_once: int) -> Iterator[range]:
    return (range(start, min(start + at_once, count)) for start in range(0, count, at_once))


def scored_rows(
    model: Any,
    samples: EvaluationSamples,
    rows: Sequence[EvaluationRow],
    randoms: Sequence[np.random.Generator],
    device: torch.device,
) -> Iterator[tuple[VLBatch, PreTrainingOutput]]:
    """Encodes the rows together, and scores each by itself: scores of a row do not depend on the others.

    Args:
        randoms: one for each row, for what its losses draw.
    """
    batch = samples.batch(rows).to(device)
    output = model.encode(batch)
    for row, random in enumerate(randoms):
        one = batch.row(row)
        yield one, _score(model, samples, one, _row_of(output, row), random)


def _score(
    model: Any, samples: EvaluationSamples, batch: VLBatch, output: VLOutput, random: np.random.Generator
) -> PreTrainingOutput:
    if samples.objective is None or samples.objective.loss != "contrastive":
        scored: PreTrainingOutput = model.score(batch, output)
        return scored
    # In a row by itself all negatives are regions of the same image.
    generator = torch.Generator().manual_seed(int(random.integers(2**62)))
    scored = model.score(batch, output, generator)
    return scored


def _row_of(output: VLOutput, row: int) -> VLOutput:
    parts: dict[str, Any] = {}
    for field in dataclasses.fields(output):
        value = getattr(output, field.name)
        if isinstance(value, Tensor):
            parts[field.name] = value[row : row + 1]
    return dataclasses.replace(output, **parts)
