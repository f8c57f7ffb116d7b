"""Negatives of the contrastive region loss, and that loss."""

import math

import pytest
import torch
from vilbert_examples import FEATURES, make_batch, randomised, tiny

from model.losses import contrastive
from model.pretraining import draw_negatives
from model.vilbert import ViLbertForPreTraining


def draw(regions, count=400, share=0.7, seed=0):
    batch = make_batch((3,) * len(regions), regions)
    predicted = batch.region_target_mask
    negatives = draw_negatives(
        batch.region_mask, predicted, count, torch.Generator().manual_seed(seed), from_other_images=share
    )
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


@pytest.mark.parametrize("regions, rows", [((1,), 1), ((0,), 0)])
def test_a_region_alone_has_no_negatives(regions, rows):
    assert draw(regions)[2].shape == (rows, 0)


def test_the_generator_decides():
    assert torch.equal(draw((5, 6))[2], draw((5, 6))[2])
    assert not torch.equal(draw((5, 6))[2], draw((5, 6), seed=1)[2])


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
    assert (output.losses["masked_regions"].mean > 0) == (sum(regions) > 1)
    assert "masked_region_accuracy" not in output.metrics
    sum(term.mean for term in output.losses.values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    again = model(batch, torch.Generator().manual_seed(0)).losses["masked_regions"].total
    assert torch.equal(again, output.losses["masked_regions"].total)
