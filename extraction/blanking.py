"""Regions hidden in the network's input: their pixels become the mean colour, which is zero after normalising."""

from __future__ import annotations

from torch import Tensor


def blank_regions(pixels: Tensor, boxes: Tensor) -> Tensor:
    """A copy of one network input with the given boxes blanked.

    jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py: rows int(y1) to int(y2) and columns int(x1) to
    int(x2), last ones included. Other regions that overlap a blanked box lose the same pixels.

    Args:
        pixels: (3, H, W) or (1, 3, H, W) float32, mean removed.
        boxes: (n, 4), x1 y1 x2 y2 in pixels of the input; what lies outside is left out.
    """
    blanked = pixels.clone()
    for x1, y1, x2, y2 in boxes.tolist():
        rows = slice(max(int(y1), 0), max(int(y2) + 1, 0))
        columns = slice(max(int(x1), 0), max(int(x2) + 1, 0))
        blanked[..., rows, columns] = 0
    return blanked
