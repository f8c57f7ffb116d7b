"""Figures that are no means over rows, of rows drawn with replacement: for the intervals of `Whole`.

Each takes (N, rows) weights, how often each row was drawn, and gives (N,) values: what the metric gives of such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Drawn = Callable[[np.ndarray], np.ndarray]


def drawn_matthews(said: Sequence[int], right: Sequence[int]) -> Drawn:
    """Matthews correlation of labels; 0 where one of both is always alike, as scikit-learn has it."""

    def drawn(weights: np.ndarray) -> np.ndarray:
        table = _confusion(weights, said, right)
        of_right, of_said = table.sum(axis=2), table.sum(axis=1)
        total, hits = table.sum(axis=(1, 2)), np.trace(table, axis1=1, axis2=2)
        spread = (total**2 - (of_said**2).sum(axis=1)) * (total**2 - (of_right**2).sum(axis=1))
        together = hits * total - (of_right * of_said).sum(axis=1)
        return np.divide(together, np.sqrt(spread), out=np.zeros(len(total)), where=spread > 0)

    return drawn


def drawn_f1(said: Sequence[int], right: Sequence[int]) -> Drawn:
    """F1 of label 1; 0 where nothing is of that label."""

    def drawn(weights: np.ndarray) -> np.ndarray:
        table = _confusion(weights, said, right)
        both = table[:, 1].sum(axis=1) + table[:, :, 1].sum(axis=1)
        return np.divide(2 * table[:, 1, 1], both, out=np.zeros(len(both)), where=both > 0)

    return drawn


def drawn_accuracy(said: Sequence[int], right: Sequence[int]) -> Drawn:
    hits = np.asarray(said) == np.asarray(right)
    return lambda weights: weights @ hits.astype(np.float64) / weights.sum(axis=1)


def drawn_balanced(hits: Sequence[float], labels: Sequence[str]) -> Drawn:
    """The mean over labels of the accuracy of their own rows, of the labels that were drawn."""
    order, starts = _groups(np.unique(np.asarray(labels), return_inverse=True)[1])
    ordered = np.asarray(hits, np.float64)[order]

    def drawn(weights: np.ndarray) -> np.ndarray:
        chosen = weights[:, order]
        counts = np.add.reduceat(chosen, starts, axis=1)
        right = np.add.reduceat(chosen * ordered, starts, axis=1)
        shares = np.divide(right, counts, out=np.zeros(right.shape), where=counts > 0)
        return shares.sum(axis=1) / (counts > 0).sum(axis=1)

    return drawn


def drawn_pearson(said: Sequence[float], right: Sequence[float]) -> Drawn:
    """NaN where one of both is always alike."""
    first, second = np.asarray(said, np.float64)[None], np.asarray(right, np.float64)[None]
    return lambda weights: _correlation(weights, first, second)


def drawn_spearman(said: Sequence[float], right: Sequence[float]) -> Drawn:
    """As `drawn_pearson` of ranks; equal numbers share the mean of theirs."""
    return lambda weights: _correlation(weights, _ranks(weights, said), _ranks(weights, right))


def drawn_mean(first: Drawn, second: Drawn) -> Drawn:
    return lambda weights: (first(weights) + second(weights)) / 2


def _confusion(weights: np.ndarray, said: Sequence[int], right: Sequence[int]) -> np.ndarray:
    """(N, K, K) of labels 0..K - 1, at least two: rows that are right, columns that are said."""
    count = max(2, 1 + max(*said, *right))
    place = np.asarray(right, np.int64) * count + np.asarray(said, np.int64)
    return (weights @ np.eye(count * count)[place]).reshape(-1, count, count)


def _ranks(weights: np.ndarray, values: Sequence[float]) -> np.ndarray:
    """(N, rows) from 1, among the rows that were drawn."""
    group = np.unique(np.asarray(values, np.float64), return_inverse=True)[1]
    order, starts = _groups(group)
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    middle = np.cumsum(counts, axis=1) - counts + (counts + 1) / 2
    return middle[:, group]


def _groups(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order in which rows of one group stand side by side, and where each group starts."""
    order = np.argsort(group, kind="stable")
    return order, np.flatnonzero(np.diff(group[order], prepend=-1))


def _correlation(weights: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson's of (N, rows) or (1, rows) numbers."""
    total = weights.sum(axis=1, keepdims=True)
    first, second = (each - (weights * each).sum(axis=1, keepdims=True) / total for each in (first, second))
    spread = (weights * first**2).sum(axis=1) * (weights * second**2).sum(axis=1)
    together = (weights * first * second).sum(axis=1)
    # What is always alike has a spread of rounding alone.
    scale = (weights.sum(axis=1) * np.finfo(np.float64).eps) ** 2
    return np.divide(together, np.sqrt(spread), out=np.full(len(together), np.nan), where=spread > scale)
