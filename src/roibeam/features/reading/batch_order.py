"""Order of a store's images in training: epochs, batches for any number of ranks, and a stream of them made ahead.

    sample n  ->  epoch n // N, place n % N  ->  window of the shuffled shards  ->  (shard, row)

Batch j of what follows the position goes to rank j % num_ranks, so all ranks together take consecutive samples of
`EpochOrder`, and the position is one number of samples, which means the same for any batch size and number of ranks.
Ranks and workers read together what one reader would. `BatchStream` makes batches in a thread while one is trained on.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import Any, Required, TypedDict, Unpack

import numpy as np

from roibeam.features.batch import BatchBuffers, RegionBatch, RegionFilter, check_fields
from roibeam.features.shard.manifest import ShardEntry
from roibeam.features.store import FeatureStore, check_store
from roibeam.messages import plural

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
                plural(self._order.num_samples, "image"), batch_size, plural(num_ranks, "rank"),
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
        0 at the position; `number` is below `num_batches`."""
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
        """Goes on from a state, also of another batch size or number of ranks; ValueError for a state of another store,
        share, seed or window, naming what differs."""
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


class BatchStream:
    """Endless batches. A batch and the one after it are valid together; a third one uses the memory of the first again.

    Args:
        store: open for as long as the stream is used.
        order: which images in which batch, see `BatchOrder`; `at_epoch_end` is "go on".
        fields, ragged, regions, check: see `FeatureStore.get_batch`.
        ahead: batches that are assembled or read from the disk in advance; as many more buffers.
        allocate: memory of the batches, see `BatchBuffers`; pinned memory makes copies to a GPU overlap.
    Raises:
        ValueError: for numbers out of range, or a store without records.
    """

    def __init__(
        self,
        store: FeatureStore,
        *,
        fields: Collection[str] = ("features",),
        ragged: bool = False,
        regions: RegionFilter | None = None,
        check: bool = False,
        ahead: int = 2,
        allocate: Callable[[int], np.ndarray] | None = None,
        **order: Unpack[OrderOptions],
    ) -> None:
        if ahead < 1:
            raise ValueError(f"ahead {ahead} must be at least 1")
        check_fields(fields)
        check_store(store)
        store.check_filter(regions)
        self._store = store
        self._options: dict[str, Any] = {
            "fields": tuple(fields), "ragged": ragged, "regions": regions, "check": check
        }  # fmt: skip
        if order.get("at_epoch_end", "go on") != "go on":
            raise ValueError('a BatchStream never ends; RegionIterable has epochs (at_epoch_end="drop" or "short")')
        self._order = BatchOrder(store, **order)
        self._ahead, self._allocate = ahead, allocate

    def __repr__(self) -> str:
        return f"BatchStream({self._store!r}, {self._order!r})"

    @property
    def num_samples(self) -> int:
        """Images in an epoch, of all ranks together."""
        return self._order.num_samples

    @property
    def next_sample(self) -> int:
        """Samples that all ranks together have taken, if each took as many batches as this one."""
        return self._order.next_sample

    def __iter__(self) -> Iterator[RegionBatch]:
        """Goes on where the stream stands; taking a batch moves it on."""
        buffers = deque(BatchBuffers(self._allocate) for _ in range(self._ahead + 1))
        waiting: deque[Future[RegionBatch]] = deque()
        order, number = copy(self._order), 0  # the position moves as batches are taken, reading runs ahead
        # One thread: it copies without the interpreter's lock, and memory is what limits it.
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
            try:
                while True:
                    while len(waiting) < self._ahead:
                        ids = self._store.ids_at(order.places(number))
                        self._store.prefetch(ids, fields=self._options["fields"])
                        buffers.rotate(-1)
                        waiting.append(pool.submit(self._store.get_batch, ids, out=buffers[0], **self._options))
                        number += 1
                    batch = waiting.popleft().result()
                    self._order.next_sample = self._order.position_after(1)
                    yield batch
            finally:
                for future in waiting:
                    future.cancel()

    def state_dict(self) -> dict[str, Any]:
        """Position of the stream, as plain JSON values; the same for all ranks between two steps."""
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state, also of another batch size or number of ranks; errors as `BatchOrder`'s."""
        self._order.load_state_dict(state)
