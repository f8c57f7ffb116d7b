"""Batches made ahead in other processes, in shared memory that is used again.

They are the same batches in the same order as one process makes, only sooner. Fresh memory costs more than filling it:
the system hands out every page of a batch, and once more in the process that reads it. So a block keeps its pages in
both, and holds another batch when nothing of the last one is alive any more.

block: 64 bytes, the first of them 1 while a batch lives in it; then the tensors, each at a multiple of 64.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import signal
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from threading import Thread
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

_ALIGNMENT = 64


def empty_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised memory for a large part of a batch; in a process that writes batches, in the block of the batch."""
    if _writer is not None:
        return _writer.empty(shape, dtype)
    return torch.empty(shape, dtype=dtype)


@dataclass(frozen=True, eq=False)
class WrittenBatch:
    """A batch on its way, small enough for a pipe.

    Attributes:
        block: number of its block, among those of its writer.
        memory: the block itself, when it is sent for the first time; else None.
        given_up: a block that no batch will lie in any more; None for none.
        places: of each tensor: first byte in the block, dtype, shape.
        rest: the pickled batch without its tensors.
    """

    block: int
    memory: Tensor | None
    given_up: int | None
    places: tuple[tuple[int, torch.dtype, tuple[int, ...]], ...]
    rest: bytes


class BatchWriter:
    """Writes batches, of any type that pickles, into blocks; what `empty_tensor` gave lies in one already.

    One for each process; between two calls of `write`, `empty_tensor` gives parts of the batch to come.
    """

    def __init__(self) -> None:
        global _writer
        _writer = self
        self._blocks: dict[int, Tensor] = {}
        self._next_number = 0
        self._block: int | None = None  # where the batch being made goes
        self._used = _ALIGNMENT

    def begin(self) -> None:
        """Chooses a block that is free for the next batch; there may be none."""
        free = [number for number, block in self._blocks.items() if not int(block[0])]
        self._block = max(free, key=lambda number: len(self._blocks[number]), default=None)
        self._used = _ALIGNMENT

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An empty tensor in the block, where it has room; else in memory that `write` copies from."""
        start, count = self._used, math.prod(shape) * dtype.itemsize
        if self._block is None or start + count > len(self._blocks[self._block]):
            return torch.empty(shape, dtype=dtype)
        self._used = start + _aligned(count)
        return _part(self._blocks[self._block], start, dtype, shape)

    def write(self, batch: Any) -> WrittenBatch:
        tensors: list[Tensor] = []
        rest = io.BytesIO()
        _WithoutTensors(rest, tensors).dump(batch)
        starts = [self._start_in_block(tensor) for tensor in tensors]
        needed = self._used + sum(
            _aligned(tensor.nbytes) for tensor, start in zip(tensors, starts, strict=True) if start is None
        )
        memory, given_up = None, None
        if self._block is None or needed > len(self._blocks[self._block]):
            if self._block is not None:
                given_up = self._block  # too small; tensors that are in it keep it until they are copied
                del self._blocks[given_up]
            size = _ALIGNMENT + sum(_aligned(tensor.nbytes) for tensor in tensors)
            memory = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size + size // 4))
            self._block, self._used = self._next_number, _ALIGNMENT
            self._blocks[self._block], self._next_number = memory, self._next_number + 1
            starts = [None] * len(tensors)
        block = self._blocks[self._block]
        places = []
        for tensor, start in zip(tensors, starts, strict=True):
            if start is None:
                start, self._used = self._used, self._used + _aligned(tensor.nbytes)
                _part(block, start, tensor.dtype, tuple(tensor.shape)).copy_(tensor)
            places.append((start, tensor.dtype, tuple(tensor.shape)))
        block[0] = 1
        return WrittenBatch(self._block, memory, given_up, tuple(places), rest.getvalue())

    def _start_in_block(self, tensor: Tensor) -> int | None:
        """Start of a tensor in the block; None for one that is elsewhere, or has gaps."""
        if self._block is None or not tensor.is_contiguous():
            return None
        block = self._blocks[self._block]
        inside = tensor.untyped_storage().data_ptr() == block.untyped_storage().data_ptr()
        return tensor.data_ptr() - block.data_ptr() if inside else None


class BatchReader:
    """Reads what one `BatchWriter` wrote. The tensors of a batch are those of its block, which is free when the last of
    them is gone, however they were sliced or kept."""

    def __init__(self) -> None:
        self._blocks: dict[int, np.ndarray] = {}

    def read(self, written: WrittenBatch) -> Any:
        if written.memory is not None:
            self._blocks[written.block] = written.memory.numpy()
        if written.given_up is not None:
            del self._blocks[written.given_up]
        block = self._blocks[written.block]
        # All tensors share the storage that is made of this view, and nothing else holds the view.
        view = block[:]
        weakref.finalize(view, _set_free, block, os.getpid()).atexit = False
        whole = torch.from_numpy(view)
        del view
        tensors = [_part(whole, *place) for place in written.places]
        return _WithTensors(io.BytesIO(written.rest), tensors).load()


_writer: BatchWriter | None = None  # of this process, where it makes batches for another


def _set_free(block: np.ndarray, reader: int) -> None:
    if os.getpid() == reader:  # a fork has copies of the views; when they go, the batch may still live in its parent
        block[0] = 0


def _part(block: Tensor, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return block[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


class _WithoutTensors(pickle.Pickler):
    """Puts tensors aside, in the order in which `_WithTensors` takes them."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors

    def persistent_id(self, given: Any) -> int | None:
        if not isinstance(given, Tensor):
            return None
        self._tensors.append(given)
        return len(self._tensors) - 1


