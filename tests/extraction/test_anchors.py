"""Anchors at the cells of a map."""

import torch

from roibeam.extraction.network.anchors import grid_anchors


def test_anchors_stand_row_by_row_and_at_each_cell_one_after_the_other():
    cell = torch.tensor([[0.0, 0.0, 4.0, 2.0], [-1.0, -2.0, 1.0, 2.0]])
    grid = grid_anchors(cell, (2, 3), 16)
    corners = [[0, 0], [16, 0], [32, 0], [0, 16], [16, 16], [32, 16]]
    assert grid.shape == (12, 4)
    assert grid[0::2].tolist() == [[x, y, x + 4, y + 2] for x, y in corners]
    assert grid[1::2].tolist() == [[x - 1, y - 2, x + 1, y + 2] for x, y in corners]
