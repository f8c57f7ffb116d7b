"""Retrieval losses by hand, and over any model."""

import math

import pytest
import torch
from imagebert_examples import make_model
from vilbert_examples import make_batch, randomised, tiny

from roibeam.model.task_losses import RETRIEVAL_LOSSES, binary_loss, multi_class_loss, retrieval_losses, triplet_loss
from roibeam.model.vilbert.model import ViLbertForPreTraining

# Probabilities of a match 3/4, 1/2 and 1/4; the first is right in one group, the last in the other.
LOG_ODDS = torch.tensor([[math.log(3), 0.0, -math.log(3)]] * 2, dtype=torch.float64)
TRUE = torch.tensor([0, 2])


def test_by_hand():
    binary, multi_class, triplet = (loss(LOG_ODDS, TRUE) for loss in (binary_loss, multi_class_loss, triplet_loss))
    assert [binary.count, multi_class.count, triplet.count] == [6, 2, 2]
    right = -math.log(3 / 4) - math.log(1 / 2) - math.log(3 / 4)
    wrong = -math.log(1 / 4) - math.log(1 / 2) - math.log(1 / 4)
    assert binary.total.item() == pytest.approx(right + wrong)
    assert binary_loss(LOG_ODDS[:1], TRUE[:1]).total.item() == pytest.approx(right)
    # Odds 3, 1 and 1/3 of 13/3.
    assert multi_class.total.item() == pytest.approx(-math.log(9 / 13) - math.log(1 / 13))
    assert multi_class_loss(LOG_ODDS[:1], TRUE[:1]).total.item() == pytest.approx(-math.log(9 / 13))
    # 0.2 - 3/4 + 1/2 is below 0; the other group's hardest wrong one is the first.
    assert triplet.total.item() == pytest.approx(0.2 - 1 / 4 + 3 / 4)
    assert triplet_loss(LOG_ODDS, TRUE, margin=0.3).total.item() == pytest.approx(0.05 + 0.8)


def test_the_triplet_moves_the_right_one_and_the_hardest():
    log_odds = LOG_ODDS.clone().requires_grad_()
    triplet_loss(log_odds, TRUE).total.backward()
    assert log_odds.grad[0].eq(0).all() and log_odds.grad[1, 1] == 0
    assert log_odds.grad[1, 0] > 0 > log_odds.grad[1, 2]


def test_the_order_of_candidates_does_not_matter():
    order = torch.tensor([2, 0, 1])
    turned = retrieval_losses(LOG_ODDS[:, order], torch.tensor([1, 0]), tuple(RETRIEVAL_LOSSES))
    for name, term in retrieval_losses(LOG_ODDS, TRUE, tuple(RETRIEVAL_LOSSES)).items():
        torch.testing.assert_close(turned[name].total, term.total)


def test_only_what_is_asked_for():
    assert list(retrieval_losses(LOG_ODDS, TRUE)) == ["binary"]  # the best alone, table 4
    assert list(retrieval_losses(LOG_ODDS, TRUE, ("triplet", "binary"))) == ["triplet", "binary"]


def test_half_precision_is_summed_in_single():
    for term in retrieval_losses(LOG_ODDS.bfloat16(), TRUE, tuple(RETRIEVAL_LOSSES)).values():
        assert term.total.dtype == torch.float32


@pytest.mark.parametrize("model", [make_model(), randomised(ViLbertForPreTraining(tiny()))])
def test_groups_of_any_model_s_pairs(model):
    """One caption with two images, and the loss reaches the whole encoder."""
    batch = make_batch((6, 6), (4, 3))
    log_odds = model.match_log_odds(model.encode(batch)).view(-1, 2)
    losses = retrieval_losses(log_odds, torch.tensor([0]), tuple(RETRIEVAL_LOSSES))
    sum(term.mean for term in losses.values()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    "log_odds, names, message",
    [
        (LOG_ODDS, ("binary", "hinge"), "no retrieval loss 'hinge'; there are binary, multi_class, triplet"),
        (LOG_ODDS[:, :1], ("triplet",), r"at least 2 candidates, got shape \(2, 1\)"),
        (LOG_ODDS[0], ("binary",), r"got shape \(3,\)"),
    ],
)
def test_what_they_refuse(log_odds, names, message):
    with pytest.raises(ValueError, match=message):
        retrieval_losses(log_odds, TRUE, names)