class _WithTensors(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


Job = TypeVar("Job")
Batch = TypeVar("Batch")

AHEAD = 2  # batches that each process has ready, at most


class _Failed(NamedTuple):
    """Error of making a batch, for the process that trains."""

    error: Exception


class _Made(NamedTuple):
    """A batch and the number of the worker that made it."""

    worker: int
    written: WrittenBatch


class _Share(IterableDataset[object], Generic[Job, Batch]):
    """Batches of one worker: every n-th batch of n workers."""

    def __init__(self, places: Callable[[], Iterator[Job]], make: Callable[[Job], Batch]) -> None:
        self._places, self._make = places, make

    def __iter__(self) -> Iterator[_Made | _Failed]:
        worker, writer = get_worker_info(), BatchWriter()
        assert worker is not None
        for place in islice(self._places(), worker.id, None, worker.num_workers):
            writer.begin()
            try:
                made: _Made | _Failed = _Made(worker.id, writer.write(self._make(place)))
            except Exception as error:  # raised where the batch's turn has come, as one line and not as a traceback
                made = _Failed(error)
            yield made


def batches_ahead(
    places: Callable[[], Iterator[Job]], make: Callable[[Job], Batch], *, workers: int
) -> Iterator[Batch]:
    """The batches of all places, in their order.

    Args:
        places: gives the endless stream of what batches are made of; every worker goes through it.
        make: makes a batch of one of them; must depend on nothing else.
        workers: processes, forked from this one: stores and captions are shared with it. Batches come back through
            shared memory (/dev/shm), which is used again when nothing of a batch is alive.
    Raises:
        Exception: what `make` raised, when that batch's turn has come.
    """
    loader: DataLoader[object] = DataLoader(
        _Share(places, make),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD,
        worker_init_fn=_leave_signals,
        generator=torch.Generator(),  # else it would draw from the generator that dropout draws from
        multiprocessing_context="fork",
    )
    readers = [BatchReader() for _ in range(workers)]
    for made in loader:
        if isinstance(made, _Failed):
            raise made.error
        assert isinstance(made, _Made)
        yield readers[made.worker].read(made.written)


def _leave_signals(_worker: int) -> None:
    """Ctrl-C reaches all processes of a terminal, a launcher's SIGTERM all of a session or job; the one that trains
    decides what becomes of it, and needs batches to come to an end. It ends its workers with SIGTERM too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    Thread(target=_exit_when_signalled_by_parent, name="signals", daemon=True).start()


def _exit_when_signalled_by_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
