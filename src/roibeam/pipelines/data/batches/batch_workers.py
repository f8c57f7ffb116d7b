"""Batches made ahead in other processes: the same batches in the same order as one process makes, only sooner."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from threading import Thread
from typing import Generic, NamedTuple, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from roibeam.pipelines.data.batches.batch_memory import BatchReader, BatchWriter, WrittenBatch

Place = TypeVar("Place")
Batch = TypeVar("Batch")

AHEAD = 2  # batches that each process has ready, at most


class _Failed(NamedTuple):
    """What making a batch raised, for the process that trains."""

    error: Exception


class _Made(NamedTuple):
    """A batch and the number of the worker that made it."""

    worker: int
    written: WrittenBatch


class _Share(IterableDataset[object], Generic[Place, Batch]):
    """What one worker makes: every n-th batch of n workers."""

    def __init__(self, places: Callable[[], Iterator[Place]], make: Callable[[Place], Batch]) -> None:
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
    places: Callable[[], Iterator[Place]], make: Callable[[Place], Batch], *, workers: int
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


def _leave_signals(worker: int) -> None:
    """Ctrl-C reaches all processes of a terminal, a launcher's SIGTERM all of a session or job; the one that trains
    decides what becomes of it, and needs batches to come to an end. It ends its workers with SIGTERM too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    Thread(target=_end_when_told_by_the_run, name="signals", daemon=True).start()


def _end_when_told_by_the_run() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
