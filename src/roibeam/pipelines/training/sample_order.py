"""Order of samples: the samples of a data set in each batch, for any batch size and number of processes.

Sources may be mixed by weight: `SourceMixture` gives the source of the n-th sample, and its number there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
            rounds: (n,) int64, number of finished rounds of the sample's source.
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
    """Whole numbers with this sum, in proportion to the weights; the rest goes to the largest remainders."""
    exact = [Fraction(weight) for weight in weights]
    shares = [total * each / sum(exact) for each in exact]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda number: counts[number] - shares[number])
    for number in by_remainder[: total - sum(counts)]:
        counts[number] += 1
    return tuple(counts)


GROUP, GROUPS = 16, 32  # samples that are alike in a row, and about how many such groups a window has


class SampleOrder:
    """An endless sequence of samples, every epoch in an order of its own.

    Args:
        num_samples: in one epoch.
        seed: of the orders; the epoch is added to it.
        likeness: a number for each sample. Samples of nearly the same number then stand in groups of 16, so that
            batches need little padding: each 512 samples of the shuffled epoch are sorted by it, cut into groups, and
            the groups shuffled. None shuffles samples alone.
        mixture: of sources that have `num_samples` together; None takes each sample once in an epoch.
    """

    def __init__(
        self,
        num_samples: int,
        seed: Sequence[int],
        likeness: Sequence[float] | None = None,
        mixture: SourceMixture | None = None,
    ) -> None:
        if num_samples < 1 or (likeness is not None and len(likeness) != num_samples):
            rest = "" if likeness is None else f" and {len(likeness)} numbers of likeness"
            raise ValueError(f"an order needs samples and a likeness for each or none, got {num_samples} samples{rest}")
        self._num_samples, self._seed = num_samples, tuple(seed)
        self._likeness = None if likeness is None else np.asarray(likeness, np.float64)
        self._mixture = mixture

    def batches(
        self, start_sample: int, *, batch_size: int, rank: int, num_ranks: int
    ) -> Iterator[list[tuple[int, int]]]:
        """Endless batches from sample `start_sample` on, see `TrainTask`.

        Args:
            rank, num_ranks: each round takes batch_size * num_ranks samples; rank r gets the r-th batch_size of them.
        Yields:
            for each sample of a batch its epoch, of a mixture that of its own source, and its place in the data set.
        """
        first = start_sample + rank * batch_size
        epoch, epochs, order = -1, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        while True:
            chosen = []
            for number in range(first, first + batch_size):
                if number // self._num_samples != epoch:
                    epoch = number // self._num_samples
                    epochs, order = self._epoch(epoch)
                at = number % self._num_samples
                chosen.append((int(epochs[at]), int(order[at])))
            yield chosen
            first += batch_size * num_ranks

    def places(self, count: int) -> np.ndarray:
        """(count,) int64: the first samples, as positions in the data set."""
        epochs = range(-(-count // self._num_samples))
        return np.concatenate([self._epoch(epoch)[1] for epoch in epochs])[:count]

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Epochs and places in the data set, each (num_samples,) int64."""
        random = np.random.default_rng([*self._seed, epoch])
        if self._mixture is None:
            epochs, order = np.broadcast_to(np.int64(epoch), self._num_samples), random.permutation(self._num_samples)
        else:
            epochs, order = self._mixture.epoch(self._seed, epoch)
        if self._likeness is None:
            return epochs, order
        groups: list[np.ndarray] = []
        for start in range(0, self._num_samples, GROUP * GROUPS):
            window = np.arange(start, min(start + GROUP * GROUPS, self._num_samples))
            window = window[np.argsort(self._likeness[order[window]], kind="stable")]
            # Where the first group ends is drawn, so that few samples do not make the same groups in every epoch.
            cut = np.split(window, range(int(random.integers(GROUP)) + 1, len(window), GROUP))
            groups += [random.permutation(cut[at]) for at in random.permutation(len(cut))]
        arranged = np.concatenate(groups)
        return epochs[arranged], order[arranged]
