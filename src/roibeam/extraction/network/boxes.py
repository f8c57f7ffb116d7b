"""Box arithmetic: deltas, anchors and non-maximum suppression of x1 y1 x2 y2 boxes, always float32.

The width of a box and its far edge are conventions. Suppression follows those of the published codes, on torchvision's
kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms

from roibeam.extraction.network.config import FEATURE_STRIDE, DetectorConfig
from roibeam.extraction.network.conventions import Conventions


def decode_deltas(
    boxes: Tensor,
    deltas: Tensor,
    *,
    weights: Sequence[float],
    delta_cap: float | None,
    plus_one_sides: bool,
    last_pixel_off: bool = False,
) -> Tensor:
    """Moves boxes by regression deltas (detectron2 modeling/box_regression.py::Box2BoxTransform.apply_deltas; with
    `plus_one_sides` rbgirshick/py-faster-rcnn lib/fast_rcnn/bbox_transform.py::bbox_transform_inv).

    Args:
        boxes: (..., 4) float32.
        deltas: (..., 4), dx dy dw dh; shapes broadcast.
        weights: the four deltas are divided by these.
        delta_cap: upper limit of dw, dh before exp, so that a wild delta gives a large box, not infinity, or None.
        plus_one_sides: whether a box is x2 - x1 + 1 wide.
        last_pixel_off: whether the result's far edge loses that pixel again (maskrcnn-benchmark's box coder); the
            original does not take it off.
    Returns:
        (..., 4) float32, not clipped.
    """
    x1, y1, x2, y2 = boxes.float().unbind(-1)
    deltas = deltas.float()
    dx, dy = deltas[..., 0] / weights[0], deltas[..., 1] / weights[1]
    dw, dh = deltas[..., 2] / weights[2], deltas[..., 3] / weights[3]
    if delta_cap is not None:
        dw, dh = dw.clamp(max=delta_cap), dh.clamp(max=delta_cap)
    widths, heights = x2 - x1, y2 - y1
    if plus_one_sides:
        widths, heights = widths + 1, heights + 1
    center_x = dx * widths + (x1 + 0.5 * widths)
    center_y = dy * heights + (y1 + 0.5 * heights)
    half_w, half_h = 0.5 * (torch.exp(dw) * widths), 0.5 * (torch.exp(dh) * heights)
    x2, y2 = center_x + half_w, center_y + half_h
    if last_pixel_off:
        x2, y2 = x2 - 1, y2 - 1
    return torch.stack([center_x - half_w, center_y - half_h, x2, y2], dim=-1)


def move_boxes(boxes: Tensor, deltas: Tensor, conventions: Conventions, *, weights: Sequence[float]) -> Tensor:
    """`decode_deltas` by the conventions."""
    return decode_deltas(
        boxes,
        deltas,
        weights=weights,
        delta_cap=conventions.delta_cap,
        plus_one_sides=conventions.plus_one_sides,
        last_pixel_off=conventions.moved_edge == "center+half-1",
    )


def clip_boxes(boxes: Tensor, image_hw: tuple[float, float], *, last_pixel: bool = False) -> Tensor:
    """(..., 4) boxes clipped to 0 <= x <= width, 0 <= y <= height; with `last_pixel` to width - 1 and height - 1."""
    height, width = image_hw
    x = boxes[..., 0::2].clamp(min=0, max=width - last_pixel)
    y = boxes[..., 1::2].clamp(min=0, max=height - last_pixel)
    return torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], dim=-1)


def checked_boxes(boxes: np.ndarray) -> Tensor:
    """Boxes from a user, x1 y1 x2 y2 in photo pixels, as a new (R, 4) float32 tensor. Raises ValueError for another
    shape, or naming the box that is not finite or has x2 < x1 or y2 < y1."""
    boxes = np.asarray(boxes)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or boxes.dtype.kind not in "fiu":
        raise ValueError(
            f"given boxes must be (R, 4) numbers, x1 y1 x2 y2 in photo pixels; got {boxes.shape} {boxes.dtype}"
        )
    wrong = ~np.isfinite(boxes).all(axis=1) | (boxes[:, 2:] < boxes[:, :2]).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"given box {row} is {boxes[row].tolist()}; boxes are x1 y1 x2 y2 in photo pixels, x1 <= x2 and y1 <= y2"
        )
    return torch.tensor(boxes, dtype=torch.float32)


def checked_mask(masked: np.ndarray, count: int) -> Tensor:
    """(count,) bool from a user; raises ValueError for another shape or type."""
    masked = np.asarray(masked)
    if masked.dtype != bool or masked.shape != (count,):
        raise ValueError(f"masked must be ({count},) bool, one for each box; got {masked.shape} {masked.dtype}")
    return torch.from_numpy(masked)


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
    last = float(conventions.plus_one_sides)
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
    """(rows * columns * A, 4): the first cell's A anchors at every cell of a map, a stride apart; rows outermost,
    anchors innermost."""
    rows, columns = map_hw
    ys = torch.arange(rows, dtype=torch.float32, device=cell.device) * stride
    xs = torch.arange(columns, dtype=torch.float32, device=cell.device) * stride
    grid_y, grid_x = torch.meshgrid(ys, xs, indexing="ij")
    shifts = torch.stack([grid_x, grid_y, grid_x, grid_y], dim=-1).reshape(-1, 1, 4)
    return (shifts + cell).reshape(-1, 4)


def grid_boxes(cells: tuple[int, int], image_hw: tuple[int, int]) -> Tensor:
    """(rows * columns, 4) float32: the photo in even cells, row by row, x1 y1 x2 y2 in its pixels."""
    (rows, columns), (height, width) = cells, image_hw
    ys, xs = torch.linspace(0, height, rows + 1), torch.linspace(0, width, columns + 1)
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([xs[x], ys[y], xs[x + 1], ys[y + 1]], dim=-1).reshape(-1, 4)


_LOOK_AT = 4  # first boxes to look at, for each requested one


def suppress(
    boxes: Tensor, scores: Tensor, iou: float, *, comparison: str, plus_one_sides: bool, most: int | None = None
) -> Tensor:
    """Ids of the boxes that no better one suppresses, by descending score; ties go to the lower index.

    Args:
        boxes: (n, 4) float32; scores: (n,) float32.
        iou: threshold, rounded to float32, in which the overlap is computed.
        comparison: ">" or ">=": relation of an overlap to the threshold for the lower-scored box to go.
        plus_one_sides: whether boxes, and their intersections, are x2 - x1 + 1 wide.
        most: number of boxes to return: the first ones of the full result, in less time.
    """
    threshold, boxes = _as_the_kernel_compares(boxes, iou, comparison=comparison, plus_one_sides=plus_one_sides)
    order = _by_score(scores)
    boxes = boxes[order]
    ranks = torch.arange(len(order), 0, -1, dtype=torch.float32, device=boxes.device)
    # Whether a box stays depends only on those before it.
    looked_at = len(order) if most is None else min(len(order), _LOOK_AT * most)
    while len(kept := nms(boxes[:looked_at], ranks[:looked_at], threshold)[:most]) != most:
        if looked_at == len(order):
            break
        looked_at = min(len(order), 4 * looked_at)
    return order[kept]


def suppress_within(
    groups: Tensor, boxes: Tensor, scores: Tensor, iou: float, *, comparison: str, plus_one_sides: bool
) -> Tensor:
    """`suppress` in each group by itself, in one pass around the kernel's calls: for the hundred classes of a photo, a
    dozen small operations each would take longer than the suppression. `groups` are (n,) int64, the ids in no order."""
    threshold, boxes = _as_the_kernel_compares(boxes, iou, comparison=comparison, plus_one_sides=plus_one_sides)
    order = _by_score(scores)
    order = order[torch.argsort(groups[order], stable=True)]
    counts = torch.unique_consecutive(groups[order], return_counts=True)[1]
    starts, sizes = counts.cumsum(0) - counts, counts.tolist()
    ranks = torch.arange(len(order), 0, -1, dtype=torch.float32, device=boxes.device)
    parts = zip(boxes[order].split(sizes), ranks.split(sizes), strict=True)
    kept = [nms(rows, ranks_here, threshold) for rows, ranks_here in parts if len(rows) > 1]
    # Each group's first place beside those that the kernel kept of it; a single box stays.
    firsts = starts[counts > 1].repeat_interleave(starts.new_tensor([len(places) for places in kept]))
    return order[torch.cat([starts[counts == 1], firsts + torch.cat(kept)])] if kept else order[starts]


def _by_score(scores: Tensor) -> Tensor:
    """Best first, ties by index, so that the kernel's own sort has nothing to decide."""
    return torch.argsort(scores, descending=True, stable=True)


def _as_the_kernel_compares(
    boxes: Tensor, iou: float, *, comparison: str, plus_one_sides: bool
) -> tuple[float, Tensor]:
    """The threshold and the boxes for which the kernel gives the requested result."""
    # The kernel compares with ">". On a CPU it widens the overlap to float64, on CUDA it narrows the threshold to
    # float32; a threshold that is a float32 number makes both agree. Above the next lower number means at or above.
    threshold = np.float32(iou)
    if comparison == ">=":
        threshold = np.nextafter(threshold, np.float32(0))
    if plus_one_sides:
        # Sides x2 - x1 + 1, of the boxes and of their intersection, are plain sides of boxes that end one pixel later.
        boxes = torch.cat([boxes[:, :2], boxes[:, 2:] + 1], dim=1)
    return float(threshold), boxes
