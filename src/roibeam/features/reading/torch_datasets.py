"""Stores for torch's DataLoader: by index with any sampler, or as a stream of batches.

    DataLoader(RegionDataset(store), batch_size=32, shuffle=True)
    DataLoader(RegionDataset(store), batch_sampler=RegionBatchSampler(store, ...))
    DataLoader(RegionIterable(store, ...), batch_size=None)

The last two give the same batches in the same order, that of `BatchOrder`, whatever the number of workers. In a loop of
one's own, `BatchStream` needs no second process at all.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from typing import Any, Unpack

import numpy as np

from roibeam.features.reading.batch_order import BatchOrder, OrderOptions
from roibeam.features.reading.tensor_batches import RegionSample, RegionSamples, TensorBatches, known_to_torch
from roibeam.features.region_filter import RegionFilter
from roibeam.features.store import FeatureStore

try:
    from torch.utils.data import IterableDataset
except ModuleNotFoundError:
    # A machine without torch has no DataLoader to hand this to, but all of `features` can be imported there.
    IterableDataset = object  # type: ignore[assignment, misc]


class RegionDataset:
    """Every record of a store by its number; picklable, for workers by fork, spawn and forkserver.

    A DataLoader over it needs no collate function: its batches are those of `TensorBatches`. So are batches of datasets
    around it, such as `ConcatDataset` or one that adds labels.

    Number i is the i-th id of `store.ids()`: shards by ascending number, key order inside each. A store that grows
    appends shards, so numbers stay.

    Args:
        fields, ragged, regions, check: see `FeatureStore.get_batch`.
        reused_buffers: see `TensorBatches`; `prefetch_factor + 3` keeps a batch and the one after it valid.
    """

    def __init__(
        self,
        store: FeatureStore,
        *,
        fields: Collection[str] = ("features",),
        ragged: bool = False,
        regions: RegionFilter | None = None,
        check: bool = False,
        reused_buffers: int | None = None,
    ) -> None:
        self._store = store
        self._batches = TensorBatches(
            store, fields=fields, ragged=ragged, regions=regions, check=check, reused_buffers=reused_buffers
        )
        self._starts = shard_starts(store)

    def __repr__(self) -> str:
        return f"RegionDataset({self._batches.told()})"

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> RegionSample:
        """One image, see `RegionSample`.

        Raises:
            IndexError: for a number outside 0..len - 1.
            TypeError: for what is no number.
        """
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(
                f"a RegionDataset counts its records: expected a number, got {index!r:.80}; store[...] reads by image "
                f"id, and a RegionBatchSampler is a DataLoader's batch_sampler"
            ) from None
        return self._batches.one(self._ids([number])[0])

    def __getitems__(self, indices: Sequence[int]) -> RegionSamples:
        """Many images, assembled as a batch at once; torch's DataLoader calls this for the numbers of a batch."""
        return self._batches.samples(self._ids(indices))

    def _ids(self, indices: Sequence[int]) -> list[str]:
        numbers = np.asarray(indices, np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"{self._store.path} has records 0 to {len(self) - 1}, asked for {list(indices)[:10]}")
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        return self._store.ids_at(np.stack([shards, numbers - self._starts[shards]], axis=1))


class _Resumable:
    """What the two ways of feeding a DataLoader share: an epoch, a length, a position.

    Only the training loop knows how many batches were trained on; workers run ahead of it. So the loop counts, and the
    position moves by `load_state_dict` and `set_epoch` alone: iterating again starts from the same place.
    """

    def __init__(self, store: FeatureStore, options: OrderOptions) -> None:
        self._order = BatchOrder(store, **({"at_epoch_end": "drop"} | options))

    def __len__(self) -> int:
        """Batches of this rank from the position to the end of its epoch.

        Raises:
            TypeError: when batches never end (`at_epoch_end="go on"`).
        """
        if self._order.num_batches is None:
            raise TypeError('batches never end with at_epoch_end="go on"; "drop" or "short" end an epoch')
        return self._order.num_batches

    @property
    def num_samples(self) -> int:
        """Images in an epoch, of all ranks together."""
        return self._order.num_samples

    @property
    def epoch(self) -> int:
        """The epoch of the position, from 0."""
        return self._order.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration reads this epoch, from its start, or from the position if that is inside it."""
        self._order.set_epoch(epoch)

    def state_dict(self, batches_taken: int) -> dict[str, Any]:
        """The position as plain JSON values, for any number of ranks and workers and any batch size.

        Args:
            batches_taken: how many the training loop has taken from its DataLoader since it began to iterate. Of an
                epoch that ends "short", keep the state of rank 0.
        """
        return self._order.state_dict(batches_taken)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there; errors as `BatchOrder`'s."""
        self._order.load_state_dict(state)


