"""What a metric gives: one number for each row it counts, with the image that the row is about, and what guessing
reaches; and the figures of several metrics, each with its interval over images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from roibeam.pipelines.common.statistics.bootstrap import Bootstrap
from roibeam.pipelines.common.statistics.verdict import Figure, mean_figure, whole_figure


@dataclass(frozen=True)
class Measure:
    """A mean over rows.

    Attributes:
        name: such as "overall" or "answer type number".
        values: of the rows, 0..1.
        images: of the rows; rows of one image move together when other images are imagined.
        guess: gives what a model reaches on these rows that knows nothing: that always says the commonest answer, or
            chooses among the candidates by lot. None where that is not defined. It may take as long as the metric, so
            that it is computed when it is asked for.
    """

    name: str
    values: Sequence[float]
    images: Sequence[str]
    guess: Callable[[], float] | None = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    def mean(self) -> float:
        """NaN without a row."""
        return sum(self.values) / len(self.values) if self.values else math.nan

    @property
    def percent(self) -> float:
        """The mean in percent, computed in the order of the official codes, so that it rounds as theirs does."""
        return 100.0 * sum(self.values) / len(self.values) if self.values else math.nan

    def by_image(self, number_of_image: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
        """(images,) sums of values and counts of rows, at the place of each image."""
        places = np.array([number_of_image[image] for image in self.images], dtype=np.int64)
        values = np.asarray(self.values, dtype=np.float64)
        sums = np.bincount(places, weights=values, minlength=len(number_of_image))
        return sums, np.bincount(places, minlength=len(number_of_image))

    def figure(self, number_of_image: Mapping[str, int], bootstrap: Bootstrap, chance: float | None) -> Figure:
        """With its interval over these images."""
        return mean_figure(self.name, *self.by_image(number_of_image), bootstrap, chance=chance)


@dataclass(frozen=True)
class Whole(Measure):
    """A figure of all rows together, such as a correlation, and no mean over them.

    Attributes:
        values: how right each row is; not what this is made of.
        value: -1..1, or NaN where it is not defined.
        drawn: (N, rows) int, how often each row was drawn -> (N,) the value in each draw; None where nothing draws it.
    """

    value: float = math.nan
    drawn: Callable[[np.ndarray], np.ndarray] | None = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    def mean(self) -> float:
        return self.value

    @property
    def percent(self) -> float:
        return 100.0 * self.value

    def figure(self, number_of_image: Mapping[str, int], bootstrap: Bootstrap, chance: float | None) -> Figure:
        places = np.array([number_of_image[image] for image in self.images], dtype=np.int64)
        ends = bootstrap.whole(self.drawn, places) if self.drawn is not None and len(places) else None
        return whole_figure(self.name, self.value, ends, len(set(self.images)), len(self.values), chance)


def numbers_of_images(measures: Iterable[Measure]) -> dict[str, int]:
    """A number of each image that some row is about, in the order in which rows name them."""
    images = dict.fromkeys(image for measure in measures for image in measure.images)
    return {image: number for number, image in enumerate(images)}


def figures_of(
    measures: Mapping[str, Measure], chances: MutableMapping[str, float | None] | None = None
) -> list[Figure]:
    """Each with its interval over the images of all of them, and beside chance.

    Args:
        chances: by name, of an earlier call on the same rows; what is not there is computed, and put there.
    """
    known = {} if chances is None else chances
    number_of = numbers_of_images(measures.values())
    bootstrap = Bootstrap(len(number_of))
    for name, measure in measures.items():
        if name not in known:
            known[name] = None if measure.guess is None or not measure.values else measure.guess()
    return [measure.figure(number_of, bootstrap, known[name]) for name, measure in measures.items()]
