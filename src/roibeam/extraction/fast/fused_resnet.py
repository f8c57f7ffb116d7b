"""Fused ResNet: the network's convolutions in the form for calls without training.

Norms are folded in, maps are channels-last, ReLU and the sum with the shortcut are in the convolution's own kernel
where there is one. Made from the modules of `resnet.py`, which keep their tensors; nothing here has a state. The stage
on regions does its first convolutions before regions are cut out: on the map for RoIAlign's, once for each bin that
differs for RoIPool's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.fast.cuda_device import CudaConv
from roibeam.extraction.fast.modes import Mode
from roibeam.extraction.network.config import FEATURE_STRIDE
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.resnet import Backbone, Bottleneck, FrozenBatchNorm, NormReLU
from roibeam.extraction.network.roi_heads import DistinctBins, RegionAlign

# oneDNN's convolution with its following steps, on weights that are laid out for it once. torch's own compiler calls
# these operators, so they stay, but they have no public name: without them the plain calls do the same, slower.
_ONEDNN = (
    "_convolution_pointwise",
    "_convolution_pointwise_",
    "_reorder_convolution_weight",
    "_is_mkldnn_bf16_supported",
)


def has_fused_kernels(device: torch.device | str, dtype: torch.dtype) -> bool:
    """Whether `FusedConv` runs on oneDNN's fused convolutions there, which need AVX-512 for bfloat16."""
    is_there = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in _ONEDNN)
    if not is_there or torch.device(device).type != "cpu":
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class FusedConv:
    """A convolution with its norm folded in, optionally with a sum and a ReLU.

    Args:
        conv: with a fixed norm as its `norm`, or without one.
        cells: (h, w) of typical maps: oneDNN lays out the weights for them.
        relu: whether a ReLU follows.
    """

    def __init__(self, conv: nn.Conv2d, dtype: torch.dtype, cells: tuple[int, int], *, relu: bool = False) -> None:
        weight, self._exact_bias = folded(conv)
        self.relu = relu
        self.weight = weight.to(dtype).contiguous(memory_format=torch.channels_last)
        self.bias = self._exact_bias.to(dtype)
        # Lists of numbers, as oneDNN's operators need them; the padding here is never a word.
        self.stride, self.dilation, self.groups = list(conv.stride), list(conv.dilation), conv.groups
        self.padding = [int(edge) for edge in conv.padding]
        self.fused = has_fused_kernels(weight.device, dtype)
        if self.fused:
            self.weight = torch.ops.mkldnn._reorder_convolution_weight(
                self.weight, self.padding, self.stride, self.dilation, self.groups, [1, conv.in_channels, *cells]
            )

    def add_bias(self, bias: Tensor) -> None:
        """Adds one more bias, float64."""
        self._exact_bias = self._exact_bias + bias
        self.bias = self._exact_bias.to(self.bias.dtype)

    def __call__(self, x: Tensor, *, onto: Tensor | None = None) -> Tensor:
        """`x` is (N, C, h, w), channels-last; `onto` is added before the ReLU, and overwritten with the result."""
        if not self.fused:
            where = (self.stride, self.padding, self.dilation, self.groups)
            out = functional.conv2d(x, self.weight, self.bias, *where)
            out = out if onto is None else onto.add_(out)
        else:
            operators, where = torch.ops.mkldnn, (self.padding, self.stride, self.dilation, self.groups)
            if onto is None:
                out = operators._convolution_pointwise(x, self.weight, self.bias, *where, "none", [], None)
            else:
                out = operators._convolution_pointwise_.binary(
                    onto, x, self.weight, self.bias, *where, "add", 1.0, None, [], None
                )
        # Not oneDNN's own, which makes 0 of NaN: damaged weights would give plausible features. It saves nothing
        # measurable.
        return out.relu_() if self.relu else out


def fused_conv(conv: nn.Conv2d, mode: Mode, cells: tuple[int, int], *, relu: bool = False) -> FusedConv | CudaConv:
    """The convolution in the fastest form for the device of its weights; arguments as of `FusedConv`."""
    if conv.weight.device.type == "cuda":
        return CudaConv(*folded(conv), conv, mode, relu=relu)
    return FusedConv(conv, mode.conv_dtype, cells, relu=relu)


class FusedNormReLU:
    """See `NormReLU`; a new map."""

    def __init__(self, part: NormReLU, mode: Mode) -> None:
        gain, shift = _gain_and_shift(part.norm)
        self.gain, self.shift = (each.view(1, -1, 1, 1).to(mode.conv_dtype) for each in (gain, shift))

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x, self.gain).relu_()


