"""Box arithmetic: x1 y1 x2 y2, always float32; how wide a box is and where it ends are conventions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def decode_deltas(
    boxes: Tensor, deltas: Tensor, *, weights: Sequence[float], delta_cap: float | None, plus_one_sides: bool
) -> Tensor:
    """Moves boxes by regression deltas (detectron2 modeling/box_regression.py::Box2BoxTransform.apply_deltas; with
    `plus_one_sides` rbgirshick/py-faster-rcnn lib/fast_rcnn/bbox_transform.py::bbox_transform_inv).

    Args:
        boxes: (..., 4) float32.
        deltas: (..., 4), dx dy dw dh; shapes broadcast.
        weights: the four deltas are divided by these.
        delta_cap: upper limit of dw, dh before exp, so that a wild delta gives a large box, not infinity, or None.
        plus_one_sides: whether a box is x2 - x1 + 1 wide. The result's far edge does not lose that pixel again, as in
            the original.
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
    return torch.stack([center_x - half_w, center_y - half_h, center_x + half_w, center_y + half_h], dim=-1)


def clip_boxes(boxes: Tensor, image_hw: tuple[float, float], *, last_pixel: bool = False) -> Tensor:
    """(..., 4) boxes clipped to 0 <= x <= width, 0 <= y <= height; with `last_pixel` to width - 1 and height - 1."""
    height, width = image_hw
    if last_pixel:
        height, width = height - 1, width - 1
    x = boxes[..., 0::2].clamp(min=0, max=width)
    y = boxes[..., 1::2].clamp(min=0, max=height)
    return torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], dim=-1)


def checked_boxes(boxes: np.ndarray) -> Tensor:
    """Boxes that a user hands in, as a new tensor.

    Args:
        boxes: (R, 4) numbers, x1 y1 x2 y2 in photo pixels.
    Returns:
        (R, 4) float32, in the same order.
    Raises:
        ValueError: for another shape, or naming the box that is not finite or has x2 < x1 or y2 < y1.
    """
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
