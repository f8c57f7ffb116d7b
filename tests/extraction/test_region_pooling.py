"""RoIPool and RoIAlign by look-up against torchvision's kernels: the same bits, and the same up to rounding."""

from dataclasses import replace

import pytest
import torch
from torchvision.ops import roi_align, roi_pool

from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.roi_heads import DistinctBins, RegionAlign, RegionMax, WindowMax, pool_regions

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


def boxes_off_the_map(count: int, height: int, width: int) -> torch.Tensor:
    """Corners anywhere up to three cells outside the map; some boxes are empty, some corners on the map's last edge."""
    generator = torch.Generator().manual_seed(count)
    corners = torch.rand(count, 2, 2, generator=generator) * (torch.tensor([width, height]) * 16 + 96) - 48
    corners[: count // 3] = (corners[: count // 3] / 16).round() * 16
    corners[::5, 1] = corners[::5, 0]
    return torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)


@pytest.mark.parametrize(
    "height, width, cells, count",
    # True size; a portrait; the toy network; a panorama; one cell.
    [(50, 67, 14, 100), (83, 50, 14, 40), (22, 33, 5, 200), (3, 83, 14, 20), (1, 1, 14, 20)],
)
def test_aligned_bins_are_those_of_torchvision(height, width, cells, count):
    feature_map = torch.randn(1, 8, height, width, generator=torch.Generator().manual_seed(0))
    boxes = boxes_off_the_map(count, height, width)
    want = roi_align(feature_map, [boxes], cells, 1 / 16, sampling_ratio=1, aligned=False)
    assert (want == 0).all(dim=1).any()  # bins off the map are among them
    regions = RegionAlign(boxes, (height, width), cells=cells, stride=16, chunk=CHUNK)
    rows = feature_map[0].flatten(1).t().contiguous()
    for first in range(0, count, CHUNK):
        got = regions(rows, first)
        here = min(CHUNK, count - first)
        assert got.shape == (CHUNK, 8, cells, cells) and got.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(got[:here], want[first : first + here], rtol=0, atol=1e-6)
        assert not got[here:].any()  # zeros after the last region


def test_no_aligned_regions_give_zeros():
    sampled = RegionAlign(torch.empty(0, 4), (3, 3), cells=7, stride=16, chunk=CHUNK)(torch.ones(9, 2), 0)
    assert sampled.shape == (CHUNK, 2, 7, 7) and not sampled.any()


@pytest.mark.parametrize(("pool", "weights"), [("roi-align-1", (0.0, 1.0, 0.0)), ("roi-align-0", (0.25, 0.5, 0.25))])
def test_a_bin_has_one_sample_or_as_many_as_it_has_cells(pool: str, weights: tuple[float, ...]) -> None:
    """Bins of two cells: one sample lies on a cell, two lie between three. R2C takes the latter."""
    line = torch.randn(16, generator=torch.Generator().manual_seed(0))
    feature_map = line.expand(1, 1, 16, 16).contiguous()
    conventions = replace(CONVENTIONS["r2c"], region_pool=pool)
    got = pool_regions(feature_map, [torch.tensor([[0.0, 0.0, 224.0, 224.0]])], conventions, cells=7)
    want = sum(weight * line[place : place + 13 : 2] for place, weight in enumerate(weights))
    torch.testing.assert_close(got[0, 0], want.expand(7, 7), rtol=0, atol=1e-6)
    assert CONVENTIONS["r2c"].region_pool == "roi-align-0"
