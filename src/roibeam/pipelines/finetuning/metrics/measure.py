"""What a metric gives: one number for each row it counts, with the image that the row is about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Measure:
    """A mean over rows.

    Attributes:
        name: such as "overall" or "answer type number".
        values: of the rows, 0..1.
        images: of the rows; rows of one image move together when other images are imagined.
    """

    name: str
    values: Sequence[float]
    images: Sequence[str]

    @property
    def mean(self) -> float:
        """NaN without a row."""
        return sum(self.values) / len(self.values) if self.values else math.nan

    @property
    def percent(self) -> float:
        """The mean in percent, computed in the order of the official codes, so that it rounds as theirs does."""
        return 100.0 * sum(self.values) / len(self.values) if self.values else math.nan

    def by_image(self, number_of_image: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
        """(images,) sums of values and counts of rows, at the place of each image."""
        places = np.array([number_of_image[image] for image in self.images], dtype=np.int64)
        values = np.asarray(self.values, dtype=np.float64)
        sums = np.bincount(places, weights=values, minlength=len(number_of_image))
        return sums, np.bincount(places, minlength=len(number_of_image))


@dataclass(frozen=True)
class Whole(Measure):
    """A figure of all rows together, such as a correlation, and no mean over them.

    Attributes:
        values: how right each row is; not what this is made of.
        value: -1..1, or NaN where it is not defined.
    """

    value: float = math.nan

    @property
    def mean(self) -> float:
        return self.value

    @property
    def percent(self) -> float:
        return 100.0 * self.value
