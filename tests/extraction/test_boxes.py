"""Anchors at the cells of a map, and boxes that are moved."""

import math

import pytest
import torch

from roibeam.extraction.network.boxes import decode_deltas, grid_anchors


def test_anchors_stand_row_by_row_and_at_each_cell_one_after_the_other():
    cell = torch.tensor([[0.0, 0.0, 4.0, 2.0], [-1.0, -2.0, 1.0, 2.0]])
    grid = grid_anchors(cell, (2, 3), 16)
    corners = [[0, 0], [16, 0], [32, 0], [0, 16], [16, 16], [32, 16]]
    assert grid.shape == (12, 4)
    assert grid[0::2].tolist() == [[x, y, x + 4, y + 2] for x, y in corners]
    assert grid[1::2].tolist() == [[x - 1, y - 2, x + 1, y + 2] for x, y in corners]


@pytest.mark.parametrize("wild", [2, 3])
def test_a_wild_delta_makes_a_box_as_wide_or_high_as_the_cap_allows(wild):
    boxes, deltas = torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.zeros(1, 4)
    deltas[0, wild] = 9.0
    moved = decode_deltas(boxes, deltas, weights=(1.0, 1.0, 1.0, 1.0), delta_cap=math.log(2), plus_one_sides=False)
    want = [-5, 0, 15, 10] if wild == 2 else [0, -5, 10, 15]
    assert moved[0].tolist() == pytest.approx(want)
