"""How far two class distributions of the same regions are apart, each full or only its most probable classes."""

from __future__ import annotations

import numpy as np

from roibeam.features.record.region_record import TopKDistribution

Distribution = np.ndarray | TopKDistribution
_VALUES_AT_ONCE = 2**20


def num_foreground_classes(distribution: Distribution) -> int:
    if isinstance(distribution, TopKDistribution):
        return distribution.num_classes
    return int(distribution.shape[1]) - 1


def distribution_error(left: Distribution, right: Distribution, pairs: np.ndarray) -> float:
    """The largest difference of a probability that the two certainly have.

    A class that a top-k distribution does not list has a probability from 0 to the smallest of the listed and of the
    rest; against that only what lies outside counts, so equal distributions with other k, or one full, have error 0.
    The rests are compared where both list the same classes.

    Args:
        left, right: as in `RegionRecord.class_distribution`, with equally many foreground classes.
        pairs: (P, 2) int64, rows on the left and right; P >= 1.
    Returns:
        0..1, or more for values that are no probabilities.
    """
    if isinstance(left, TopKDistribution) and isinstance(right, TopKDistribution):
        # Not all classes: their number is what a file says, and may be any.
        classes = np.union1d(left.class_ids[pairs[:, 0]], right.class_ids[pairs[:, 1]]).astype(np.int64)
    else:
        classes = np.arange(num_foreground_classes(left) + 1)
    at_once = max(1, _VALUES_AT_ONCE // len(classes))
    largest = 0.0
    for start in range(0, len(pairs), at_once):
        rows, columns = pairs[start : start + at_once].T
        left_low, left_high, left_listed = _bounds(left, rows, classes)
        right_low, right_high, right_listed = _bounds(right, columns, classes)
        apart = np.maximum(left_low - right_high, right_low - left_high)
        largest = max(largest, float(apart.max()))
        if isinstance(left, TopKDistribution) and isinstance(right, TopKDistribution):
            rests = np.abs(left.rest[rows].astype(np.float32) - right.rest[columns].astype(np.float32))
            largest = max(largest, float(rests[(left_listed == right_listed).all(axis=1)].max(initial=0.0)))
    return largest


def _bounds(distribution: Distribution, rows: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, ...]:
    """(R, len(classes)) each: float32 smallest and largest probability that the class may have; bool, is it listed."""
    if not isinstance(distribution, TopKDistribution):
        known = distribution[rows].astype(np.float32)
        return known, known, np.ones(known.shape, bool)
    probabilities = distribution.probabilities[rows].astype(np.float32)
    low = np.zeros((len(rows), len(classes)), np.float32)
    most = np.minimum(probabilities.min(axis=1), distribution.rest[rows].astype(np.float32))
    high = np.repeat(most[:, None], len(classes), axis=1)
    listed = np.zeros(low.shape, bool)
    at = (np.arange(len(rows))[:, None], np.searchsorted(classes, distribution.class_ids[rows]))
    low[at] = high[at] = probabilities
    listed[at] = True
    return low, high, listed
