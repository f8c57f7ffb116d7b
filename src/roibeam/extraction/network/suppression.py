"""Non-maximum suppression under the conventions of the published codes, on torchvision's kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms

_LOOK_AT = 4  # boxes that are looked at first, for each one that is wanted


def suppress(
    boxes: Tensor, scores: Tensor, iou: float, *, comparison: str, plus_one_sides: bool, most: int | None = None
) -> Tensor:
    """Ids of the boxes that no better one suppresses, by descending score; ties go to the lower index.

    Args:
        boxes: (n, 4) float32.
        scores: (n,) float32.
        iou: threshold, rounded to float32, in which the overlap is computed.
        comparison: ">" or ">=": what an overlap must be to the threshold for the lower-scored box to go.
        plus_one_sides: whether boxes, and what two of them share, are x2 - x1 + 1 wide.
        most: how many are wanted: those come out that would be the first without it, in less time.
    Returns:
        (k,) int64.
    """
    threshold, boxes = _as_the_kernel_compares(boxes, iou, comparison=comparison, plus_one_sides=plus_one_sides)
    order = _by_score(scores)
    boxes = boxes[order]
    ranks = torch.arange(len(order), 0, -1, dtype=torch.float32, device=boxes.device)
    # Whether a box stays is a matter of those before it.
    looked_at = len(order) if most is None else min(len(order), _LOOK_AT * most)
    while len(kept := nms(boxes[:looked_at], ranks[:looked_at], threshold)[:most]) != most:
        if looked_at == len(order):
            break
        looked_at = min(len(order), 4 * looked_at)
    return order[kept]


def suppress_within(
    groups: Tensor, boxes: Tensor, scores: Tensor, iou: float, *, comparison: str, plus_one_sides: bool
) -> Tensor:
    """As `suppress` in each group by itself, in one pass around the kernel's calls: for the hundred classes of a photo,
    a dozen small operations each would take longer than the suppression.

    Args:
        groups: (n,) int64.
        boxes: (n, 4) float32.
        scores: (n,) float32.
    Returns:
        (k,) int64, in no order.
    """
    threshold, boxes = _as_the_kernel_compares(boxes, iou, comparison=comparison, plus_one_sides=plus_one_sides)
    order = _by_score(scores)
    order = order[torch.argsort(groups[order], stable=True)]
    counts = torch.unique_consecutive(groups[order], return_counts=True)[1]
    starts, sizes = counts.cumsum(0) - counts, counts.tolist()
    ranks = torch.arange(len(order), 0, -1, dtype=torch.float32, device=boxes.device)
    parts = zip(boxes[order].split(sizes), ranks.split(sizes), strict=True)
    kept = [nms(rows, ranks_here, threshold) for rows, ranks_here in parts if len(rows) > 1]
    # Each group's first place beside those that the kernel kept of it; who is alone stays.
    firsts = starts[counts > 1].repeat_interleave(starts.new_tensor([len(places) for places in kept]))
    return order[torch.cat([starts[counts == 1], firsts + torch.cat(kept)])] if kept else order[starts]


def _by_score(scores: Tensor) -> Tensor:
    """Best first, ties by index, so that the kernel's own sort has nothing to decide."""
    return torch.argsort(scores, descending=True, stable=True)


def _as_the_kernel_compares(
    boxes: Tensor, iou: float, *, comparison: str, plus_one_sides: bool
) -> tuple[float, Tensor]:
    """The threshold and the boxes with which the kernel does what is asked."""
    # The kernel compares with ">". On a CPU it widens the overlap to float64, on CUDA it narrows the threshold to
    # float32; a threshold that is a float32 number makes both agree. Above the next lower number means at or above.
    threshold = np.float32(iou)
    if comparison == ">=":
        threshold = np.nextafter(threshold, np.float32(0))
    if plus_one_sides:
        # Sides x2 - x1 + 1, of the boxes and of their intersection, are plain sides of boxes that end one pixel later.
        boxes = torch.cat([boxes[:, :2], boxes[:, 2:] + 1], dim=1)
    return float(threshold), boxes
