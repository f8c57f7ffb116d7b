"""Stores for torch's DataLoader: by index with a sampler of batches, or as a stream of batches.

    DataLoader(RegionDataset(store), batch_sampler=RegionBatchSampler(store, ...), collate_fn=RegionDataset.collate)
    DataLoader(RegionIterable(store, ...), batch_size=None)

Both give the same batches in the same order, that of `BatchOrder`, whatever the number of workers. In a loop of one's
own, `BatchStream` needs no second process at all.

A worker's batch reaches the main process through shared memory. Numpy arrays would be pickled and copied through a
pipe, tensors of ordinary memory copied once more; here a worker copies the store's bytes once, to where both processes
see them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from roibeam.features.batch import BatchBuffers, RegionBatch, check_fields
from roibeam.features.reading.batch_order import BatchOrder, OrderOptions
from roibeam.features.region_filter import RegionFilter
from roibeam.features.store import FeatureStore

if TYPE_CHECKING:
    import torch

try:
    from torch.utils.data import IterableDataset
except ModuleNotFoundError:
    # A machine without torch has no DataLoader to hand this to, but all of `features` can be imported there.
    IterableDataset = object  # type: ignore[assignment, misc]


class TensorBatches:
    """Image ids in, a dictionary of tensors out, named as in `RegionBatch`; what a batch does not have is left out.

    Args:
        fields, ragged, regions: see `FeatureStore.get_batch`.
        reused_buffers: None makes each batch in memory of its own. With a number n, the n-th batch after it overwrites
            a batch, which saves the operating system making fresh pages; counted in each worker for itself.
    Raises:
        ValueError: for an unknown field, or less than two buffers.
    """

    def __init__(
        self,
        store: FeatureStore,
        *,
        fields: Collection[str] = ("features",),
        ragged: bool = False,
        regions: RegionFilter | None = None,
        reused_buffers: int | None = None,
    ) -> None:
        check_fields(fields)
        if reused_buffers is not None and reused_buffers < 2:
            raise ValueError(f"reused_buffers must be at least 2 (the batch in use and the next), got {reused_buffers}")
        self.store = store
        self.fields, self.ragged, self.regions = tuple(fields), ragged, regions
        self._reused_buffers = reused_buffers
        self._ring: deque[BatchBuffers] = deque()
        self._ring_pid = os.getpid()

    def __repr__(self) -> str:
        return f"TensorBatches({self.told()})"

    def told(self) -> str:
        """The store and what is read of it, for people."""
        what = ", ".join(("boxes", "classes", *self.fields))
        chosen = "" if self.regions is None else f", {self.regions!r}"
        return f"{self.store!r}, {what}, {'ragged' if self.ragged else 'padded'}{chosen}"

    def __call__(self, image_ids: Sequence[str]) -> dict[str, Any]:
        """Tensors with the dtypes and shapes of `RegionBatch`, and `image_ids`, a list; errors as `get_batch`."""
        return _tensors(self._assemble(image_ids, ragged=self.ragged, out=self._buffers()))

    def one(self, image_id: str) -> dict[str, Any]:
        """One image without the axis of images, in memory of its own, and its `image_id`; errors as `get_batch`."""
        batch = _tensors(self._assemble([image_id], ragged=True, out=BatchBuffers(_memory)))
        del batch["offsets"]
        sample: dict[str, Any] = {"image_id": batch.pop("image_ids")[0]}
        for name in ("image_hw", "num_regions", "image_feature"):
            if name in batch:
                sample[name] = batch.pop(name)[0]
        return sample | batch

    def prefetch(self, image_ids: Sequence[str]) -> None:
        """Asks the operating system for what a batch of these images will read."""
        self.store.prefetch(image_ids, fields=self.fields)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ring": deque()}

    def _assemble(self, image_ids: Sequence[str], *, ragged: bool, out: BatchBuffers) -> RegionBatch:
        return self.store.get_batch(image_ids, fields=self.fields, ragged=ragged, regions=self.regions, out=out)

    def _buffers(self) -> BatchBuffers:
        if self._reused_buffers is None:
            return BatchBuffers(_memory)
        if self._ring_pid != os.getpid() or not self._ring:
            # After a fork too: workers that wrote to the ring of their parent would all write to the same memory.
            self._ring = deque(BatchBuffers(_memory) for _ in range(self._reused_buffers))
            self._ring_pid = os.getpid()
        self._ring.rotate(-1)
        return self._ring[0]


class RegionDataset:
    """Every record of a store by its number; picklable, for workers by fork, spawn and forkserver.

    Number i is the i-th id of `store.ids()`: shards by ascending number, key order inside each. A store that grows
    appends shards, so numbers stay.

    Args:
        fields, ragged, regions: see `FeatureStore.get_batch`.
        reused_buffers: see `TensorBatches`; `prefetch_factor + 3` keeps a batch and the one after it valid.
    """

    def __init__(
        self,
        store: FeatureStore,
        *,
        fields: Collection[str] = ("features",),
        ragged: bool = False,
        regions: RegionFilter | None = None,
        reused_buffers: int | None = None,
    ) -> None:
        self._store = store
        self._batches = TensorBatches(
            store, fields=fields, ragged=ragged, regions=regions, reused_buffers=reused_buffers
        )
        self._starts = shard_starts(store)

    def __repr__(self) -> str:
        return f"RegionDataset({self._batches.told()})"

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One image: `image_id`, `image_hw` (2,), `num_regions` (), and (K, ...) tensors named as in `RegionBatch`.

        Raises:
            IndexError: for a number outside 0..len - 1.
        """
        return self._batches.one(self._ids([index])[0])

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        """A whole batch, see `TensorBatches`; torch's DataLoader calls this for the numbers of a batch."""
        return self._batches(self._ids(indices))

    @staticmethod
    def collate(batch: dict[str, Any]) -> dict[str, Any]:
        """For `collate_fn`: what `__getitems__` gives is a batch already."""
        if not isinstance(batch, dict):
            raise ValueError(
                f"expected the batch that RegionDataset.__getitems__ gives, got a {type(batch).__name__}: another "
                f"dataset around it asks for single images; pad them in a collate_fn of your own"
            )
        return batch

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


