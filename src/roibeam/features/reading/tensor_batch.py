"""Batches of a store as torch tensors; in a DataLoader's worker assembled directly in shared memory.

A worker's batch reaches the main process through shared memory. Numpy arrays would be pickled and copied through a
pipe, tensors of ordinary memory copied once more; here the store's bytes are copied once, to where both processes see
them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from roibeam.features.batch import BatchBuffers, RegionBatch, check_fields
from roibeam.features.region_filter import RegionFilter
from roibeam.features.store import FeatureStore

if TYPE_CHECKING:
    import torch


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
