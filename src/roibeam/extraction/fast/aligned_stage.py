"""The stage on RoIAlign's regions with its first convolutions done on the map, before regions are cut out of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.fast.fused_resnet import FusedBottleneck, FusedConv, foldable_blocks, folded
from roibeam.extraction.fast.modes import Mode
from roibeam.extraction.network.config import FEATURE_STRIDE
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.region_align import RegionAlign
from roibeam.extraction.network.resnet import Bottleneck


class AlignedStage:
    """Feature map and boxes -> the stage's maps of the regions, a chunk at a time.

    A sample of RoIAlign is a weighted mean of four cells, and 1x1 convolutions are linear: that of the mean is the mean
    of theirs. So the first block's two, a third of the stage's work, are done once for each cell of the map, of which
    there are far fewer than cells of regions. Biases and ReLU follow the pooling, as a sample off the map is 0. Not so
    with RoIPool, whose maxima are not linear.

    Args:
        blocks: as `aligned_stage` takes them.
        cells: of a pooled region each way.
    """

    def __init__(self, blocks: Sequence[Bottleneck], mode: Mode, cells: int) -> None:
        self.dtype, self.cells = mode.conv_dtype, cells
        first, region_cells = blocks[0], (cells, cells)
        assert first.shortcut is not None
        # As matrices: a product is up to three times as quick as oneDNN's convolution of one map.
        conv1, conv1_bias = folded(first.conv1)
        shortcut, shortcut_bias = folded(first.shortcut)
        self.conv1, self.shortcut = (weight[:, :, 0, 0].to(self.dtype) for weight in (conv1, shortcut))
        self.conv1_bias = conv1_bias.float()
        self.conv2 = FusedConv(first.conv2, self.dtype, region_cells, relu=True)
        self.conv3 = FusedConv(first.conv3, self.dtype, region_cells, relu=True)
        self.conv3.add_bias(shortcut_bias)
        self.others = [FusedBottleneck(block, mode, region_cells) for block in blocks[1:]]

    def __call__(self, feature_map: Tensor, boxes: Tensor, chunk: int) -> Iterator[Tensor]:
        """
        Args:
            feature_map: (1, C, h, w) float32.
            boxes: (R, 4) float32, x1 y1 x2 y2 in network-input pixels.
            chunk: regions at once.
        Yields:
            (chunk, C', cells, cells) of the mode's type, channels-last; the last one goes on with regions of zeros, and
            there is one for R = 0 too.
        """
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
    """The stage in this form, where it is the quicker one; None on a GPU, for regions of another pooling, for strides,
    and for what `foldable_blocks` does not take."""
    blocks = foldable_blocks(stage)
    on_a_cpu = all(block.conv1.weight.device.type == "cpu" for block in blocks)
    has_strides = any((1, 1) != conv.stride for block in blocks for conv in (block.conv1, block.conv2))
    if not blocks or not on_a_cpu or has_strides or conventions.region_pool != "roi-align-1":
        return None
    return AlignedStage(blocks, mode, cells)
