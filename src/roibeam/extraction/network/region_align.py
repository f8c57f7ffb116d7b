"""RoIAlign with one sample a bin, by look-up: a bin is the weighted sum of the four cells around its middle.

Samples and weights are those of torchvision's `roi_align`, float32 operation by float32 operation; the sum of the four
may round otherwise. They do not depend on what the map holds, so several maps of one photo share them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class RegionAlign:
    """Samples of each bin of each region, some regions at a time.

    Args:
        boxes: (R, 4) float32, x1 y1 x2 y2 in network-input pixels.
        map_hw: rows and columns of the maps.
        cells: bins of a region each way.
        stride: network-input pixels per cell of the map.
        chunk: regions of one call.
    """

    def __init__(self, boxes: Tensor, map_hw: tuple[int, int], *, cells: int, stride: int, chunk: int) -> None:
        edges = boxes.float() * (1.0 / stride)
        y_ids, y_weights = _samples(edges[:, 1], edges[:, 3], cells, map_hw[0])
        x_ids, x_weights = _samples(edges[:, 0], edges[:, 2], cells, map_hw[1])
        # (R, cells, 1, 2, 1) and (R, 1, cells, 1, 2): the rows' two neighbours by the columns' two.
        ids = y_ids[:, :, None, :, None] * map_hw[1] + x_ids[:, None, :, None, :]
        weights = y_weights[:, :, None, :, None] * x_weights[:, None, :, None, :]
        padding = -len(boxes) % chunk if len(boxes) else chunk
        self._ids = functional.pad(ids.reshape(-1, cells * cells, 4), (0, 0, 0, 0, 0, padding))
        self._weights = functional.pad(weights.reshape(-1, cells * cells, 4), (0, 0, 0, 0, 0, padding))
        self._shape = (chunk, cells, cells)

    def __call__(self, rows: Tensor, first: int) -> Tensor:
        """
        Args:
            rows: (h * w, C) float32, the cells of a map, row by row.
            first: of the regions.
        Returns:
            (chunk, C, cells, cells) float32, channels-last, of the regions from `first` on; zeros after the last region
            and for bins outside the map.
        """
        ids, weights = (each[first : first + self._shape[0]].reshape(-1, 4) for each in (self._ids, self._weights))
        sampled = functional.embedding_bag(ids, rows, mode="sum", per_sample_weights=weights)
        return sampled.view(*self._shape, -1).permute(0, 3, 1, 2)


def _samples(first: Tensor, last: Tensor, cells: int, limit: int) -> tuple[Tensor, Tensor]:
    """The two cells beside the middle of each bin along one axis, (R, cells, 2) int64, and their weights, float32; both
    weights are 0 for a middle off the map.

    As torchvision/csrc/ops/cpu/roi_align_common.h, not aligned, one sample.
    """
    size = (last - first).clamp(min=1) / cells
    middle = first[:, None] + torch.arange(cells, device=first.device) * size[:, None] + 0.5 * size[:, None]
    is_inside = (middle >= -1) & (middle <= limit)
    middle = middle.masked_fill(~is_inside, 0).clamp(0, limit - 1)
    low = middle.long()
    above = middle - low
    weights = torch.stack([1 - above, above], dim=-1).masked_fill(~is_inside[:, :, None], 0)
    return torch.stack([low, (low + 1).clamp(max=limit - 1)], dim=-1), weights