class RegionIterable(_Resumable, IterableDataset):
    """A stream of batches, see `TensorBatches`; hand it to a DataLoader with `batch_size=None`.

    Worker w of W makes batches w, w + W, ... of its rank, and a DataLoader takes them from its workers in turn, so the
    order is that of one worker.

    Args:
        fields, ragged, regions, reused_buffers: see `RegionDataset`.
        order: see `RegionBatchSampler`.
    """

    def __init__(
        self,
        store: FeatureStore,
        *,
        fields: Collection[str] = ("features",),
        ragged: bool = False,
        regions: RegionFilter | None = None,
        reused_buffers: int | None = None,
        **order: Unpack[OrderOptions],
    ) -> None:
        import torch

        super().__init__(store, order)
        self._batches = TensorBatches(
            store, fields=fields, ragged=ragged, regions=regions, reused_buffers=reused_buffers
        )
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
                yield self._batches(ids)
        if upcoming is not None:
            yield self._batches(upcoming)

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


def _memory(count: int) -> np.ndarray:
    """(count,) uint8 that belongs to a tensor; shared with the main process when this is a DataLoader's worker."""
    import torch
    from torch.utils.data import get_worker_info

    if get_worker_info() is None:
        return torch.empty(count, dtype=torch.uint8).numpy()
    # As torch's default_collate does. `share_memory_` would first make the memory elsewhere and then copy it.
    storage = torch.UntypedStorage._new_shared(count)
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _tensors(batch: RegionBatch) -> dict[str, Any]:
    arrays = {name: value for name, value in vars(batch).items() if isinstance(value, np.ndarray)}
    return {"image_ids": list(batch.image_ids), **{name: _tensor(array) for name, array in arrays.items()}}


def _tensor(array: np.ndarray) -> torch.Tensor:
    """The array as a view of the tensor that owns its memory: torch then knows that it is shared, and numpy's bfloat16,
    which `torch.from_numpy` refuses, is a dtype like others."""
    import torch

    owner: Any = array
    while not isinstance(owner, torch.Tensor):
        owner = owner.base
    # Arrays of `BatchBuffers` begin where their block does.
    return owner[: array.nbytes].view(getattr(torch, str(array.dtype))).reshape(array.shape)
