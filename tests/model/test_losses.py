"""Denominators: what is counted, and that nothing counted gives 0 with a gradient, never NaN."""

import math

import pytest
import torch

from roibeam.model.common.losses import SumCount, accuracy, cross_entropy, soft_cross_entropy
from roibeam.model.inputs import IGNORE_INDEX


def test_cross_entropy_counts_labelled_rows_only():
    logits = torch.zeros(4, 10)
    term = cross_entropy(logits, torch.tensor([3, IGNORE_INDEX, 7, IGNORE_INDEX]))
    assert term.count.item() == 2
    torch.testing.assert_close(term.mean, torch.tensor(math.log(10)))


def test_soft_cross_entropy_of_a_one_hot_is_cross_entropy():
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 6, 3, 3, 1])
    mask = torch.tensor([True, False, True, True, False])
    soft = soft_cross_entropy(logits, torch.nn.functional.one_hot(labels, 7).float(), mask)
    torch.testing.assert_close(soft.mean, cross_entropy(logits[mask], labels[mask]).mean)


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_to_predict_gives_zero_with_a_gradient(rows):
    logits = torch.randn(rows, 7, requires_grad=True)
    nothing = torch.zeros(rows, dtype=torch.bool)
    terms = [
        cross_entropy(logits, torch.full((rows,), IGNORE_INDEX)),
        soft_cross_entropy(logits, torch.zeros(rows, 7), nothing),
    ]
    total = sum(term.mean for term in terms)
    assert total.item() == 0 and all(term.count.item() == 0 for term in terms)
    total.backward()
    assert logits.grad.abs().sum().item() == 0


def test_two_halves_add_up_to_the_whole():
    logits, labels = torch.randn(6, 5), torch.tensor([0, 1, IGNORE_INDEX, 2, 3, 4])
    whole = cross_entropy(logits, labels)
    halves = cross_entropy(logits[:3], labels[:3]) + cross_entropy(logits[3:], labels[3:])
    torch.testing.assert_close(halves.mean, whole.mean)


def test_accuracy():
    logits = torch.eye(3)
    term = accuracy(logits, torch.tensor([0, 2, 2]), torch.tensor([True, True, True]))
    assert term.mean.item() == pytest.approx(2 / 3)


def test_plain_numbers_are_scalars_and_losses_that_were_not_added_up_are_refused():
    weight = torch.tensor(3.0, requires_grad=True)
    term = SumCount(weight * 2, 4) + SumCount(1.0, 2)
    assert term.count.item() == 6 and term.mean.item() == pytest.approx(7 / 6)
    term.mean.backward()
    assert weight.grad.item() == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match=r"SumCount: total must be a scalar, got shape \(2,\); add it up"):
        SumCount(torch.ones(2), 2)
