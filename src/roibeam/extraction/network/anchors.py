"""Anchor boxes: the shapes at the first cell of a map, and those shapes at every cell."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from roibeam.extraction.network.config import FEATURE_STRIDE, DetectorConfig
from roibeam.extraction.network.conventions import Conventions

CAFFE_BASE_SIDE = 16  # py-faster-rcnn lib/rpn/generate_anchors.py: the box whose sides are rounded before scaling


def cell_anchors(config: DetectorConfig, conventions: Conventions) -> Tensor:
    """Anchors of the first cell, as the published weight files hold them.

    Sides are sqrt(size^2 / ratio), as in detectron2 modeling/anchor_generator.py, or those of a 16 x 16 box rounded to
    whole pixels and then scaled, as in py-faster-rcnn lib/rpn/generate_anchors.py.

    Returns:
        (A, 4) float32, x1 y1 x2 y2 in network-input pixels and the conventions' order; the far edge is the last pixel
        inside where `box_sides` counts it.
    """
    sizes, ratios = config.anchor_sizes, config.anchor_ratios
    if conventions.anchor_order == "ratio-major":
        pairs = [(size, ratio) for ratio, size in itertools.product(ratios, sizes)]
    else:
        pairs = list(itertools.product(sizes, ratios))
    center = conventions.anchor_offset * FEATURE_STRIDE
    last = 1.0 if conventions.box_sides == "x2-x1+1" else 0.0
    anchors = []
    for size, ratio in pairs:
        if conventions.anchor_sides == "rounded":
            base_width = round(math.sqrt(CAFFE_BASE_SIDE**2 / ratio))  # half to even, as numpy rounds there
            width, height = (side * size / CAFFE_BASE_SIDE for side in (base_width, round(base_width * ratio)))
        else:
            width = math.sqrt(size**2.0 / ratio)
            height = ratio * width
        x1, y1, x2, y2 = -width / 2.0, -height / 2.0, width / 2.0, height / 2.0
        anchors.append([center + x1, center + y1, center + x2 - last, center + y2 - last])
    return torch.tensor(anchors, dtype=torch.float32)


def grid_anchors(cell: Tensor, map_hw: tuple[int, int], stride: int) -> Tensor:
    """The first cell's anchors at every cell of a map.

    Args:
        cell: (A, 4) float32.
        map_hw: (rows, columns).
        stride: pixels per cell.
    Returns:
        (rows * columns * A, 4) float32, x1 y1 x2 y2 in network-input pixels; rows outermost, anchors innermost.
    """
    rows, columns = map_hw
    ys = torch.arange(rows, dtype=torch.float32, device=cell.device) * stride
    xs = torch.arange(columns, dtype=torch.float32, device=cell.device) * stride
    grid_y, grid_x = torch.meshgrid(ys, xs, indexing="ij")
    shifts = torch.stack([grid_x, grid_y, grid_x, grid_y], dim=-1).reshape(-1, 1, 4)
    return (shifts + cell).reshape(-1, 4)
