"""Cosines of pairs of features, and what is told of many of them."""

from __future__ import annotations

import numpy as np


class Cosines:
    """Mean, smallest and 1st percentile of any number of cosines, from 2,000 counts."""

    def __init__(self) -> None:
        # Bins of 1 - cosine, evenly spaced in its logarithm from 1e-9 to 2: each is 1.1 % wide.
        self._edges = np.geomspace(1e-9, 2.0, 2000)
        self._counts = np.zeros(len(self._edges) + 1, np.int64)
        self._sum, self._count = 0.0, 0
        self.smallest: float | None = None

    def add(self, cosines: np.ndarray) -> None:
        self._counts += np.bincount(np.searchsorted(self._edges, 1 - cosines), minlength=len(self._counts))
        self._sum += float(cosines.sum())
        self._count += len(cosines)
        smallest = float(cosines.min())
        self.smallest = smallest if self.smallest is None else min(self.smallest, smallest)

    @property
    def mean(self) -> float | None:
        return self._sum / self._count if self._count else None

    @property
    def first_percentile(self) -> float | None:
        """A hundredth of the pairs (rounded down) have a smaller cosine."""
        if self.smallest is None:
            return None
        above = np.cumsum(self._counts[::-1])[::-1]  # pairs in this bin or in one of smaller cosines
        bin_ = int(np.nonzero(above > self._count // 100)[0][-1])
        return max(float(1 - self._edges[min(bin_, len(self._edges) - 1)]), self.smallest)


def cosines_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(P,) float64 of float64 rows; 1 for two zero rows, 0 for a zero row and another."""
    dots = np.einsum("pd,pd->p", first, second)
    norms: np.ndarray = np.sqrt(np.einsum("pd,pd->p", first, first) * np.einsum("pd,pd->p", second, second))
    both_zero = ~first.any(axis=1) & ~second.any(axis=1)
    cosines = np.array(both_zero, np.float64)
    some = norms > 0
    cosines[some] = np.clip(dots[some] / norms[some], -1.0, 1.0)
    return cosines
