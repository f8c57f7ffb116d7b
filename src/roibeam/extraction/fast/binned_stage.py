"""The stage on RoIPool's regions with its first convolutions done once for each bin that differs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from roibeam.extraction.fast.fused_resnet import FusedConv, FusedStage
from roibeam.extraction.fast.modes import Mode
from roibeam.extraction.network.config import FEATURE_STRIDE
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.region_max import DistinctBins


class BinnedStage:
    """Feature map and boxes -> the stage's maps of the regions, a chunk at a time; bit for bit what the stage makes of
    the pooled regions.

    A 1x1 convolution sees one bin, and most bins of 300 regions are equal to others. So the first block's two, a sixth
    of the stage's work, are done for those that differ, in calls of the shape that a chunk has, and looked up.

    Args:
        stage: on a CPU, without strides in these two.
        cells: of a pooled region each way.
    """

    def __init__(self, stage: FusedStage, mode: Mode, cells: int) -> None:
        self.dtype, self.cells = mode.conv_dtype, cells
        self.first, *self.others = stage.blocks

    @staticmethod
    def takes(stage: FusedStage, conventions: Conventions) -> bool:
        """Whether it can stand for the stage, and is the quicker one: a GPU would be waited for, to know how many bins
        differ. Other kernels than oneDNN's have not been seen to give a bin the same bits wherever it stands."""
        convs = (stage.blocks[0].conv1, stage.blocks[0].shortcut)
        fits = all(isinstance(conv, FusedConv) and conv.fused and conv.stride == [1, 1] for conv in convs)
        return fits and conventions.region_pool == "roi-pool"

    def __call__(self, feature_map: Tensor, boxes: Tensor, chunk: int) -> Iterator[Tensor]:
        """
        Args:
            feature_map: (1, C, h, w) float32.
            boxes: (R, 4) float32, x1 y1 x2 y2 in network-input pixels.
            chunk: regions at once.
        Yields:
            (chunk, C', cells, cells) of the mode's type, channels-last; the last one goes on with regions of no
            meaning, and there is one for R = 0 too. The memory is used again by the next one.
        """
        bins = DistinctBins(feature_map.to(self.dtype), boxes, cells=self.cells, stride=FEATURE_STRIDE, chunk=chunk)
        hidden_rows, shortcut_rows = self._rows_of(bins)
        ids, at_once = bins.ids.flatten(), bins.at_once
        del bins  # they hold some hundreds of MB
        # The last chunk goes on with any bin there is.
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
        """What the first block's two convolutions make of each bin, and of some that are none: (n, C') each."""
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
