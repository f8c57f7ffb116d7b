"""Losses of one photo: values by hand, units, and what happens when there is nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from roibeam.extraction.training.rules import LossRules
from roibeam.extraction.training.targets import (
    IGNORE,
    AnchorTargets,
    RegionTargets,
    attribute_loss,
    class_loss,
    objectness_loss,
    proposal_box_loss,
    region_box_loss,
)

RULES = LossRules()
ONES = (1.0, 1.0, 1.0, 1.0)


def anchors(positive, negative, deltas=()):
    return AnchorTargets(ids(positive), ids(negative), torch.tensor(deltas, dtype=torch.float32).reshape(-1, 4))


def regions(class_ids, deltas=()):
    boxes = torch.zeros(len(class_ids), 4)
    deltas = torch.tensor(deltas, dtype=torch.float32).reshape(-1, 4)
    return RegionTargets(boxes, ids(class_ids), deltas, torch.full((len(deltas), 1), IGNORE), ids(0), 0)


def ids(values):
    return torch.tensor(values, dtype=torch.int64)


def test_objectness_is_the_cross_entropy_of_the_pair():
    pair = torch.randn(2, 30, generator=torch.Generator().manual_seed(0))
    targets = anchors([3, 7], [0, 1, 29])
    want = functional.cross_entropy(pair[:, [3, 7, 0, 1, 29]].T, ids([1, 1, 0, 0, 0]))
    torch.testing.assert_close(objectness_loss(pair[1] - pair[0], targets), want)


@pytest.mark.parametrize("error, loss", [(0.05, 4.5 * 0.05**2), (0.5, 0.5 - 1 / 18)])  # sigma 3: 4.5 x^2, |x| - 1/18
def test_anchor_box_loss_is_over_all_sampled_anchors(error, loss):
    said = torch.zeros(9, 4)
    said[4, 2] = error * 2  # told in units of the weights
    targets = anchors([4], [0, 1, 2], [[0, 0, 0, 0]])
    got = proposal_box_loss(said, targets, (1.0, 1.0, 2.0, 1.0), RULES)
    assert float(got) == pytest.approx(loss / 4)
    plain = proposal_box_loss(said, targets, (1.0, 1.0, 2.0, 1.0), LossRules(proposal_beta=0.0))
    assert float(plain) == pytest.approx(error / 4)


def test_region_box_loss_reads_the_true_class_and_does_not_depend_on_the_delta_weights():
    raw = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0)) * 0.1
    targets = regions([2, 0, 3, 3, 3], [[0.1, 0, -0.2, 0.3], [0, 0.4, 0, 0]])
    losses = [
        float(region_box_loss(raw * torch.tensor(weights), targets, weights, RULES))
        for weights in (ONES, (10.0, 10.0, 5.0, 5.0), (2.0, 3.0, 4.0, 5.0))
    ]
    error = (torch.stack([raw[0, 2], raw[1, 0]]) - targets.deltas).abs() * torch.tensor([10.0, 10, 5, 5])
    want = torch.where(error < 1, error**2 / 2, error - 0.5).sum() / 5
    assert losses == pytest.approx([float(want)] * 3)


def test_regions_that_are_no_example_do_not_count():
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    want = functional.cross_entropy(logits[:2], ids([1, 3]))
    torch.testing.assert_close(class_loss(logits, regions([1, 3, IGNORE])), want)


def test_each_object_counts_once_however_many_attributes_it_has():
    logits = torch.tensor([[2.0, 0, 0, 1], [0, 0, 0, 0], [5, 0, 0, 0]])
    attribute_ids = ids([[0, 3, -1], [-1, 2, -1], [-1, -1, -1]])
    log_z = math.log(math.e**2 + math.e + 2)
    want = ((log_z - 2 + log_z - 1) / 2 + math.log(4)) / 2
    assert float(attribute_loss(logits, attribute_ids, RULES)) == pytest.approx(0.5 * want)
    assert float(attribute_loss(logits, attribute_ids, LossRules(attribute_weight=2.0))) == pytest.approx(2 * want)


def losses_of_nothing(dtype):
    none, no_regions = anchors([], []), regions([IGNORE])
    logits, deltas = torch.zeros(6, dtype=dtype, requires_grad=True), torch.zeros(6, 4, dtype=dtype, requires_grad=True)
    class_logits = torch.zeros(1, 4, dtype=dtype, requires_grad=True)
    class_deltas = torch.zeros(1, 3, 4, dtype=dtype, requires_grad=True)
    attributes = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    yield objectness_loss(logits, none), logits
    yield proposal_box_loss(deltas, none, ONES, RULES), deltas
    yield class_loss(class_logits, no_regions), class_logits
    yield region_box_loss(class_deltas, no_regions, ONES, RULES), class_deltas
    yield attribute_loss(attributes, ids([[-1], [-1]]), RULES), attributes
    yield attribute_loss(attributes[:0], ids([]).reshape(0, 2), RULES), attributes
    yield attribute_loss(attributes, ids([]).reshape(2, 0), RULES), attributes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_over_nothing_is_zero_with_a_gradient_of_zero(dtype):
    for loss, said in losses_of_nothing(dtype):
        assert loss.dtype == torch.float32 and float(loss.detach()) == 0
        (gradient,) = torch.autograd.grad(loss, said)
        assert torch.equal(gradient, torch.zeros_like(said))


def test_negative_weights_are_refused():
    with pytest.raises(ValueError, match=r"region_beta is -1\.0; it must not be negative"):
        LossRules(region_beta=-1.0)
