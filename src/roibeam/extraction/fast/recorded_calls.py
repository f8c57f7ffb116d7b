"""Calls recorded as CUDA graphs: a GPU does hundreds of small kernels sooner than Python can ask for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_SHAPES = 16  # that are kept; the photos of a data set have few sizes that are common


class RecordedCalls:
    """A function of one tensor on a CUDA device, recorded when a shape comes for the second time and replayed from then
    on. The kernels are the same, and so are the bits.

    Args:
        function: tensor -> tensors, all on the device, by kernels that depend on the shape alone; it never waits for
            them.
    """

    def __init__(self, function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._seen: OrderedDict[torch.Size, _Recording | None] = OrderedDict()
        self._pool: Any = None
        self._read: torch.cuda.Event | None = None  # when the results of the last replay have been copied

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        with self._lock:
            if x.shape not in self._seen:
                self._seen[x.shape] = None
                if len(self._seen) > _SHAPES:
                    torch.cuda.synchronize(x.device)  # it may be running
                    self._seen.popitem(last=False)
                return self._function(x)
            self._seen.move_to_end(x.shape)
            stream = torch.cuda.current_stream(x.device)
            if self._read is not None:
                # All recordings work in the same memory, whichever stream they are called from.
                stream.wait_event(self._read)
            recording = self._seen[x.shape]
            if recording is None:
                self._pool = self._pool or torch.cuda.graph_pool_handle()
                recording = self._seen[x.shape] = _Recording(self._function, x, self._pool)
            results = recording(x)
            self._read = stream.record_event()
            return results


class _Recording:
    def __init__(self, function: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor, pool: Any) -> None:
        self._input = x.clone()
        self._graph = torch.cuda.CUDAGraph()
        function(self._input)  # each thread has libraries to set up, which cannot be done while it is recorded
        # Other threads, which decode into pinned memory, may allocate meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._results = function(self._input)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        self._input.copy_(x)
        self._graph.replay()
        return tuple(result.clone() for result in self._results)
