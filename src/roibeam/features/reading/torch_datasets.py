"""Data sets of a store for torch's DataLoader: by index with any sampler, or as a stream of batches.

    DataLoader(RegionDataset(store), batch_size=32, shuffle=True)
    DataLoader(RegionDataset(store), batch_sampler=RegionBatchSampler(store, ...))
    DataLoader(RegionIterable(store, ...), batch_size=None)

The last two give the same batches in the order of `BatchOrder`, whatever the number of workers. A worker copies the
store's bytes once, into shared memory; arrays would be pickled and copied through a pipe. `TensorBatches(store)(ids)`
is one batch, `.one(id)` a `RegionSample`, `.samples(ids)` `RegionSamples`: the batch and each of its images. torch's
`default_collate` knows `RegionSample` from here on.
"""

from __future__ import annotations

import math
import operator
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np

from roibeam.features.batch import BatchBuffers, RegionBatch, RegionFilter, check_fields
from roibeam.features.reading.batch_order import BatchOrder, OrderOptions
from roibeam.features.store import FeatureStore, check_store

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_OF_IMAGES = ("image_hw", "num_regions", "image_feature")  # one row an image, also in a ragged batch
_OF_REGIONS = {each.name for each in fields(RegionBatch)} - {"image_ids", "offsets", "region_mask", *_OF_IMAGES}


class RegionSample(dict[str, Any]):
    """One image: `image_id`, `image_hw` (2,), `num_regions` (), and (K, ...) tensors named as in `RegionBatch`.

    It may be given more: `sample["label"] = 3`, or `sample | {"label": 3}`. torch's default collate makes a batch of
    it as always: what has a row for each region is padded, anything else collated by torch's own rules.

    Attributes:
        ragged: whether torch's default collate makes a ragged batch of such samples, or a padded one.
    """

    ragged: bool = False

    def __or__(self, other: Mapping[str, Any]) -> RegionSample:  # type: ignore[override]
        joined = RegionSample({**self, **other})
        joined.ragged = self.ragged
        return joined

    def copy(self) -> RegionSample:
        return self | {}


class RegionSamples(Sequence[RegionSample]):
    """The images of a batch that is assembled already. Each sample shares its memory.

    Attributes:
        batch: what torch's default collate makes of them.
    """

    def __init__(self, batch: dict[str, Any], *, ragged: bool) -> None:
        self.batch, self._ragged = batch, ragged

    def __len__(self) -> int:
        return len(self.batch["image_ids"])

    @overload
    def __getitem__(self, index: int) -> RegionSample: ...

    @overload
    def __getitem__(self, index: slice) -> list[RegionSample]: ...

    def __getitem__(self, index: int | slice) -> RegionSample | list[RegionSample]:
        places = range(len(self))[index]
        return self._sample(places) if isinstance(places, int) else [self._sample(place) for place in places]

    def _sample(self, place: int) -> RegionSample:
        batch = self.batch
        sample = RegionSample(image_id=batch["image_ids"][place])
        sample.ragged = self._ragged
        sample.update({name: batch[name][place] for name in _OF_IMAGES if name in batch})
        first, last = batch["offsets"][place : place + 2].tolist() if self._ragged else (0, int(sample["num_regions"]))
        for name, values in batch.items():
            if name not in ("image_ids", "offsets", "region_mask", *_OF_IMAGES):
                sample[name] = values[first:last] if self._ragged else values[place, :last]
        return sample


class BatchOptions(TypedDict, total=False):
    """The arguments of `TensorBatches` beside the store, for those who make them."""

    fields: Collection[str]
    ragged: bool
    regions: RegionFilter | None
    check: bool
    reused_buffers: int | None


class IterableOptions(BatchOptions, OrderOptions, total=False):
    """The arguments of `RegionIterable` beside the store."""


