"""Anchor boxes: the shapes at one cell, and those shapes at every cell of a map."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Anchors of one cell, centred at 0 (detectron2 modeling/anchor_generator.py::generate_cell_anchors).

    Args:
        sizes: square roots of the areas, pixels.
        ratios: height / width.
    Returns:
        (len(sizes) * len(ratios), 4) float32, x1 y1 x2 y2, sizes outermost.
    """
    anchors = []
    for size in sizes:
        for ratio in ratios:
            width = math.sqrt(size**2.0 / ratio)
            height = ratio * width
            anchors.append([-width / 2.0, -height / 2.0, width / 2.0, height / 2.0])
    return torch.tensor(anchors, dtype=torch.float32)


def grid_anchors(cell: Tensor, map_hw: tuple[int, int], stride: int, offset: float) -> Tensor:
    """The cell's anchors at every cell of a map.

    Args:
        cell: (A, 4) float32.
        map_hw: (rows, columns).
        stride: pixels per cell.
        offset: centre of the first cell, in strides.
    Returns:
        (rows * columns * A, 4) float32, x1 y1 x2 y2 in network-input pixels; rows outermost, anchors innermost.
    """
    rows, columns = map_hw
    ys = (torch.arange(rows, dtype=torch.float32, device=cell.device) + offset) * stride
    xs = (torch.arange(columns, dtype=torch.float32, device=cell.device) + offset) * stride
    grid_y, grid_x = torch.meshgrid(ys, xs, indexing="ij")
    shifts = torch.stack([grid_x, grid_y, grid_x, grid_y], dim=-1).reshape(-1, 1, 4)
    return (shifts + cell).reshape(-1, 4)