class RegionBatchSampler(_Resumable):
    """`batch_sampler` over a `RegionDataset` of the same store: lists of record numbers.

    Args:
        order: which images in which batch, see `BatchOrder`; `at_epoch_end` is "drop" unless given.
    """

    def __init__(self, store: FeatureStore, **order: Unpack[OrderOptions]) -> None:
        super().__init__(store, order)
        self._starts = shard_starts(store)

    def __repr__(self) -> str:
        return f"RegionBatchSampler({self._order!r})"

    def __iter__(self) -> Iterator[list[int]]:
        order = copy(self._order)
        for number in batch_numbers(order):
            places = order.places(number)
            yield (self._starts[places[:, 0]] + places[:, 1]).tolist()


class _StreamedBatch(dict[str, Any]):
    """A batch of `RegionIterable`, which a DataLoader must not make a batch of again."""


def _refuse_to_collate(batches: Sequence[_StreamedBatch], *, collate_fn_map: object = None) -> None:
    raise ValueError("a RegionIterable makes whole batches: give DataLoader(dataset, batch_size=None)")


class RegionIterable(_Resumable, IterableDataset):
    """A stream of batches, see `TensorBatches`; hand it to a DataLoader with `batch_size=None`.

    Worker w of W makes batches w, w + W, ... of its rank, and a DataLoader takes them from its workers in turn, so the
    order is that of one worker.

    Args:
        fields, ragged, regions, check, reused_buffers: see `RegionDataset`.
        order: see `RegionBatchSampler`.
    """

    def __init__(
        self,
        store: FeatureStore,
        *,
        fields: Collection[str] = ("features",),
        ragged: bool = False,
        regions: RegionFilter | None = None,
        check: bool = False,
        reused_buffers: int | None = None,
        **order: Unpack[OrderOptions],
    ) -> None:
        import torch

        self._batches = TensorBatches(
            store, fields=fields, ragged=ragged, regions=regions, check=check, reused_buffers=reused_buffers
        )
        super().__init__(store, order)
        # Persistent workers keep their copy of this object between epochs; a shared number reaches them.
        self._position = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __repr__(self) -> str:
        return f"RegionIterable({self._batches.told()}, {self._order!r})"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        order = copy(self._order)
        order.next_sample = int(self._position.item())
        upcoming: list[str] | None = None
        for number in batch_numbers(order, first, step):
            # One batch behind, so that the disk reads the next one meanwhile.
            ids, upcoming = upcoming, self._batches.store.ids_at(order.places(number))
            self._batches.prefetch(upcoming)
            if ids is not None:
                yield _StreamedBatch(self._batches(ids))
        if upcoming is not None:
            yield _StreamedBatch(self._batches(upcoming))

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._position[0] = self._order.next_sample

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._position[0] = self._order.next_sample


def batch_numbers(order: BatchOrder, first: int = 0, step: int = 1) -> Iterator[int]:
    """Every `step`-th batch number of what is left of an epoch, or of all time."""
    number = first
    while order.num_batches is None or number < order.num_batches:
        yield number
        number += step


def shard_starts(store: FeatureStore) -> np.ndarray:
    """(shards + 1,) int64: the number of each shard's first record, and of all."""
    return np.concatenate([[0], np.cumsum(store.shard_sizes, dtype=np.int64)]).astype(np.int64)


known_to_torch(_StreamedBatch, _refuse_to_collate)
