"""Which samples of a data set make up which batch: one order for any batch size and number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def batch_places(
    start_sample: int, *, rank: int, num_ranks: int, batch_size: int, num_samples: int, seed: Sequence[int]
) -> Iterator[list[tuple[int, int]]]:
    """Endless batches from sample `start_sample` on, see `TrainTask`; every epoch has an order of its own.

    Args:
        rank, num_ranks: each round takes batch_size * num_ranks samples; rank r gets the r-th batch_size of them.
        num_samples: in one epoch.
        seed: of the orders; the epoch is added to it.
    Yields:
        for each sample of a batch its epoch and its place in the data set.
    """
    first = start_sample + rank * batch_size
    epoch, order = -1, np.empty(0, dtype=np.int64)
    while True:
        chosen = []
        for number in range(first, first + batch_size):
            if number // num_samples != epoch:
                epoch = number // num_samples
                order = np.random.default_rng([*seed, epoch]).permutation(num_samples)
            chosen.append((epoch, int(order[number % num_samples])))
        yield chosen
        first += batch_size * num_ranks
