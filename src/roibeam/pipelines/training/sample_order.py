"""Which samples of a data set make up which batch: one order for any batch size and number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from roibeam.pipelines.training.source_mixture import SourceMixture

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
            told = "" if likeness is None else f" and {len(likeness)} numbers of likeness"
            raise ValueError(f"an order needs samples and a likeness for each or none, got {num_samples} samples{told}")
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
        """(count,) int64: the first so many samples, as places in the data set."""
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