class TensorBatches:
    """Image ids in, a dictionary of tensors out, named as in `RegionBatch`; what a batch does not have is left out.

    Shapes and dtypes are those of `RegionBatch`, but that ids of classes and attributes are int64: torch indexes with
    no uint16, and computes nothing with it. Raises ValueError for an unknown field, or less than two buffers.

    Args:
        fields, ragged, regions, check: see `FeatureStore.get_batch`.
        reused_buffers: None makes each batch in memory of its own. With a number n, the n-th batch after it overwrites
            a batch, which saves the operating system making fresh pages; counted in each worker for itself.
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
        check_store(store)
        check_fields(fields)
        store.check_filter(regions)
        if reused_buffers is not None and reused_buffers < 2:
            raise ValueError(f"reused_buffers must be at least 2 (the batch in use and the next), got {reused_buffers}")
        self.store = store
        self.fields, self.ragged, self.regions, self._check = tuple(fields), ragged, regions, check
        self._reused_buffers = reused_buffers
        self._ring: deque[BatchBuffers] = deque()
        self._ring_pid = os.getpid()

    def __repr__(self) -> str:
        return f"TensorBatches({self.summary()})"

    def summary(self) -> str:
        """The store and what is read of it, for people."""
        what = ", ".join(("boxes", "classes", *self.fields))
        chosen = "" if self.regions is None else f", {self.regions!r}"
        return f"{self.store!r}, {what}, {'ragged' if self.ragged else 'padded'}{chosen}"

    def __call__(self, image_ids: Sequence[str]) -> dict[str, Any]:
        """Tensors, and `image_ids`, a list; errors as `get_batch`."""
        return _tensors(self._assemble(image_ids, ragged=self.ragged, out=self._buffers()))

    def samples(self, image_ids: Sequence[str]) -> RegionSamples:
        """The same batch, which can be taken apart too."""
        return RegionSamples(self(image_ids), ragged=self.ragged)

    def one(self, image_id: str) -> RegionSample:
        """One image, in memory of its own; errors as `get_batch`."""
        batch = _tensors(self._assemble([image_id], ragged=True, out=_TensorBuffers()))
        sample = RegionSamples(batch, ragged=True)[0]
        sample.ragged = self.ragged
        return sample

    def prefetch(self, image_ids: Sequence[str]) -> None:
        """Prefetches what a batch of these images will read."""
        self.store.prefetch(image_ids, fields=self.fields)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ring": deque()}

    def _assemble(self, image_ids: Sequence[str], *, ragged: bool, out: BatchBuffers) -> RegionBatch:
        return self.store.get_batch(
            image_ids, fields=self.fields, ragged=ragged, regions=self.regions, check=self._check, out=out
        )

    def _buffers(self) -> BatchBuffers:
        if self._reused_buffers is None:
            return _TensorBuffers()
        if self._ring_pid != os.getpid() or not self._ring:
            # New after a fork too: workers that wrote to the ring of their parent would all write to the same memory.
            self._ring = deque(_TensorBuffers() for _ in range(self._reused_buffers))
            self._ring_pid = os.getpid()
        self._ring.rotate(-1)
        return self._ring[0]


def collate_samples(samples: Sequence[RegionSample], **_options: object) -> dict[str, Any]:
    """The batch of these images, as `TensorBatches` makes it; what torch's default collate calls.

    Args:
        _options: torch's `collate_fn_map`, of no use here.
    Raises:
        ValueError: when the images have different fields, or one of another width, or one has not a row for each of
            its regions.
    """
    from torch.utils.data import default_collate

    if isinstance(samples, RegionSamples):
        return samples.batch
    first = samples[0]
    counts = [_num_regions(sample) for sample in samples]
    batch: dict[str, Any] = {"image_ids": [sample["image_id"] for sample in samples]}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        values: list[Any] = [sample.get(name) for sample in samples]
        if name in _OF_IMAGES:
            _check_alike(samples, name, skipped=0)
            batch[name] = _stacked(values)
        elif name in _OF_REGIONS or _has_rows(values, counts):
            _check_alike(samples, name, skipped=1)
            batch[name] = _in_a_row(values) if first.ragged else _padded(values, max(counts))
        elif name != "image_id":
            _check_alike(samples, name, skipped=None)
            batch[name] = default_collate(values)
    return batch | _places(counts, ragged=first.ragged)


def _num_regions(sample: RegionSample) -> int:
    """Number of regions by `num_regions` and each array; ValueError where they differ."""
    count = int(sample["num_regions"])
    rows = {name: len(sample[name]) for name in sample if name in _OF_REGIONS}
    if other := [name for name, length in rows.items() if length != count]:
        raise ValueError(
            f"record {sample['image_id']!r}: {other[0]} has {rows[other[0]]} rows, and num_regions is {count}; keep "
            f"the same rows of {', '.join(rows)}, and change num_regions too"
        )
    return count


def _has_rows(values: Sequence[Any], counts: Sequence[int]) -> bool:
    """Whether these are tensors that have a row for each region of their images."""
    return all(
        getattr(value, "ndim", 0) > 0 and hasattr(value, "new_empty") and len(value) == count
        for value, count in zip(values, counts, strict=True)
    )


def _check_alike(samples: Sequence[RegionSample], name: str, *, skipped: int | None) -> None:
    """ValueError where samples differ in whether they have it, or in its dtype and shape.

    Args:
        skipped: dimensions that may differ; None where torch's collate looks at what is there.
    """
    kinds = [_kind(sample.get(name), skipped) for sample in samples]
    for sample, kind in zip(samples, kinds, strict=True):
        if kind != kinds[0]:
            raise ValueError(
                f"record {sample['image_id']!r} has {name} {kind}, record {samples[0]['image_id']!r} {kinds[0]}; "
                f"a batch needs one kind"
            )


def _kind(value: Any, skipped: int | None) -> str:
    if value is None:
        return "none"
    return type(value).__name__ if skipped is None else f"{[*value.shape[skipped:]]} {value.dtype}"


def _stacked(values: Sequence[Tensor]) -> Tensor:
    made = _empty((len(values), *values[0].shape), values[0].dtype)
    for row, value in zip(made, values, strict=True):
        row.copy_(value)
    return made


def _in_a_row(values: Sequence[Tensor]) -> Tensor:
    made, first = _empty((sum(map(len, values)), *values[0].shape[1:]), values[0].dtype), 0
    for value in values:
        made[first : first + len(value)] = value
        first += len(value)
    return made


def _padded(values: Sequence[Tensor], most: int) -> Tensor:
    made = _empty((len(values), most, *values[0].shape[1:]), values[0].dtype)
    for row, value in zip(made, values, strict=True):
        row[: len(value)] = value
        row[len(value) :] = 0
    return made


def _places(counts: Sequence[int], *, ragged: bool) -> dict[str, Tensor]:
    """Positions of each image's regions in a batch."""
    import torch

    if ragged:
        return {"offsets": torch.tensor([0, *np.cumsum(counts).tolist()])}
    return {"region_mask": torch.arange(max(counts)) < torch.tensor(counts)[:, None]}


