"""Batches of a store for a training loop: in the order of `BatchOrder`, made by a thread while one is trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import Any, Unpack

import numpy as np

from roibeam.features.batch import BatchBuffers, RegionBatch, check_fields
from roibeam.features.reading.batch_order import BatchOrder, OrderOptions
from roibeam.features.region_filter import RegionFilter
from roibeam.features.store import FeatureStore, check_store


class BatchStream:
    """Endless batches. A batch and the one after it are valid together; when a third is asked for, the memory of the
    first is used again.

    Args:
        store: open for as long as the stream is used.
        order: which images in which batch, see `BatchOrder`; `at_epoch_end` is "go on".
        fields, ragged, regions, check: see `FeatureStore.get_batch`.
        ahead: batches that are assembled or read from the disk before they are asked for; as many more buffers.
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
        begun, number = copy(self._order), 0  # the position moves as batches are taken, what is asked for runs ahead
        # One thread: it copies without the interpreter's lock, and memory is what limits it.
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
            try:
                while True:
                    while len(waiting) < self._ahead:
                        ids = self._store.ids_at(begun.places(number))
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
        """Where the stream stands, as plain JSON values; the same for all ranks between two steps."""
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state, also of another batch size or number of ranks; errors as `BatchOrder`'s."""
        self._order.load_state_dict(state)
