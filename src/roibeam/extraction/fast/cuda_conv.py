"""The network's convolutions on a CUDA device: one kernel for a convolution and what follows it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.fast.modes import Mode


class CudaConv:
    """A convolution of folded weights, then, if asked for, a sum and a ReLU, in cuDNN's kernel that does it all: alone,
    bias, sum and ReLU would each read and write the map again.

    In float32 proper, convolutions of single cells are matrix products: a third quicker, and for the few channels of
    the proposal network's last layers cuDNN has been seen to take Fourier transforms, twenty times as slow.

    Args:
        weight: (out, in, k, k) float64.
        bias: (out,) float64.
        conv: stride, padding and dilation.
        mode: type of the weights, and of what it is called with.
        relu: whether a ReLU follows.
    Raises:
        ValueError: for NaN or infinity in a weight: some of these kernels make 0 of the NaN that comes of it.
    """

    def __init__(self, weight: Tensor, bias: Tensor, conv: nn.Conv2d, mode: Mode, *, relu: bool) -> None:
        if not bool(torch.isfinite(weight).all() & torch.isfinite(bias).all()):
            raise ValueError("a convolution's weights hold NaN or infinity; the weight file is damaged")
        dtype = mode.conv_dtype
        self.weight = weight.to(dtype).contiguous(memory_format=torch.channels_last)
        self._exact_bias = bias
        self.bias: Tensor | None = bias.to(dtype)
        self.stride, self.padding, self.dilation = conv.stride, [int(edge) for edge in conv.padding], conv.dilation
        self.relu = relu
        is_product = weight.shape[2:] == (1, 1) and dtype == torch.float32 and not mode.tf32
        self.matrix = self.weight[:, :, 0, 0].t() if is_product else None

    def add_bias(self, other: CudaConv) -> None:
        """Takes over the bias of the shortcut, whose kernel has no place for one."""
        self._exact_bias = self._exact_bias + other._exact_bias
        self.bias, other.bias = self._exact_bias.to(self.weight.dtype), None

    def __call__(self, x: Tensor, *, onto: Tensor | None = None) -> Tensor:
        """
        Args:
            x: (N, C, h, w), channels-last.
            onto: what is added before the ReLU; it may be overwritten with the result.
        """
        if self.matrix is not None:
            return self._product(x, self.matrix, onto)
        where = (self.stride, self.padding, self.dilation, 1)
        if onto is not None:
            assert self.relu, "cuDNN's sum comes with a ReLU"
            return torch.cudnn_convolution_add_relu(x, self.weight, onto, 1.0, self.bias, *where)
        if self.relu:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, *where)
        return functional.conv2d(x, self.weight, self.bias, *where)

    def _product(self, x: Tensor, matrix: Tensor, onto: Tensor | None) -> Tensor:
        x = x[:, :, :: self.stride[0], :: self.stride[1]].permute(0, 2, 3, 1)
        rows = x.reshape(-1, x.shape[3])
        if onto is None:
            out = rows @ matrix if self.bias is None else torch.addmm(self.bias, rows, matrix)
        else:
            out = onto.permute(0, 2, 3, 1).view(len(rows), -1).addmm_(rows, matrix)
            out = out if self.bias is None else out.add_(self.bias)
        out = out.view(*x.shape[:3], -1).permute(0, 3, 1, 2)
        return out.relu_() if self.relu else out
