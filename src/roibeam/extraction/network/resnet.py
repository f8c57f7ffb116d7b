"""ResNet and ResNeXt of the detectors: sizes are in `DetectorConfig`; the order of norm, ReLU and convolution in a
block, the place of its stride and the pooling of the stem are conventions.

Its norms are frozen unless another factory is given, for training a network from scratch.

Parameters carry the names of the Hugging Face and detectron2 checkpoints (`backbone.stem.conv1.norm.weight`, ...). In
pre-activation networks (ResNet v2, He et al. 2016) a norm that follows a convolution within a block is named after
that convolution, not after the next one as in MILVLG's files, and the norm and ReLU at the end of res4 and of res5 are
one more module of the stage.
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
        groups: int = 1,
        eps: float,
        norm: NormFactory = FrozenBatchNorm,
    ) -> None:
        padding = dilation * (kernel // 2)
        super().__init__(in_channels, out_channels, kernel, stride, padding, dilation, groups, bias=False)
        self.norm = norm(out_channels, eps)

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.norm, FrozenBatchNorm):
            return self.norm(super().forward(x))
        # A fixed norm scales the weights instead of every map: less time and memory in a training step.
        gain, shift = self.norm.gain_and_shift()
        scaled = self.weight * gain.view(-1, 1, 1, 1)
        return functional.conv2d(x, scaled, shift, self.stride, self.padding, self.dilation, self.groups)


class NormReLU(nn.Module):
    """Norm and ReLU in front of the convolutions of a pre-activation network, or at its end."""

    def __init__(self, channels: int, eps: float, norm: NormFactory = FrozenBatchNorm) -> None:
        super().__init__()
        self.norm = norm(channels, eps)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(x), inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut, which is a 1x1 convolution if the width or the stride changes.

    With `blocks` "pre-activation" norm and ReLU come first, for the shortcut convolution too; neither follows the sum.

    Args:
        inner: channels of the 3x3 convolution.
        is_active: whether the input has its norm and ReLU already.
    """

    def __init__(
        self,
        in_channels: int,
        inner: int,
        out_channels: int,
        conventions: Conventions,
        *,
        groups: int = 1,
        stride: int = 1,
        dilation: int = 1,
        norm: NormFactory = FrozenBatchNorm,
        is_active: bool = False,
    ) -> None:
        super().__init__()
        eps, self.activates_sum = conventions.norm_eps, conventions.blocks == "post-activation"
        conv = partial(NormedConv, eps=eps, norm=norm)
        last = conv if self.activates_sum else partial(nn.Conv2d, bias=False)
        stride_1x1, stride_3x3 = (stride, 1) if conventions.stride_conv == "1x1" else (1, stride)
        self.activate = None if self.activates_sum or is_active else NormReLU(in_channels, eps, norm)
        self.conv1 = conv(in_channels, inner, 1, stride=stride_1x1)
        self.conv2 = conv(inner, inner, 3, stride=stride_3x3, dilation=dilation, groups=groups)
        self.conv3: nn.Conv2d = last(inner, out_channels, 1)
        changes = stride != 1 or in_channels != out_channels
        self.shortcut: nn.Conv2d | None = last(in_channels, out_channels, 1, stride=stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = x if self.activate is None else self.activate(x)
        # In place: no backward pass of a convolution or a norm reads its output.
        out = functional.relu(self.conv1(active), inplace=True)
        out = functional.relu(self.conv2(out), inplace=True)
        out = self.conv3(out)
        out += x if self.shortcut is None else self.shortcut(active)
        return functional.relu(out, inplace=True) if self.activates_sum else out


class Stem(nn.Module):
    """7x7 stride 2, then a 3x3 stride 2 max-pool: Caffe's without padding and rounded up, or torchvision's. Of a
    pre-activation network, a norm of the pixels comes first."""

    def __init__(self, channels: int, conventions: Conventions, *, norm: NormFactory = FrozenBatchNorm) -> None:
        super().__init__()
        is_plain = conventions.blocks == "post-activation"
        self.norm = None if is_plain else norm(3, conventions.norm_eps)
        self.conv1 = NormedConv(3, channels, 7, stride=2, eps=conventions.norm_eps, norm=norm)
        self.caffe_pool = conventions.stem_pool == "pad-0-ceil"

    def forward(self, pixels: Tensor) -> Tensor:
        return self.pool(functional.relu(self.conv1(self.normed(pixels)), inplace=True))

    def normed(self, pixels: Tensor) -> Tensor:
        return pixels if self.norm is None else self.norm(pixels)

    def pool(self, x: Tensor) -> Tensor:
        padding = 0 if self.caffe_pool else 1
        return functional.max_pool2d(x, kernel_size=3, stride=2, padding=padding, ceil_mode=self.caffe_pool)


class Backbone(nn.Module):
    """Pixels -> res4 map: (N, 3, H, W) -> (N, 16 x base_channels, about H/16, about W/16)."""

    def __init__(
        self, config: DetectorConfig, conventions: Conventions, *, norm: NormFactory = FrozenBatchNorm
    ) -> None:
        super().__init__()
        self.stem = Stem(config.base_channels, conventions, norm=norm)
        stage = partial(stage_of, config, conventions, norm=norm)
        self.res2, self.res3, self.res4 = stage(2), stage(3, stride=2), stage(4, stride=2)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.res4(self.res3(self.res2(self.stem(pixels))))


def stage_of(
    config: DetectorConfig,
    conventions: Conventions,
    number: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    norm: NormFactory = FrozenBatchNorm,
) -> nn.Sequential:
    """Stage `number`, 2 to 5. The map between res4 and res5 has the norm and ReLU of a pre-activation network."""
    double = 2 ** (number - 2)
    base = double * config.base_channels
    return build_stage(
        BLOCKS_PER_STAGE[config.depth][number - 2],
        config.base_channels if number == 2 else 2 * base,
        double * config.inner_channels,
        conventions,
        out_channels=4 * base,
        groups=config.groups,
        stride=stride,
        dilation=dilation,
        norm=norm,
        number=number,
    )


def build_stage(
    blocks: int,
    in_channels: int,
    inner: int,
    conventions: Conventions,
    *,
    out_channels: int | None = None,
    groups: int = 1,
    stride: int = 1,
    dilation: int = 1,
    norm: NormFactory = FrozenBatchNorm,
    number: int = 2,
) -> nn.Sequential:
    """`blocks` bottlenecks; the stride is in the first, the dilation in every 3x3.

    Args:
        inner, groups: channels and groups of the 3x3 convolutions; out_channels: None for four times `inner`.
        number: of the stage, 2 to 5: in a pre-activation network, the results of 4 and 5 have a norm and ReLU.
    """
    out_channels = out_channels or 4 * inner
    block = partial(
        Bottleneck, inner=inner, out_channels=out_channels, conventions=conventions, groups=groups, norm=norm
    )
    first = block(in_channels, stride=stride, dilation=dilation, is_active=number == 5)
    is_plain = conventions.blocks == "post-activation" or number < 4
    last = [] if is_plain else [NormReLU(out_channels, conventions.norm_eps, norm)]
    return nn.Sequential(first, *(block(out_channels, dilation=dilation) for _ in range(blocks - 1)), *last)


def build_res5(
    config: DetectorConfig, conventions: Conventions, *, norm: NormFactory = FrozenBatchNorm
) -> nn.Sequential:
    """The last stage, which runs on pooled regions."""
    stride, dilation = conventions.res5_stride, conventions.res5_dilation
    return stage_of(config, conventions, 5, stride=stride, dilation=dilation, norm=norm)
