"""Calls recorded as CUDA graphs: a GPU does hundreds of small kernels sooner than Python can ask for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

_SHAPES = 16  # that are kept; the photos of a data set have few sizes that are common


class RecordedCalls:
    """A function of tensors on a CUDA device, recorded when their shapes come for the second time and replayed from
    then on. The kernels are the same, and so are the bits.

    Args:
        function: tensors, and by name what else decides the kernels -> tensors, all on the device; it never waits for
            them.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._seen: OrderedDict[Hashable, _Recording | None] = OrderedDict()
        self._pool: Any = None
        self._read: torch.cuda.Event | None = None  # when the results of the last replay have been copied

    def __call__(self, *inputs: Tensor, **fixed: Hashable) -> tuple[Tensor, ...]:
        key = (tuple(each.shape for each in inputs), tuple(fixed.items()))
        device = inputs[0].device
        with self._lock:
            if key not in self._seen:
                self._seen[key] = None
                if len(self._seen) > _SHAPES:
                    torch.cuda.synchronize(device)  # it may be running
                    self._seen.popitem(last=False)
                return self._function(*inputs, **fixed)
            self._seen.move_to_end(key)
            stream = torch.cuda.current_stream(device)
            if self._read is not None:
                # All recordings work in the same memory, whichever stream they are called from.
                stream.wait_event(self._read)
            recording = self._seen[key]
            if recording is None:
                self._pool = self._pool or torch.cuda.graph_pool_handle()
                recording = self._seen[key] = _Recording(partial(self._function, **fixed), inputs, self._pool)
            results = recording(inputs)
            self._read = stream.record_event()
            return results


class _Recording:
    def __init__(self, function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...], pool: Any) -> None:
        self._inputs = [each.clone() for each in inputs]
        self._graph = torch.cuda.CUDAGraph()
        function(*self._inputs)  # each thread has libraries to set up, which cannot be done while it is recorded
        _forget_workspaces()
        # Other threads, which decode into pinned memory, may allocate meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._results = function(*self._inputs)
        _forget_workspaces()

    def __call__(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for own, each in zip(self._inputs, inputs, strict=True):
            own.copy_(each)
        self._graph.replay()
        return tuple(result.clone() for result in self._results)


def _forget_workspaces() -> None:
    """cuBLAS keeps a workspace for each thread and stream. One that was made while something was recorded lies in the
    memory of that recording. Kept, it would serve recordings of other parts, which run at the same time, and lie where
    earlier recordings of the same part work. Kernels wait for flags in it: for ever, if those are overwritten.
    """
    torch._C._cuda_clearCublasWorkspaces()
