"""CUDA device of a detector: fused convolutions, calls recorded as graphs, and work queued ahead on a side stream.

One kernel makes a convolution and what follows it. A GPU runs hundreds of small kernels faster than Python can queue
them, so calls are recorded. Maps and proposals of photos are computed ahead, while the regions of those before are
described.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.fast.modes import Mode


class CudaConv:
    """A convolution of folded weights, optionally with a sum and a ReLU, in cuDNN's kernel that does it all: alone,
    bias, sum and ReLU would each read and write the map again.

    In float32 proper, convolutions of single cells are matrix products: a third faster, and for the few channels of the
    proposal network's last layers cuDNN sometimes takes Fourier transforms, twenty times as slow.

    Args:
        weight: (out, in, k, k) float64; bias: (out,) float64.
        conv: has stride, padding and dilation; mode: sets the type of weights and inputs.
        relu: whether a ReLU follows.
    Raises:
        ValueError: for NaN or infinity in a weight: some of these kernels turn the resulting NaN into 0.
    """

    def __init__(self, weight: Tensor, bias: Tensor, conv: nn.Conv2d, mode: Mode, *, relu: bool) -> None:
        if not bool(torch.isfinite(weight).all() & torch.isfinite(bias).all()):
            raise ValueError("a convolution's weights hold NaN or infinity; the weight file is damaged")
        dtype = mode.conv_dtype
        self.weight = weight.to(dtype).contiguous(memory_format=torch.channels_last)
        self._exact_bias = bias
        self.bias: Tensor | None = bias.to(dtype)
        self.stride, self.padding, self.dilation = conv.stride, [int(edge) for edge in conv.padding], conv.dilation
        self.groups, self.relu = conv.groups, relu
        is_product = weight.shape[2:] == (1, 1) and dtype == torch.float32 and not mode.tf32
        self.matrix = self.weight[:, :, 0, 0].t() if is_product else None

    def add_bias(self, other: CudaConv) -> None:
        """Takes over the bias of the shortcut, whose kernel has no place for one."""
        self._exact_bias = self._exact_bias + other._exact_bias
        self.bias, other.bias = self._exact_bias.to(self.weight.dtype), None

    def __call__(self, x: Tensor, *, onto: Tensor | None = None) -> Tensor:
        """As `FusedConv.__call__`."""
        if self.matrix is not None:
            x = x[:, :, :: self.stride[0], :: self.stride[1]].permute(0, 2, 3, 1)
            rows = x.reshape(-1, x.shape[3])
            if onto is None:
                out = rows @ self.matrix if self.bias is None else torch.addmm(self.bias, rows, self.matrix)
            else:
                out = onto.permute(0, 2, 3, 1).view(len(rows), -1).addmm_(rows, self.matrix)
                out = out if self.bias is None else out.add_(self.bias)
            out = out.view(*x.shape[:3], -1).permute(0, 3, 1, 2)
            return out.relu_() if self.relu else out
        where = (self.stride, self.padding, self.dilation, self.groups)
        if onto is not None and not self.relu:  # cuDNN's sum comes with a ReLU
            return onto.add_(functional.conv2d(x, self.weight, self.bias, *where))
        if onto is not None:
            return torch.cudnn_convolution_add_relu(x, self.weight, onto, 1.0, self.bias, *where)
        if self.relu:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, *where)
        return functional.conv2d(x, self.weight, self.bias, *where)


_SHAPES = 16  # number kept; few sizes are common in a data set


class RecordedCalls:
    """A function of tensors on a CUDA device, recorded when their shapes come for the second time and replayed from
    then on. The kernels are the same, and so are the bits.

    Args:
        function: tensors, and by name all else that decides the kernels -> tensors, all on the device; it never
            waits for them.
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
                # All recordings work in the same memory, for any stream that calls them.
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
    """Clears cuBLAS's workspaces, one for each thread and stream. One that was made while something was recorded lies
    in the memory of that recording. Kept, it would serve recordings of other parts, which run at the same time, and lie
    where earlier recordings of the same part work. Kernels wait for flags in it: for ever, if those are overwritten.
    """
    torch._C._cuda_clearCublasWorkspaces()


Result = TypeVar("Result")


def on_side_stream(
    device: torch.device, name: str, work: Callable[[], Result], *, after: torch.cuda.Event | None = None
) -> tuple[Result, torch.cuda.Event | None]:
    """Runs work on a side stream, ahead of the caller's queued work and without waiting for it. On other devices than
    CUDA's it simply runs.

    Args:
        name: of the queue; works of one name are done in their order.
        work: results that the caller uses later must be `record_on_stream` to the caller's stream.
        after: event to wait for.
    Returns:
        The result, and the event to wait for before the result is used (`wait_for`).
    """
    if device.type != "cuda":
        return work(), None
    stream = _stream(device, name)
    if after is not None:
        stream.wait_event(after)
    with torch.cuda.stream(stream):
        return work(), stream.record_event()


def wait_for(done: torch.cuda.Event | None) -> None:
    """Makes the caller's later work wait for it."""
    if done is not None:
        torch.cuda.current_stream().wait_event(done)


def record_on_stream(*tensors: torch.Tensor) -> None:
    """Keeps the memory of tensors from another stream until this stream's work on them is done."""
    for tensor in tensors:
        if tensor.device.type == "cuda":
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


@functools.cache
def _stream(device: torch.device, _name: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)