class _TensorBuffers(BatchBuffers):
    """Memory that belongs to tensors, with ids as int64."""

    def __init__(self) -> None:
        super().__init__(lambda count: _block(count).numpy())

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return super().array(name, shape, np.dtype(np.int64) if dtype == np.uint16 else dtype)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return _block(math.prod(shape) * dtype.itemsize).view(dtype).reshape(*shape)


def _block(count: int) -> Tensor:
    """(count,) uint8; shared with the main process when this is a DataLoader's worker."""
    import torch
    from torch.utils.data import get_worker_info

    if get_worker_info() is None:
        return torch.empty(count, dtype=torch.uint8)
    # Like torch's default_collate. `share_memory_` would first make the memory elsewhere and then copy it.
    storage = torch.UntypedStorage._new_shared(count)
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _tensors(batch: RegionBatch) -> dict[str, Any]:
    arrays = {name: value for name, value in vars(batch).items() if isinstance(value, np.ndarray)}
    return {"image_ids": list(batch.image_ids), **{name: _tensor(array) for name, array in arrays.items()}}


def _tensor(array: np.ndarray) -> Tensor:
    """The array as a view of the tensor that owns its memory: torch then knows that it is shared, and numpy's bfloat16,
    which `torch.from_numpy` refuses, is a dtype like others."""
    import torch

    owner: Any = array
    while not isinstance(owner, torch.Tensor):
        owner = owner.base
    # Arrays of `BatchBuffers` begin where their block does.
    return owner[: array.nbytes].view(getattr(torch, str(array.dtype))).reshape(array.shape)


def known_to_torch(kind: type, collate: Callable[..., Any]) -> None:
    """Lets torch's default collate call this for a list of that type; a machine without torch has no DataLoader."""
    try:
        from torch.utils.data._utils.collate import default_collate_fn_map
    except ModuleNotFoundError:
        return
    # Torch's documented way for custom types; a sample would be taken for any dictionary of equal sizes else.
    default_collate_fn_map[kind] = collate


known_to_torch(RegionSample, collate_samples)


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

    def __init__(self, store: FeatureStore, **options: Unpack[BatchOptions]) -> None:
        self._store = store
        self._batches = TensorBatches(store, **options)
        self._starts = shard_starts(store)

    def __repr__(self) -> str:
        return f"RegionDataset({self._batches.summary()})"

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
    """Epoch, length and position, shared by the two ways of feeding a DataLoader.

    Only the training loop knows how many batches were trained on; workers run ahead of it. So the loop counts, and the
    position moves by `load_state_dict` and `set_epoch` alone: iterating again starts from the same place.
    """

    def __init__(self, store: FeatureStore, options: OrderOptions) -> None:
        self._order = BatchOrder(store, **({"at_epoch_end": "drop"} | options))

    def __len__(self) -> int:
        """Batches of this rank from the position to the end of its epoch; TypeError when batches never end
        (`at_epoch_end="go on"`)."""
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
            batches_taken: number that the training loop has taken from its DataLoader since it began to iterate. For an
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


def _refuse_to_collate(_batches: Sequence[_StreamedBatch], **_options: object) -> None:
    raise ValueError("a RegionIterable makes whole batches: give DataLoader(dataset, batch_size=None)")


class RegionIterable(_Resumable, IterableDataset):  # type: ignore[type-arg]  # object has no [Any] without torch
    """A stream of batches, see `TensorBatches`; hand it to a DataLoader with `batch_size=None`.

    Worker w of W makes batches w, w + W, ... of its rank, and a DataLoader takes them from its workers in turn, so the
    order is that of one worker.

    Args:
        fields, ragged, regions, check, reused_buffers: see `RegionDataset`.
        order: see `RegionBatchSampler`.
    """

    def __init__(self, store: FeatureStore, **options: Unpack[IterableOptions]) -> None:
        import torch

        given: dict[str, Any] = dict(options)
        order: Any = {name: given.pop(name) for name in OrderOptions.__annotations__ if name in given}
        self._batches = TensorBatches(store, **given)
        super().__init__(store, order)
        # Persistent workers keep their copy of this object between epochs; a shared number reaches them.
        self._position = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __repr__(self) -> str:
        return f"RegionIterable({self._batches.summary()}, {self._order!r})"

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
