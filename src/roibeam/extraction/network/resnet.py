"""ResNet of the detectors; the place of its strides and the pooling of its stem are conventions.

Its norms are frozen unless another factory is given, for training a network from scratch.

Parameters carry the names of the Hugging Face and detectron2 checkpoints (`backbone.stem.conv1.norm.weight`, ...).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.network.config import BLOCKS_PER_STAGE, DetectorConfig
from roibeam.extraction.network.conventions import Conventions


class FrozenBatchNorm(nn.Module):
    """Batch norm with fixed statistics and fixed affine; its four tensors are buffers, so nothing trains them."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self._known: tuple[object, Tensor, Tensor] | None = None
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )

    def gain_and_shift(self) -> tuple[Tensor, Tensor]:
        """(C,) each: the norm of x is x * gain + shift. Computed anew when one of the four tensors has changed."""
        own = (self.weight, self.bias, self.running_mean, self.running_var)
        has_versions = not any(tensor.is_inference() for tensor in own)
        key = [(tensor.data_ptr(), tensor.dtype, tensor._version) for tensor in own] if has_versions else None
        if self._known is None or key is None or self._known[0] != key:
            with torch.inference_mode(not has_versions), torch.no_grad():  # what is known may be trained with later
                gain = self.weight * torch.rsqrt(self.running_var + self.eps)
                self._known = (key, gain, self.bias - self.running_mean * gain)
        return self._known[1:]


# Channels and epsilon -> a norm. `nn.BatchNorm2d` is one: trained with it, the weights fit the frozen norm, which
# then computes the same as it in evaluation mode.
NormFactory = Callable[[int, float], nn.Module]


def group_norm(channels: int, eps: float) -> nn.GroupNorm:
    """Group norm of 32 groups, or of as many as divide narrower layers; it has no statistics, so its weights fit only a
    network that is built with it."""
    return nn.GroupNorm(math.gcd(32, channels), channels, eps)


class NormedConv(nn.Conv2d):
    """Convolution without bias, then the norm; checkpoints name them `<conv>.weight` and `<conv>.norm.*`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        eps: float,
        norm: NormFactory = FrozenBatchNorm,
    ) -> None:
        padding = dilation * (kernel // 2)
        super().__init__(in_channels, out_channels, kernel, stride, padding, dilation, bias=False)
        self.norm = norm(out_channels, eps)

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.norm, FrozenBatchNorm):
            return self.norm(super().forward(x))
        # A fixed norm scales the weights instead of every map: less time and memory in a training step.
        gain, shift = self.norm.gain_and_shift()
        scaled = self.weight * gain.view(-1, 1, 1, 1)
        return functional.conv2d(x, scaled, shift, self.stride, self.padding, self.dilation)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut, which is a 1x1 convolution if the width or the stride changes."""

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        out_channels: int,
        conventions: Conventions,
        *,
        stride: int = 1,
        dilation: int = 1,
        norm: NormFactory = FrozenBatchNorm,
    ) -> None:
        super().__init__()
        conv = partial(NormedConv, eps=conventions.norm_eps, norm=norm)
        stride_1x1, stride_3x3 = (stride, 1) if conventions.stride_conv == "1x1" else (1, stride)
        self.conv1 = conv(in_channels, hidden, 1, stride=stride_1x1)
        self.conv2 = conv(hidden, hidden, 3, stride=stride_3x3, dilation=dilation)
        self.conv3 = conv(hidden, out_channels, 1)
        changes = stride != 1 or in_channels != out_channels
        self.shortcut = conv(in_channels, out_channels, 1, stride=stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        # In place: no backward pass of a convolution or a norm reads its output.
        out = functional.relu(self.conv1(x), inplace=True)
        out = functional.relu(self.conv2(out), inplace=True)
        out = self.conv3(out)
        out += x if self.shortcut is None else self.shortcut(x)
        return functional.relu(out, inplace=True)


class Stem(nn.Module):
    """7x7 stride 2, then a 3x3 stride 2 max-pool: Caffe's without padding and rounded up, or torchvision's."""

    def __init__(self, channels: int, conventions: Conventions, *, norm: NormFactory = FrozenBatchNorm) -> None:
        super().__init__()
        self.conv1 = NormedConv(3, channels, 7, stride=2, eps=conventions.norm_eps, norm=norm)
        self.caffe_pool = conventions.stem_pool == "pad-0-ceil"

    def forward(self, pixels: Tensor) -> Tensor:
        return self.pool(functional.relu(self.conv1(pixels), inplace=True))

    def pool(self, x: Tensor) -> Tensor:
        padding = 0 if self.caffe_pool else 1
        return functional.max_pool2d(x, kernel_size=3, stride=2, padding=padding, ceil_mode=self.caffe_pool)


class Backbone(nn.Module):
    """Pixels -> res4 map: (N, 3, H, W) -> (N, 16 x base_channels, about H/16, about W/16)."""

    def __init__(
        self, config: DetectorConfig, conventions: Conventions, *, norm: NormFactory = FrozenBatchNorm
    ) -> None:
        super().__init__()
        base = config.base_channels
        res2, res3, res4, _ = BLOCKS_PER_STAGE[config.depth]
        self.stem = Stem(base, conventions, norm=norm)
        self.res2 = build_stage(res2, base, base, conventions, norm=norm)
        self.res3 = build_stage(res3, 4 * base, 2 * base, conventions, stride=2, norm=norm)
        self.res4 = build_stage(res4, 8 * base, 4 * base, conventions, stride=2, norm=norm)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.res4(self.res3(self.res2(self.stem(pixels))))


def build_stage(
    blocks: int,
    in_channels: int,
    hidden: int,
    conventions: Conventions,
    *,
    stride: int = 1,
    dilation: int = 1,
    norm: NormFactory = FrozenBatchNorm,
) -> nn.Sequential:
    """`blocks` bottlenecks, out channels 4 x hidden; the stride is in the first, the dilation in every 3x3."""
    block = partial(Bottleneck, hidden=hidden, out_channels=4 * hidden, conventions=conventions, norm=norm)
    first = block(in_channels, stride=stride, dilation=dilation)
    return nn.Sequential(first, *(block(4 * hidden, dilation=dilation) for _ in range(blocks - 1)))


def build_res5(
    config: DetectorConfig, conventions: Conventions, *, norm: NormFactory = FrozenBatchNorm
) -> nn.Sequential:
    """The last stage, which runs on pooled regions."""
    return build_stage(
        BLOCKS_PER_STAGE[config.depth][-1],
        config.map_channels,
        8 * config.base_channels,
        conventions,
        stride=conventions.res5_stride,
        dilation=conventions.res5_dilation,
        norm=norm,
    )
