"""Negatives of the contrastive region loss, and that loss."""

import math

import pytest
import torch
from vilbert_examples import FEATURES, make_batch, randomised, tiny

from roibeam.model.common.losses import contrastive
from roibeam.model.pretraining import draw_negatives
from roibeam.model.vilbert.model import ViLbertForPreTraining


def draw(regions, count=400, share=0.7, seed=0, group=64):
    batch = make_batch((3,) * len(regions), regions)
    predicted = batch.region_target_mask
    seeds = range(seed, seed + len(regions))
    negatives = draw_negatives(batch.region_mask, predicted, count, seeds, from_other_images=share, group_rows=group)
    return batch, predicted.flatten().nonzero().squeeze(1), negatives


def test_negatives_are_real_regions_of_this_and_of_other_images():
    batch, places, negatives = draw((5, 6, 3))
    assert negatives.shape == (6, 400)
    real, width = batch.region_mask.flatten(), batch.region_mask.shape[1]
    for place, row in zip(places, negatives, strict=True):
        assert real[row].all() and place not in row
        same = row // width == place // width
        assert same.sum() == 120 and (row[280:] // width == place // width).all()
        others = set(real.nonzero().squeeze(1).tolist()) - {place.item()}
        assert set(row.tolist()) == others  # every other region turns up among 400


@pytest.mark.parametrize("regions", [(1, 1), (4,)])
def test_one_kind_takes_the_other_s_place(regions):
    batch, places, negatives = draw(regions, count=10)
    width = batch.region_mask.shape[1]
    same = negatives // width == places[:, None] // width
    assert same.all() == (regions == (4,)) and not (negatives == places[:, None]).any()


@pytest.mark.parametrize("regions, group, alone", [((1,), 64, 0), ((0,), 64, None), ((1, 5, 0, 1), 1, 0)])
def test_a_region_alone_stands_for_its_negatives(regions, group, alone):
    _, places, negatives = draw(regions, count=7, group=group)
    assert negatives.shape == (len(places), 7)
    lonely = [row for row, place in enumerate(places) if (negatives[row] == place).any()]
    assert lonely == ([] if alone is None else [alone] if len(regions) == 1 else [0, len(places) - 1])
    assert all((negatives[row] == places[row]).all() for row in lonely)


def test_the_seeds_decide():
    assert torch.equal(draw((5, 6))[2], draw((5, 6))[2])
    assert not torch.equal(draw((5, 6))[2], draw((5, 6), seed=1)[2])


def test_each_kind_is_drawn_evenly():
    """Of 60,000 draws, each of the 6 others of the image and of the 9 of other images, within five deviations."""
    _, places, negatives = draw((7, 5, 4), count=60_000, share=0.5, group=3)
    for place, row in zip(places, negatives, strict=True):
        own = row // 7 == place // 7
        for kind in (row[own], row[~own]):
            counts = torch.unique(kind, return_counts=True)[1]
            expected = 30_000 / len(counts)
            assert ((counts - expected).abs() <= 5 * math.sqrt(expected)).all()
        assert len(torch.unique(row)) == 15


def test_a_group_draws_alike_in_any_batch():
    """The second group of two rows, alone in a batch with less padding, with the seeds that its rows have."""
    batch, places, negatives = draw((7, 2, 5, 3, 6), group=2)
    mask, predicted = batch.region_mask[2:4, :5], batch.region_target_mask[2:4, :5]
    alone = draw_negatives(mask, predicted, 400, [2, 3], from_other_images=0.7, group_rows=2)
    in_group = (places // 7 == 2) | (places // 7 == 3)
    together = negatives[in_group]
    assert torch.equal((together // 7 - 2) * 5 + together % 7, alone)
    assert set((negatives[~in_group & (places // 7 < 4)] // 7).flatten().tolist()) == {0, 1}
    assert set((negatives[places // 7 == 4] // 7).flatten().tolist()) == {4}


def test_a_loss_without_others_is_that_of_chance_and_moves_nothing():
    prediction, positive = torch.ones(1, 3, requires_grad=True), torch.tensor([[1.0, -2.0, 5.0]])
    term = contrastive(prediction, positive, positive[:, None].expand(-1, 7, -1))
    term.mean.backward()
    torch.testing.assert_close(term.mean.detach(), torch.tensor(math.log(8)))
    assert prediction.grad.abs().max() < 1e-6


def test_contrastive_is_cross_entropy_of_the_first():
    predictions, positives = torch.eye(2), torch.eye(2) * 3
    negatives = torch.zeros(2, 4, 2)
    term = contrastive(predictions, positives, negatives)
    assert term.count == 2
    torch.testing.assert_close(term.mean, torch.tensor(-math.log(math.exp(3) / (math.exp(3) + 4))))
    assert contrastive(predictions[:0], positives[:0], negatives[:0]).mean == 0


@pytest.mark.parametrize("regions", [(5, 6, 1), (1, 0, 0), (0, 0, 0)])
def test_contrastive_pretraining(regions):
    config = tiny(region_loss="contrastive", region_target_size=FEATURES, num_negatives=20)
    model = randomised(ViLbertForPreTraining(config))
    batch = make_batch(regions=regions, target_size=FEATURES)
    with pytest.raises(ValueError, match="hand in a generator"):
        model(batch)
    output = model(batch, torch.Generator().manual_seed(0))
    assert (output.losses["masked_regions"].mean > 0) == (sum(regions) > 0)
    assert "masked_region_accuracy" not in output.metrics
    sum(term.mean for term in output.losses.values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    again = model(batch, torch.Generator().manual_seed(0)).losses["masked_regions"].total
    assert torch.equal(again, output.losses["masked_regions"].total)
