"""Batches of a store for a training loop: in the order of `EpochOrder`, assembled by a thread while one is trained on.

Batch j of the sequence goes to rank j % num_ranks, so all ranks together take consecutive samples, and where a run
stands is one number, which means the same for any number of ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from features.batch import BatchBuffers, RegionBatch, check_fields
from features.epoch_order import DEFAULT_WINDOW, EpochOrder
from features.region_filter import RegionFilter
from features.store import FeatureStore

_STATE_FORMAT = 1


class BatchStream:
    """Endless batches. A batch and the one after it are valid together; when a third is asked for, the memory of the
    first is used again.

    Args:
        store: open for as long as the stream is used.
        batch_size: images per batch and rank.
        rank, num_ranks: this process among those that train together.
        seed, window, shuffle: see `EpochOrder`.
        fields, ragged, regions: see `FeatureStore.get_batch`.
        ahead: batches that are assembled or read from the disk before they are asked for; as many more buffers.
        allocate: memory of the batches, see `BatchBuffers`; pinned memory makes copies to a GPU overlap.
    Raises:
        ValueError: for numbers out of range, or a store without records.
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
        fields: Collection[str] = ("features",),
        ragged: bool = False,
        regions: RegionFilter | None = None,
        ahead: int = 2,
        allocate: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        if batch_size < 1 or ahead < 1 or not 0 <= rank < num_ranks:
            raise ValueError(
                f"batch_size {batch_size} and ahead {ahead} must be at least 1, rank {rank} one of {num_ranks} ranks"
            )
        check_fields(fields)
        self._store, self._batch_size, self._rank, self._num_ranks = store, batch_size, rank, num_ranks
        self._options: dict[str, Any] = {"fields": tuple(fields), "ragged": ragged, "regions": regions}
        self._settings = {"seed": seed, "window": window, "shuffle": shuffle, "content": store.manifest.content_digest}
        self._order = EpochOrder(store.shard_sizes, seed=seed, window=window, shuffle=shuffle)
        self._ahead, self._allocate = ahead, allocate
        self._next_sample = 0

    @property
    def num_samples(self) -> int:
        """Images in an epoch, of all ranks together."""
        return self._order.num_samples

    @property
    def next_sample(self) -> int:
        """Samples that all ranks together have taken, if each took as many batches as this one."""
        return self._next_sample

    def __iter__(self) -> Iterator[RegionBatch]:
        """Goes on where the stream stands; taking a batch moves it on."""
        buffers = deque(BatchBuffers(self._allocate) for _ in range(self._ahead + 1))
        waiting: deque[Future[RegionBatch]] = deque()
        asked = self._next_sample
        # One thread: it copies without the interpreter's lock, and memory is what limits it.
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
            try:
                while True:
                    while len(waiting) < self._ahead:
                        ids = self._ids(asked)
                        self._store.prefetch(ids if "features" in self._options["fields"] else ())
                        buffers.rotate(-1)
                        waiting.append(pool.submit(self._store.get_batch, ids, out=buffers[0], **self._options))
                        asked += self._batch_size * self._num_ranks
                    batch = waiting.popleft().result()
                    self._next_sample += self._batch_size * self._num_ranks
                    yield batch
            finally:
                for future in waiting:
                    future.cancel()

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as plain JSON values; the same for all ranks between two steps."""
        return {"format": _STATE_FORMAT, "next_sample": self._next_sample, **self._settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state, also of another batch size or number of ranks.

        Raises:
            ValueError: for a state of another store, seed or window, naming what differs.
        """
        different = [
            f"{name} {state.get(name)!r}, here {value!r}"
            for name, value in {"format": _STATE_FORMAT, **self._settings}.items()
            if state.get(name) != value
        ]
        if different or not isinstance(state.get("next_sample"), int) or state["next_sample"] < 0:
            raise ValueError(
                f"this state is of another stream ({'; '.join(different) or 'next_sample is no count'}); "
                f"open the stream with the settings it was saved with"
            )
        self._next_sample = state["next_sample"]

    def _ids(self, round_start: int) -> list[str]:
        places = self._order.places(round_start + self._rank * self._batch_size, self._batch_size)
        return [self._store.id_at(int(shard), int(row)) for shard, row in places]
