"""The ResNet of the Caffe detectors: strides in the 1x1 convolutions, a max-pool without padding, frozen batch norm.

Parameters carry the names of the Hugging Face and detectron2 checkpoints (`backbone.stem.conv1.norm.weight`, ...).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from extraction.config import BLOCKS_PER_STAGE, DetectorConfig
from extraction.conventions import Conventions


class FrozenBatchNorm(nn.Module):
    """Batch norm with fixed statistics and fixed affine; its four tensors are buffers, so nothing trains them."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


class NormedConv(nn.Conv2d):
    """Convolution without bias, then frozen batch norm; checkpoints name them `<conv>.weight` and `<conv>.norm.*`."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, *, stride: int = 1, dilation: int = 1, eps: float
    ) -> None:
        padding = dilation * (kernel // 2)
        super().__init__(in_channels, out_channels, kernel, stride, padding, dilation, bias=False)
        self.norm = FrozenBatchNorm(out_channels, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut, which is a 1x1 convolution when the width or the stride changes."""

    def __init__(
        self, in_channels: int, hidden: int, out_channels: int, *, stride: int = 1, dilation: int = 1, eps: float
    ) -> None:
        super().__init__()
        self.conv1 = NormedConv(in_channels, hidden, 1, stride=stride, eps=eps)
        self.conv2 = NormedConv(hidden, hidden, 3, dilation=dilation, eps=eps)
        self.conv3 = NormedConv(hidden, out_channels, 1, eps=eps)
        changes = stride != 1 or in_channels != out_channels
        self.shortcut = NormedConv(in_channels, out_channels, 1, stride=stride, eps=eps) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.conv1(x))
        out = functional.relu(self.conv2(out))
        out = self.conv3(out)
        return functional.relu(out + (x if self.shortcut is None else self.shortcut(x)))


class Stem(nn.Module):
    """7x7 stride 2, then a 3x3 stride 2 max-pool without padding whose size is rounded up."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.conv1 = NormedConv(3, channels, 7, stride=2, eps=eps)

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.max_pool2d(
            functional.relu(self.conv1(pixels)), kernel_size=3, stride=2, padding=0, ceil_mode=True
        )


class Backbone(nn.Module):
    """Pixels -> res4 map: (N, 3, H, W) -> (N, 16 x base_channels, about H/16, about W/16)."""

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        base, eps = config.base_channels, conventions.norm_eps
        res2, res3, res4 = BLOCKS_PER_STAGE[config.depth]
        self.stem = Stem(base, eps)
        self.res2 = build_stage(res2, base, base, eps=eps)
        self.res3 = build_stage(res3, 4 * base, 2 * base, stride=2, eps=eps)
        self.res4 = build_stage(res4, 8 * base, 4 * base, stride=2, eps=eps)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.res4(self.res3(self.res2(self.stem(pixels))))


def build_stage(
    blocks: int, in_channels: int, hidden: int, *, stride: int = 1, dilation: int = 1, eps: float
) -> nn.Sequential:
    """`blocks` bottlenecks, out channels 4 x hidden; the stride is in the first, the dilation in every 3x3."""
    first = Bottleneck(in_channels, hidden, 4 * hidden, stride=stride, dilation=dilation, eps=eps)
    rest = [Bottleneck(4 * hidden, hidden, 4 * hidden, dilation=dilation, eps=eps) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)
