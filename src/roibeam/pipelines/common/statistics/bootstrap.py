"""Bootstrap intervals over images: how far a mean, or the difference of two, would move with other images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
_NUMBERS_AT_ONCE = 2**22  # of a block of weights, 32 MB


class Bootstrap:
    """Draws of images with replacement; the same for everything that is asked of one seed and number of images.

    Args:
        num_images: that there are.
        seed: of the draws.
        resamples: how often as many images are drawn.
    """

    def __init__(self, num_images: int, *, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self._num_images, self._seed, self._resamples = num_images, seed, resamples

    def ratio(self, sums: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
        """Interval of sums.sum() / counts.sum().

        Args:
            sums, counts: (images,), of what each image has.
        Returns:
            Lower and upper end; NaN where nothing was counted.
        """
        return _ends(np.concatenate([_ratios(weights, sums, counts) for weights in self._weights(self._num_images)]))

    def difference(
        self, sums: np.ndarray, counts: np.ndarray, other_sums: np.ndarray, other_counts: np.ndarray
    ) -> tuple[float, float]:
        """Interval of the first ratio less the other one, both of the same images in each draw."""
        draws = [
            _ratios(weights, sums, counts) - _ratios(weights, other_sums, other_counts)
            for weights in self._weights(self._num_images)
        ]
        return _ends(np.concatenate(draws))

    def median(self, ranks: np.ndarray, image_of_rank: np.ndarray) -> tuple[float, float]:
        """Interval of `floor_median(ranks)`.

        Args:
            ranks: (n,) int; image_of_rank: (n,) int, to which image each belongs.
        """
        order = np.argsort(ranks, kind="stable")
        ordered = ranks[order]

        def medians(weights_NR: np.ndarray) -> np.ndarray:
            reached = np.cumsum(weights_NR, axis=1)
            total = reached[:, -1:]
            lower = (reached >= (total + 1) // 2).argmax(axis=1)
            upper = (reached >= total // 2 + 1).argmax(axis=1)
            return (ordered[lower] + ordered[upper]) // 2

        return self.whole(medians, image_of_rank[order])

    def whole(self, statistic: Callable[[np.ndarray], np.ndarray], image_of_row: np.ndarray) -> tuple[float, float]:
        """Interval of a number of all rows together that is no ratio of sums.

        Args:
            statistic: (N, rows) int64, how often each row was drawn -> (N,) the number in each draw, NaN where it is
                not defined.
            image_of_row: (rows,) int, to which image each belongs.
        """
        width = max(len(image_of_row), self._num_images)
        return _ends(np.concatenate([statistic(weights[:, image_of_row]) for weights in self._weights(width)]))

    def _weights(self, width: int) -> Iterator[np.ndarray]:
        """(n, images) int64, how often each image was drawn, a block of draws at a time.

        The draws are one stream, so that they do not depend on the blocks.
        """
        random, images = np.random.default_rng(self._seed), self._num_images
        at_once = max(1, _NUMBERS_AT_ONCE // width)
        for start in range(0, self._resamples, at_once):
            size = min(at_once, self._resamples - start)
            drawn = random.integers(images, size=(size, images)) + images * np.arange(size)[:, None]
            yield np.bincount(drawn.ravel(), minlength=size * images).reshape(size, images)


def floor_median(ranks: np.ndarray) -> int:
    """The median, rounded down where it lies between two: the median rank of the published retrieval codes."""
    return int(np.floor(np.median(ranks)))


def _ratios(weights_NI: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    totals = weights_NI @ counts.astype(np.float64)
    return np.divide(weights_NI @ sums, totals, out=np.full(len(totals), np.nan), where=totals > 0)


def _ends(values: np.ndarray) -> tuple[float, float]:
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