class FusedBottleneck:
    """Fused bottleneck block; overwrites its input if it has no shortcut convolution."""

    def __init__(self, block: Bottleneck, mode: Mode, cells: tuple[int, int]) -> None:
        inner = _strided(cells, block.conv1)
        outer = _strided(inner, block.conv2)
        self.activate = None if block.activate is None else FusedNormReLU(block.activate, mode)
        self.conv1 = fused_conv(block.conv1, mode, cells, relu=True)
        self.conv2 = fused_conv(block.conv2, mode, inner, relu=True)
        self.conv3 = fused_conv(block.conv3, mode, outer, relu=block.activates_sum)
        self.shortcut = None if block.shortcut is None else fused_conv(block.shortcut, mode, cells)
        if isinstance(self.conv3, CudaConv) and isinstance(self.shortcut, CudaConv):
            self.conv3.add_bias(self.shortcut)
        self.cells = outer

    def __call__(self, x: Tensor) -> Tensor:
        active = x if self.activate is None else self.activate(x)
        out = self.conv2(self.conv1(active))
        return self.conv3(out, onto=x if self.shortcut is None else self.shortcut(active))


class FusedStage:
    """Bottlenecks; the first has a shortcut convolution, so the caller's tensor stays unchanged.

    Args:
        cells: as of `FusedConv`; the attribute is that of the stage's result.
    """

    def __init__(self, parts: Iterable[nn.Module], mode: Mode, cells: tuple[int, int]) -> None:
        self.blocks, self.cells, self.last = [], cells, None
        for part in parts:
            if isinstance(part, NormReLU):
                self.last = FusedNormReLU(part, mode)
                continue
            assert isinstance(part, Bottleneck)
            self.blocks.append(FusedBottleneck(part, mode, self.cells))
            self.cells = self.blocks[-1].cells

    def __call__(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x if self.last is None else self.last(x)


class DilatedStage:
    """A stage whose 3x3 convolutions have dilation 2, run as plain ones, for which a GPU has far faster float32
    kernels: cells of even and of odd rows and columns never meet, so each map is four of half the size.
    """

    def __init__(self, blocks: Iterable[nn.Module], mode: Mode, cells: tuple[int, int]) -> None:
        self.stage = FusedStage(blocks, mode, (cells[0] // 2, cells[1] // 2))
        for block in self.stage.blocks:
            assert isinstance(block.conv2, CudaConv)
            block.conv2.padding, block.conv2.dilation = [1, 1], (1, 1)

    @staticmethod
    def takes(parts: Sequence[nn.Module], mode: Mode, cells: tuple[int, int]) -> bool:
        """Whether it can replace these parts of a stage on maps of these cells, and is faster."""
        blocks = [part for part in parts if isinstance(part, Bottleneck)]
        on_a_gpu = len(blocks) == len(parts) and all(block.conv1.weight.device.type == "cuda" for block in blocks)
        is_float32 = mode.conv_dtype == torch.float32 and not mode.tf32
        is_dilated = all(
            block.conv1.stride == block.conv2.stride == (1, 1) and block.conv2.dilation == (2, 2) for block in blocks
        )
        return on_a_gpu and is_float32 and is_dilated and not any(edge % 2 for edge in cells)

    def __call__(self, x: Tensor) -> Tensor:
        """(N, C, h, w), channels-last, h and w even -> the stage's maps, (N, C', h, w)."""
        number, _, rows, columns = x.shape
        cells = x.permute(0, 2, 3, 1).reshape(number, rows // 2, 2, columns // 2, 2, -1)
        apart = cells.permute(0, 2, 4, 1, 3, 5).reshape(4 * number, rows // 2, columns // 2, -1)
        out = self.stage(apart.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        together = out.reshape(number, 2, 2, rows // 2, columns // 2, -1).permute(0, 3, 1, 4, 2, 5)
        return together.reshape(number, rows, columns, -1).permute(0, 3, 1, 2)


class FusedBackbone:
    """Pixels -> res4 map, both float32, the map channels-last; other sizes than about `input_hw` may be slower."""

    def __init__(self, backbone: Backbone, mode: Mode, input_hw: tuple[int, int]) -> None:
        self.dtype, self.stem = mode.conv_dtype, backbone.stem
        self.conv1 = fused_conv(backbone.stem.conv1, mode, input_hw, relu=True)
        cells = (input_hw[0] // 4, input_hw[1] // 4)
        self.stages = []
        for stage in (backbone.res2, backbone.res3, backbone.res4):
            self.stages.append(FusedStage(stage, mode, cells))
            cells = self.stages[-1].cells

    def __call__(self, pixels: Tensor) -> Tensor:
        x = self.stem.normed(pixels)
        x = self.stem.pool(self.conv1(x.to(self.dtype, memory_format=torch.channels_last)))
        for stage in self.stages:
            x = stage(x)
        return x.float()


def fused_backbone(backbone: nn.Module, mode: Mode, input_hw: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """The backbone in the fastest form without gradients; unchanged if it is no `Backbone`, or has norms that cannot be
    folded."""
    if isinstance(backbone, Backbone) and is_foldable(backbone):
        return FusedBackbone(backbone, mode, input_hw)
    return backbone


def fused_stage(stage: nn.Module, mode: Mode, cells: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """See `fused_backbone`, for a stage such as res5, whose maps are of `cells`."""
    parts = foldable_parts(stage)
    if not parts:
        return stage
    kind = DilatedStage if DilatedStage.takes(parts, mode, cells) else FusedStage
    return kind(parts, mode, cells)


def foldable_parts(stage: nn.Module) -> list[nn.Module]:
    """The parts of a stage of `build_stage`, whose norms can be folded and whose first has a shortcut convolution;
    empty for another."""
    parts = list(stage) if isinstance(stage, nn.Sequential) else []
    is_own = bool(parts) and all(isinstance(part, Bottleneck | NormReLU) for part in parts)
    return parts if is_own and getattr(parts[0], "shortcut", None) is not None and is_foldable(stage) else []


def _strided(cells: tuple[int, int], conv: nn.Conv2d) -> tuple[int, int]:
    return -(-cells[0] // conv.stride[0]), -(-cells[1] // conv.stride[1])


def is_foldable(part: nn.Module) -> bool:
    """Whether every norm of the part is fixed, statistics and affine."""
    norms = [child for module in part.modules() for name, child in module.named_children() if name == "norm"]
    return all(
        isinstance(norm, FrozenBatchNorm)
        or (isinstance(norm, nn.BatchNorm2d) and not norm.training and norm.track_running_stats and norm.affine)
        for norm in norms
    )


def folded(conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of the one convolution that combines `conv` and its norm; float64."""
    weight = conv.weight.detach().double()
    bias = weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.detach().double()
    norm = getattr(conv, "norm", None)
    if norm is None:
        return weight, bias
    gain, shift = _gain_and_shift(norm)
    return weight * gain.view(-1, 1, 1, 1), bias * gain + shift


def _gain_and_shift(norm: Any) -> tuple[Tensor, Tensor]:
    """(C,) float64 each: the fixed norm of x is x * gain + shift."""
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    weight, bias, mean, variance = (tensor.detach().double() for tensor in tensors)
    gain = weight / torch.sqrt(variance + norm.eps)
    return gain, bias - mean * gain


class BinnedStage:
    """Feature map and boxes -> the stage's maps of the regions, a chunk at a time; bit for bit the stage's result on
    the pooled regions.

    A 1x1 convolution sees one bin, and most bins of 300 regions equal others. So the first block's two, a sixth of the
    stage's work, run on distinct bins, in calls of a chunk's shape, and are looked up.

    Args:
        stage: on a CPU, without strides in these two.
        cells: of a pooled region each way.
    """

    def __init__(self, stage: FusedStage, mode: Mode, cells: int) -> None:
        self.dtype, self.cells = mode.conv_dtype, cells
        self.first, *self.others = stage.blocks

    @staticmethod
    def takes(stage: FusedStage, conventions: Conventions) -> bool:
        """Whether it can replace the stage, and is faster: a GPU would have to be waited for, for the number of
        distinct bins. Other kernels than oneDNN's may give a bin other bits elsewhere in a call."""
        convs = (stage.blocks[0].conv1, stage.blocks[0].shortcut)
        fits = all(isinstance(conv, FusedConv) and conv.fused and conv.stride == [1, 1] for conv in convs)
        return fits and stage.last is None and conventions.region_pool == "roi-pool"

    def __call__(self, feature_map: Tensor, boxes: Tensor, chunk: int) -> Iterator[Tensor]:
        """
        Args:
            feature_map: (1, C, h, w) float32.
            boxes: (R, 4) float32, x1 y1 x2 y2 in network-input pixels.
            chunk: regions at once.
        Yields:
            (chunk, C', cells, cells) of the mode's type, channels-last; the last one ends with meaningless regions, and
            there is one for R = 0 too. The next one reuses the memory.
        """
        bins = DistinctBins(feature_map.to(self.dtype), boxes, cells=self.cells, stride=FEATURE_STRIDE, chunk=chunk)
        hidden_rows, shortcut_rows = self._rows_of(bins)
        ids, at_once = bins.ids.flatten(), bins.at_once
        del bins  # they hold some hundreds of MB
        # The last chunk ends with any existing bin.
        ids = functional.pad(ids, (0, -len(ids) % at_once if len(ids) else at_once))
        hidden, shortcut = (rows.new_empty(at_once, rows.shape[1]) for rows in (hidden_rows, shortcut_rows))
        for here in ids.split(at_once):
            torch.index_select(hidden_rows, 0, here, out=hidden)
            torch.index_select(shortcut_rows, 0, here, out=shortcut)
            out = self.first.conv3(self.first.conv2(self._as_maps(hidden)), onto=self._as_maps(shortcut))
            for block in self.others:
                out = block(out)
            yield out

    def _rows_of(self, bins: DistinctBins) -> list[Tensor]:
        """Results of the first block's two convolutions for each bin, and some meaningless ones: (n, C') each."""
        convs = [conv for conv in (self.first.conv1, self.first.shortcut) if isinstance(conv, FusedConv)]
        starts = range(0, max(bins.count, 1), bins.at_once)
        made = [conv.bias.new_empty(len(starts) * bins.at_once, len(conv.bias)) for conv in convs]
        for start in starts:
            maps = self._as_maps(bins(start))
            for conv, rows in zip(convs, made, strict=True):
                rows[start : start + bins.at_once] = conv(maps).permute(0, 2, 3, 1).flatten(0, 2)
        return made

    def _as_maps(self, rows: Tensor) -> Tensor:
        """(chunk * cells * cells, C) -> (chunk, C, cells, cells), channels-last."""
        return rows.view(-1, self.cells, self.cells, rows.shape[1]).permute(0, 3, 1, 2)


class AlignedStage:
    """Feature map and boxes -> the stage's maps of the regions, a chunk at a time.

    A sample of RoIAlign is a weighted mean of four cells, and 1x1 convolutions are linear: that of the mean is the mean
    of those of the cells. So the first block's two, a third of the stage's work, run once for each cell of the map, of
    which there are far fewer than cells of regions. Biases and ReLU follow the pooling, as a sample off the map is 0.
    RoIPool's maxima are not linear.

    Args:
        blocks: as `aligned_stage` takes them.
        cells: of a pooled region each way.
    """

    def __init__(self, blocks: Sequence[Bottleneck], mode: Mode, cells: int) -> None:
        self.dtype, self.cells = mode.conv_dtype, cells
        first, region_cells = blocks[0], (cells, cells)
        assert first.shortcut is not None
        # Matrices: a product is up to three times as fast as oneDNN's convolution of one map.
        conv1, conv1_bias = folded(first.conv1)
        shortcut, shortcut_bias = folded(first.shortcut)
        self.conv1, self.shortcut = (weight[:, :, 0, 0].to(self.dtype) for weight in (conv1, shortcut))
        self.conv1_bias = conv1_bias.float()
        self.conv2 = FusedConv(first.conv2, self.dtype, region_cells, relu=True)
        self.conv3 = FusedConv(first.conv3, self.dtype, region_cells, relu=True)
        self.conv3.add_bias(shortcut_bias)
        self.others = [FusedBottleneck(block, mode, region_cells) for block in blocks[1:]]

    def __call__(self, feature_map: Tensor, boxes: Tensor, chunk: int) -> Iterator[Tensor]:
        """As `BinnedStage.__call__`; the last chunk goes on with regions of zeros."""
        rows = feature_map.permute(0, 2, 3, 1).flatten(0, 2).to(self.dtype)
        hidden_rows, shortcut_rows = (functional.linear(rows, each).float() for each in (self.conv1, self.shortcut))
        height, width = feature_map.shape[2:]
        regions = RegionAlign(boxes, (height, width), cells=self.cells, stride=FEATURE_STRIDE, chunk=chunk)
        for start in range(0, max(len(boxes), 1), chunk):
            hidden = regions(hidden_rows, start).add_(self.conv1_bias.view(1, -1, 1, 1)).relu_()
            shortcut = regions(shortcut_rows, start).to(self.dtype)
            out = self.conv3(self.conv2(hidden.to(self.dtype)), onto=shortcut)
            for block in self.others:
                out = block(out)
            yield out


def aligned_stage(stage: nn.Module, mode: Mode, conventions: Conventions, cells: int) -> AlignedStage | None:
    """The stage in this form, if it is faster; None on a GPU, for another pooling, for strides and other parts."""
    parts = foldable_parts(stage)
    blocks = [part for part in parts if isinstance(part, Bottleneck)]
    on_a_cpu = all(block.conv1.weight.device.type == "cpu" for block in blocks)
    has_strides = any(conv.stride != (1, 1) for block in blocks for conv in (block.conv1, block.conv2))
    if (
        not blocks
        or len(blocks) < len(parts)
        or not on_a_cpu
        or has_strides
        or conventions.region_pool != "roi-align-1"
    ):
        return None
    return AlignedStage(blocks, mode, cells)
