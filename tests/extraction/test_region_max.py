"""RoIPool by look-up against torchvision's kernel: the same bits."""

from __future__ import annotations

import pytest
import torch
from torchvision.ops import roi_pool

from roibeam.extraction.network.roi_heads import DistinctBins, RegionMax, WindowMax

CHUNK = 16
both = pytest.mark.parametrize("look_up", [RegionMax, WindowMax])


def random_boxes(count: int, height: int, width: int) -> torch.Tensor:
    """Corners anywhere up to half a cell outside the map; a third on exact half cells, which C rounds up."""
    generator = torch.Generator().manual_seed(count)
    corners = torch.rand(count, 2, 2, generator=generator) * (torch.tensor([width, height]) * 16 + 16) - 8
    corners[: count // 3] = (corners[: count // 3] / 8).round() * 8
    return torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)


# True size; a portrait; the toy network; a panorama; one cell; regions of 84 cells (windows of four levels).
sizes = pytest.mark.parametrize(
    "height, width, cells, count",
    [(50, 67, 14, 300), (83, 50, 14, 40), (22, 33, 5, 33), (3, 83, 14, 20), (1, 1, 14, 5), (84, 84, 5, 50)],
)


@sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@both
def test_bins_are_those_of_torchvision(look_up, height, width, cells, count, dtype):
    feature_map = torch.randn(1, 8, height, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    boxes = random_boxes(count, height, width)
    want = roi_pool(feature_map.float(), [boxes], cells, 1 / 16)
    pool = look_up(feature_map, boxes, cells=cells, stride=16, chunk=CHUNK)
    for first in range(0, count, CHUNK):
        got = pool(first)
        here = min(CHUNK, count - first)
        assert got.shape == (CHUNK, 8, cells, cells) and got.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(got[:here].float(), want[first : first + here])
        assert not got[here:].any()  # zeros after the last region


@sizes
def test_bins_that_differ_stand_for_all(height, width, cells, count):
    """Each is there once, and every bin finds its own, those past the map's end a row of zeros."""
    feature_map = torch.randn(1, 8, height, width, generator=torch.Generator().manual_seed(0))
    boxes = random_boxes(count, height, width)
    bins = DistinctBins(feature_map, boxes, cells=cells, stride=16, chunk=CHUNK)
    rows = torch.cat([bins(first).clone() for first in range(0, bins.count, bins.at_once)])
    assert bins.ids.unique().tolist() == list(range(bins.count)) and not rows[bins.count :].any()
    want = roi_pool(feature_map, [boxes], cells, 1 / 16).permute(0, 2, 3, 1)
    assert torch.equal(rows[bins.ids], want)
    assert bins.count < bins.ids.numel()


@both
def test_every_width_of_a_region_has_the_bins_of_the_float32_formula(look_up):
    """Exact arithmetic differs at 29, 57, 58 and 62 cells."""
    feature_map = torch.arange(84.0).expand(1, 1, 1, 84)
    boxes = torch.tensor([[0.0, 0.0, 16.0 * (cells - 1), 0.0] for cells in range(1, 85)])
    pool = look_up(feature_map, boxes, cells=14, stride=16, chunk=96)
    assert torch.equal(pool(0)[:84], roi_pool(feature_map, [boxes], 14, 1 / 16))


@both
def test_nan_in_a_bin_is_seen(look_up):
    feature_map = torch.zeros(1, 1, 4, 4)
    feature_map[0, 0, 2, 2] = float("nan")
    pooled = look_up(feature_map, torch.tensor([[0.0, 0.0, 48.0, 48.0]]), cells=2, stride=16, chunk=1)(0)
    assert torch.isnan(pooled[0, 0, 1, 1]) and not torch.isnan(pooled[0, 0, 0, 0])


@both
def test_no_regions_give_zeros(look_up):
    pooled = look_up(torch.ones(1, 2, 3, 3), torch.empty(0, 4), cells=7, stride=16, chunk=CHUNK)(0)
    assert pooled.shape == (CHUNK, 2, 7, 7) and not pooled.any()
