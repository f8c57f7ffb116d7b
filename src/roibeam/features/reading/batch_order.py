"""Which images make up which batch of a store, for any number of ranks, and where a run stands.

Batch j of what follows the position goes to rank j % num_ranks, so all ranks together take consecutive samples of
`EpochOrder`, and the position is one number of samples, which means the same for any batch size and number of ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Required, TypedDict

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.reading.epoch_order import DEFAULT_WINDOW, EpochOrder
from roibeam.features.shard.manifest import ShardEntry
from roibeam.features.store import FeatureStore, check_store

log = logging.getLogger(__name__)
_STATE_FORMAT = 1
AT_EPOCH_END = ("go on", "drop", "short")


class OrderOptions(TypedDict, total=False):
    """The arguments of `BatchOrder`, for those who make one."""

    batch_size: Required[int]
    rank: int
    num_ranks: int
    seed: int
    window: int
    shuffle: bool
    shards: Sequence[ShardEntry] | None
    at_epoch_end: str


class BatchOrder:
    """Batches of one rank, counted from the position `next_sample`.

    Args:
        batch_size: images per batch and rank.
        rank, num_ranks: this process among those that train together.
        seed, window, shuffle: see `EpochOrder`.
        shards: read these only, such as a share of `plan_ranks`; None for all. A share is an order of its own with
            epochs of its own length, and `rank` and `num_ranks` then count the processes that read this same share: a
            rank that has a share for itself is rank 0 of 1.
        at_epoch_end: what becomes of samples that fill no whole round of batches. "go on": a batch takes the first ones
            of the next epoch too, and batches never end. "drop": the epoch ends before them, after equally many full
            batches for each rank. "short": the epoch has every sample once; its last batch may be short and
            some ranks have a batch less.
    Raises:
        ValueError: for numbers out of range, shards of another store, or no records.
    """

    def __init__(
        self,
        store: FeatureStore,
        *,
        batch_size: int,
        rank: int = 0,
        num_ranks: int = 1,
        seed: int = 0,
        window: int = DEFAULT_WINDOW,
        shuffle: bool = True,
        shards: Sequence[ShardEntry] | None = None,
        at_epoch_end: str = "go on",
    ) -> None:
        if batch_size < 1 or not 0 <= rank < num_ranks:
            raise ValueError(f"batch_size {batch_size} must be at least 1, rank {rank} one of {num_ranks} ranks")
        if at_epoch_end not in AT_EPOCH_END:
            raise ValueError(f"at_epoch_end {at_epoch_end!r}: choose one of {', '.join(AT_EPOCH_END)}")
        check_store(store)
        entries = store.manifest.shards
        known = set(entries)
        if shards is not None and (foreign := [entry.shard for entry in shards if entry not in known]):
            raise ValueError(f"shards {foreign[:10]} are not of the store {store.path}; plan over its manifest.shards")
        mine = None if shards is None else {entry.shard for entry in shards}
        sizes = [entry.num_records if mine is None or entry.shard in mine else 0 for entry in entries]
        self._order = EpochOrder(sizes, seed=seed, window=window, shuffle=shuffle)
        if at_epoch_end == "drop" and batch_size * num_ranks > self._order.num_samples:
            log.warning(
                'an epoch of %s has no batch of %d for each of %s, and at_epoch_end="drop" leaves out smaller ones: '
                "there is nothing to read",
                counted(self._order.num_samples, "image"), batch_size, counted(num_ranks, "rank"),
            )  # fmt: skip
        self._batch_size, self._rank, self._num_ranks = batch_size, rank, num_ranks
        self._at_epoch_end = at_epoch_end
        self._settings = {
            "seed": seed,
            "window": window,
            "shuffle": shuffle,
            "content": store.manifest.content_digest,
            "shards": None if mine is None else sorted(mine),
        }
        self.next_sample = 0

    def __repr__(self) -> str:
        share = f", rank {self._rank} of {self._num_ranks}" if self._num_ranks > 1 else ""
        at = f"at image {self.next_sample % self.num_samples:,} of {self.num_samples:,} in epoch {self.epoch}"
        return f"BatchOrder(batches of {self._batch_size}{share}, {at})"

    @property
    def num_samples(self) -> int:
        """Images in an epoch, of all ranks together."""
        return self._order.num_samples

    @property
    def epoch(self) -> int:
        """The epoch of the position, from 0."""
        return self.next_sample // self.num_samples

    @property
    def num_batches(self) -> int | None:
        """Batches of this rank from the position to the end of its epoch; None when batches never end."""
        left = (self.epoch + 1) * self.num_samples - self.next_sample
        if self._at_epoch_end == "go on":
            return None
        if self._at_epoch_end == "drop":
            return left // (self._batch_size * self._num_ranks)
        return (-(-left // self._batch_size) - self._rank + self._num_ranks - 1) // self._num_ranks

    def places(self, number: int) -> np.ndarray:
        """(n, 2) int64: shard (place in the manifest) and row of the images of this rank's batch `number`, counted from
        0 at the position; what lies behind `num_batches` is not asked for."""
        first = self.next_sample + (number * self._num_ranks + self._rank) * self._batch_size
        count = self._batch_size
        if self._at_epoch_end == "short":
            count = min(count, (self.epoch + 1) * self.num_samples - first)
        return self._order.places(first, count)

    def position_after(self, batches: int) -> int:
        """Samples that all ranks together have taken when each took so many batches from the position on."""
        position = self.next_sample + batches * self._batch_size * self._num_ranks
        # The last round of an epoch that ends short is not a whole one.
        return position if self._at_epoch_end == "go on" else min(position, (self.epoch + 1) * self.num_samples)

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; a position inside it, such as that of a loaded state, stays."""
        if epoch < 0:
            raise ValueError(f"epoch {epoch}: epochs are counted from 0")
        if epoch != self.epoch:
            self.next_sample = epoch * self.num_samples

    def state_dict(self, batches: int = 0) -> dict[str, Any]:
        """The position after so many batches, as plain JSON values; the same for all ranks between two steps."""
        return {"format": _STATE_FORMAT, "next_sample": self.position_after(batches), **self._settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state, also of another batch size or number of ranks.

        Raises:
            ValueError: for a state of another store, share, seed or window, naming what differs.
        """
        different = [
            f"{name} {state.get(name)!r}, here {value!r}"
            for name, value in {"format": _STATE_FORMAT, **self._settings}.items()
            if state.get(name) != value
        ]
        position = state.get("next_sample")
        if different or type(position) is not int or position < 0:
            raise ValueError(
                f"this state is of another stream ({'; '.join(different) or 'next_sample is no count'}); "
                f"open the stream with the settings it was saved with"
            )
        self.next_sample = position
