"""Sources of samples mixed by weight: which of them the n-th sample comes from, and which of its own."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np


class SourceMixture:
    """Epochs of several sources, the samples of which stand one behind the other: those of the first, then the second.

    An epoch is as many samples as all sources have together. Each source has its share of them, exact to a sample, in
    places that are drawn. It is read in rounds of its own: each of its samples comes once before any comes again, in an
    order of its own for each round.

    Args:
        sizes: samples of each source.
        weights: any positive numbers; a source's share is its weight over their sum.
    Raises:
        ValueError: for other numbers, or a weight that gives a source no sample of an epoch.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float]) -> None:
        if len(sizes) != len(weights):
            raise ValueError(f"{len(sizes)} sources and {len(weights)} weights: each needs one")
        if not all(0 < weight < float("inf") for weight in weights):
            raise ValueError(f"weights must be positive numbers, got {', '.join(f'{each:g}' for each in weights)}")
        self._starts = np.cumsum([0, *sizes[:-1]])
        self._sizes = tuple(sizes)
        self.counts = _shared_out(sum(sizes), weights)
        for number, (count, weight) in enumerate(zip(self.counts, weights, strict=True), 1):
            if not count:
                raise ValueError(
                    f"weight {weight:g} of source {number} gives it not one of the {sum(sizes):,} samples of an epoch; "
                    f"give it more, or leave it out"
                )

    def epoch(self, seed: Sequence[int], epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The samples of an epoch in their order.

        Args:
            seed: two numbers.
        Returns:
            rounds: (n,) int64, how often the sample's source was read to its end before.
            places: (n,) int64, the sample.
        """
        sources = np.repeat(np.arange(len(self._sizes)), self.counts)
        sources = np.random.default_rng([*seed, epoch]).permutation(sources)
        rounds, places = np.empty_like(sources), np.empty_like(sources)
        for source, (size, count) in enumerate(zip(self._sizes, self.counts, strict=True)):
            numbers = np.arange(epoch * count, (epoch + 1) * count)
            mine = sources == source
            rounds[mine] = numbers // size
            orders = {
                each: self._order(seed, source, each) for each in range(numbers[0] // size, numbers[-1] // size + 1)
            }
            places[mine] = np.concatenate([orders[each][numbers[numbers // size == each] % size] for each in orders])
        return rounds, places

    def _order(self, seed: Sequence[int], source: int, number: int) -> np.ndarray:
        """(size,) the samples of a source in the order of one of its rounds."""
        # A fourth number that is not 0: seeds are filled up with zeros, and those of epochs have three.
        random = np.random.default_rng([*seed, number, source + 1])
        return random.permutation(self._sizes[source]) + self._starts[source]


def _shared_out(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers of this sum, as the weights are; what is left over goes to the largest remainders."""
    exact = [Fraction(weight) for weight in weights]
    shares = [total * each / sum(exact) for each in exact]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda number: counts[number] - shares[number])
    for number in by_remainder[: total - sum(counts)]:
        counts[number] += 1
    return tuple(counts)
