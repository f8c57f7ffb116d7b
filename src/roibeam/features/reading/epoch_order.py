"""The order in which an epoch reads a store: shard after shard, shuffled inside windows, the same for every reader.

    sample n  ->  epoch n // N, place n % N  ->  window of the shuffled shards  ->  (shard, row)

A sample is one number. Whoever takes every k-th batch of that sequence, any number of ranks and workers, reads together
what one reader would; and where a run stands is how many samples it has taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DEFAULT_WINDOW = 8192  # samples; at 100 kB a record, a window of 0.8 GB comes from a few shards
_SHARDS, _WINDOW = 1, 2  # keep the two random streams of an epoch apart


class EpochOrder:
    """An endless sequence of (shard, row), a new order in each epoch.

    Shards come in a random order, so that a disk or a network reads a few files at a time, and the samples of each
    window of that sequence are shuffled: what a shuffle buffer does, but with every place known beforehand. A window
    as large as the store is a full shuffle, one of 1 reads whole shards in key order.

    Args:
        shard_sizes: records of each shard; shards without records are passed over.
        seed: one seed is one sequence, on any machine.
        window: samples that are shuffled together.
        shuffle: False gives shards and rows in their stored order, epoch after epoch.
    Raises:
        ValueError: when there is no record, or a number is out of range.
    """

    def __init__(
        self, shard_sizes: Sequence[int], *, seed: int = 0, window: int = DEFAULT_WINDOW, shuffle: bool = True
    ) -> None:
        self._sizes = np.asarray(shard_sizes, np.int64)
        if self._sizes.ndim != 1 or (self._sizes < 0).any() or not self._sizes.sum():
            raise ValueError(f"an order needs shards with records, got sizes {list(shard_sizes)[:10]}")
        if seed < 0 or window < 1:
            raise ValueError(f"seed {seed} must not be negative, window {window} must be at least 1")
        self._seed, self._window, self._shuffle = seed, window, shuffle
        self.num_samples = int(self._sizes.sum())
        self._epoch = -1
        self._shards = self._starts = np.empty(0, np.int64)

    def places(self, start: int, count: int) -> np.ndarray:
        """(count, 2) int64: shard and row of samples `start` to `start + count - 1`."""
        if start < 0 or count < 0:
            raise ValueError(f"samples {start} to {start + count}: numbers start at 0")
        parts = []
        while count:
            epoch, place = divmod(start, self.num_samples)
            window, inside = divmod(place, self._window)
            first = window * self._window
            length = min(self._window, self.num_samples - first)
            taken = min(count, length - inside)
            rows = np.arange(inside, inside + taken)
            if self._shuffle:
                key = [_WINDOW, self._seed, epoch, window]
                rows = np.random.default_rng(key).permutation(length)[inside : inside + taken]
            parts.append(self._in_epoch(epoch, first + rows))
            start, count = start + taken, count - taken
        return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)

    def _in_epoch(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Places in the sequence of the epoch's shards -> (shard, row)."""
        if epoch != self._epoch:
            shards = np.flatnonzero(self._sizes)
            if self._shuffle:
                shards = np.random.default_rng([_SHARDS, self._seed, epoch]).permutation(shards)
            self._epoch, self._shards = epoch, shards
            self._starts = np.concatenate([[0], np.cumsum(self._sizes[shards])])
        at = np.searchsorted(self._starts, places, side="right") - 1
        return np.stack([self._shards[at], places - self._starts[at]], axis=1)
