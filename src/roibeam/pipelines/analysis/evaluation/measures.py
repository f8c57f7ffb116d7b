"""What a model gets right on captions: masked words and regions, and whether a pair matches; image by image.

The model's own `score` does the arithmetic, one row at a time, so that what an image has does not depend on the batch
it was in. Draws follow from the seed and the number of the caption alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.model.common.losses import PreTrainingOutput, SumCount
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.pipelines.analysis.evaluation.chance import Chance
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationRow, EvaluationSamples
from roibeam.pipelines.analysis.evaluation.words_alone import HiddenWords
from roibeam.pipelines.data.captioned.corpus import Corpus

_MASKS, _PAIRS = 3, 4  # first number of a seed; training has others


@dataclass(frozen=True, eq=False)
class Measure:
    """A mean over items (words, regions, pairs, captions), kept by image.

    Attributes:
        name: as in `PreTrainingOutput`, or of retrieval.
        sums, counts: (images,) float64, of the items of each image.
        chance: what a model reaches that knows nothing; None where that is not defined.
        best_possible: what the data leave possible, where they leave less than everything.
        words_alone: what counting neighbouring words finds, see `words_alone`; None where nothing was counted.
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
        """None where there was no item."""
        return float(self.sums.sum() / self.counts.sum()) if self.items else None


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """The captions that are evaluated.

    Attributes:
        corpus: all captions with a record; mismatched images are drawn from it.
        rows: (captions,) int64, those of `corpus` that are evaluated.
        image_of_caption: (captions,) int64, numbers of images, in the order in which captions name them.
        image_ids: of these images.
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
    ) -> list[Measure]:
        found = []
        for name, terms in self._terms.items():
            numbers, totals, counts = zip(*terms, strict=True)
            sums, items = (np.bincount(numbers, each, self.num_images) for each in (totals, counts))
            found.append(Measure(name, sums, items, chances.get(name), words_alone=alone.get(name)))
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
    alone: Callable[[HiddenWords], Mapping[str, float]] = lambda words: {},
    progress: Callable[[], None] = lambda: None,
) -> list[Measure]:
    """Losses and accuracies of hidden words and regions in pairs that belong together.

    Args:
        model: a `PreTrainingModel` in evaluation mode, on `device`.
        alone: what counting neighbouring words finds of the hidden ones, by name; nothing where nobody counted.
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
) -> list[Measure]:
    """Loss and accuracy of "does it match": each caption once with its image and once with another one.

    Raises:
        ValueError: when there is only one image.
    """
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
    """Those of matching, or the others."""
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
    """Encodes the rows together, and scores each by itself: what is said of a row does not depend on the others.

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
