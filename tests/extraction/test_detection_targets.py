"""Which anchors and regions are trained on, and on what; losses of one photo: values by hand, units, and what happens
when there is nothing."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from roibeam.extraction.network.boxes import decode_deltas
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.extraction.training.targets import (
    IGNORE,
    AnchorTargets,
    Objects,
    RegionTargets,
    anchor_targets,
    attribute_loss,
    class_loss,
    encode_deltas,
    match,
    objectness_loss,
    overlaps,
    proposal_box_loss,
    region_box_loss,
    region_targets,
    sample,
)

HF, CAFFE = CONVENTIONS["hf"], CONVENTIONS["caffe"]
EVERYTHING = SamplingRules(
    anchors_per_image=1000, anchor_positive_fraction=1, regions_per_image=1000, region_positive_fraction=1
)


def boxes_of(*rows):
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)


def objects_of(*rows, classes=None, attributes=None, ignored=()):
    count = len(rows)
    return Objects(
        boxes_of(*rows),
        torch.tensor(classes or [0] * count, dtype=torch.int64),
        torch.tensor(attributes, dtype=torch.int64) if attributes else torch.full((count, 1), IGNORE),
        torch.tensor([row in ignored for row in range(count)], dtype=torch.bool),
    )


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def labels_of(candidates, objects, *, positive=0.7, negative=0.3, best=False, plus_one=False):
    labels, matched = match(
        boxes_of(*candidates),
        (200, 200),
        objects,
        positive_iou=positive,
        negative_iou=negative,
        best_of_each=best,
        plus_one_sides=plus_one,
    )
    return labels.tolist(), matched.tolist()


@pytest.mark.parametrize("plus_one, iou, covered", [(False, 8 / 24, 8 / 16), (True, 15 / 35, 15 / 25)])
def test_overlap_counts_the_last_pixel_where_the_conventions_do(plus_one, iou, covered):
    found = overlaps(boxes_of([0, 0, 4, 4]), boxes_of([2, 0, 6, 4], [10, 10, 12, 12]), plus_one_sides=plus_one)
    torch.testing.assert_close(found[0], torch.tensor([[iou, 0.0]]))
    torch.testing.assert_close(found[1], torch.tensor([[covered, 0.0]]))


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0)])
def test_encoding_is_what_decoding_undoes(plus_one, weights):
    corners = torch.rand(50, 2, generator=generator()) * 50
    sides = torch.rand(50, 2, generator=generator(1)) * 40 + 1
    boxes = torch.cat([corners, corners + sides], dim=1)
    targets = boxes.flip(0)
    deltas = encode_deltas(boxes, targets, plus_one_sides=plus_one) * torch.tensor(weights)
    moved = decode_deltas(boxes, deltas, weights=weights, delta_cap=None, plus_one_sides=plus_one)
    # The originals with inclusive boxes decode to one pixel past the far edge.
    end = torch.tensor([0.0, 0.0, 1.0, 1.0]) if plus_one else torch.zeros(4)
    torch.testing.assert_close(moved, targets + end, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "candidate, label",
    [
        ([0, 0, 10, 10], 1),
        ([0, 0, 10, 7], 1),  # exactly at the threshold
        ([0, 0, 10, 5], IGNORE),
        ([0, 0, 10, 3], IGNORE),  # exactly at the other: not below it
        ([0, 0, 10, 2], 0),
        ([20, 20, 30, 30], 0),
    ],
)
def test_overlap_decides(candidate, label):
    labels, matched = labels_of([candidate], objects_of([50, 50, 60, 60], [0, 0, 10, 10]))
    assert labels == [label] and (label != 1 or matched == [1])


def test_best_candidates_of_an_object_show_it_however_little_ties_included():
    candidates = [[0, 0, 4, 10], [6, 0, 10, 10], [0, 0, 3, 10], [70, 70, 80, 80]]
    objects = objects_of([0, 0, 10, 10], [90, 90, 99, 99])
    assert labels_of(candidates, objects, best=True)[0] == [1, 1, IGNORE, 0]
    assert labels_of(candidates, objects, best=False)[0] == [IGNORE, IGNORE, IGNORE, 0]


def test_a_photo_without_objects_is_background():
    assert labels_of([[0, 0, 4, 4], [1, 1, 9, 9]], objects_of(), best=True)[0] == [0, 0]
    assert labels_of([], objects_of([0, 0, 9, 9]), best=True) == ([], [])
    assert labels_of([], objects_of(), best=True) == ([], [])


def test_what_lies_in_an_ignored_box_is_no_example():
    crowd, person = [0, 0, 100, 100], [10, 10, 30, 30]
    objects = objects_of(crowd, person, ignored=[0])
    candidates = [
        [50, 50, 60, 60],  # in the crowd
        [10, 10, 30, 30],  # in the crowd, but the person
        [90, 50, 140, 60],  # 10/50 of it in the crowd
        [95, 50, 145, 60],  # 5/50
        [-90, 50, 5, 60],  # in the crowd, as far as it is in the photo
        [150, 150, 160, 160],
        [250, 250, 260, 260],  # beside the photo
    ]
    labels, matched = labels_of(candidates, objects, negative=0.15)
    assert labels == [IGNORE, 1, IGNORE, 0, IGNORE, 0, 0] and matched == [1] * 7
    labels, _ = labels_of(candidates, objects_of(crowd, ignored=[0]), best=True)
    assert labels == [IGNORE, IGNORE, 0, 0, IGNORE, 0, 0]
    assert labels_of(candidates, objects, negative=0.15, plus_one=True)[0] == [IGNORE, 1, IGNORE, 0, IGNORE, 0, 0]


@pytest.mark.parametrize(
    "num_positive, num_negative, drawn", [(100, 100, (5, 15)), (3, 100, (3, 17)), (0, 4, (0, 4)), (100, 2, (5, 2))]
)
def test_samples_are_at_most_so_many_and_positive_up_to_a_part(num_positive, num_negative, drawn):
    labels = torch.tensor([1] * num_positive + [0] * num_negative + [IGNORE] * 7)
    labels = labels[torch.randperm(len(labels), generator=generator())]
    positive, negative = sample(labels, 20, 0.25, generator())
    assert (len(positive), len(negative)) == drawn
    assert bool((labels[positive] == 1).all()) and bool((labels[negative] == 0).all())
    assert len({*positive.tolist(), *negative.tolist()}) == sum(drawn)


def test_samples_follow_the_generator():
    labels = torch.cat([torch.ones(50), torch.zeros(50)]).long()
    first, again, other = (sample(labels, 20, 0.5, generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0]) and not torch.equal(first[1], other[1])


def test_every_candidate_is_drawn_as_often_as_any_other():
    labels, draws = torch.zeros(10, dtype=torch.int64), generator()
    counts = torch.bincount(torch.cat([sample(labels, 3, 0.5, draws)[1] for _ in range(2000)]), minlength=10)
    assert int(counts.sum()) == 6000 and int((counts - 600).abs().max()) < 100  # 100 is 4.9 deviations


@pytest.mark.parametrize("conventions, border, inside", [(HF, None, 4), (HF, 0.0, 2), (CAFFE, 0.0, 1), (HF, 2.0, 3)])
def test_anchors_past_the_border_are_not_trained_on(conventions, border, inside):
    anchors = boxes_of([0, 0, 9, 9], [0, 0, 10, 10], [-2, 0, 8, 8], [4, 4, 14, 14])
    rules = replace(EVERYTHING, anchor_border=border)
    targets = anchor_targets(anchors, (10, 10), objects_of(), rules, conventions, generator())
    assert sorted(targets.negative.tolist()) == list(range(inside)) and targets.deltas.shape == (0, 4)


def test_anchor_targets_name_anchors_and_their_deltas():
    anchors = boxes_of([-9, 0, 5, 5], [40, 40, 60, 60], [0, 0, 10, 10], [70, 0, 90, 20])
    objects = objects_of([70, 0, 95, 20], [0, 0, 10, 12], [0, 0, 9, 9], ignored=[2])
    rules = replace(EVERYTHING, anchor_border=0.0)
    targets = anchor_targets(anchors, (100, 100), objects, rules, HF, generator())
    assert sorted(targets.positive.tolist()) == [2, 3] and targets.negative.tolist() == [1]
    want = encode_deltas(anchors[targets.positive], objects.boxes[3 - targets.positive], plus_one_sides=False)
    torch.testing.assert_close(targets.deltas, want)


def test_region_targets_hold_the_objects_themselves_first():
    proposals = boxes_of([0, 0, 10, 9], [50, 50, 60, 60], [80, 80, 99, 99])
    objects = objects_of(
        [0, 0, 10, 10],
        [30, 0, 40, 10],
        [80, 80, 100, 100],
        [30, 0, 40, 11],  # shows the second object as well, but is none to choose
        classes=[2, 1, 0, 0],
        attributes=[[4, 1], [-1, -1], [0, 0], [0, 0]],
        ignored=[2, 3],
    )
    targets = region_targets(proposals, (100, 100), objects, EVERYTHING, HF, 7, generator())
    assert sorted(targets.class_ids[:3].tolist()) == [1, 2, 2] and targets.class_ids[3:].tolist() == [7]
    assert sorted(targets.boxes.tolist()) == [[0, 0, 10, 9], [0, 0, 10, 10], [30, 0, 40, 10], [50, 50, 60, 60]]
    for row, class_id in enumerate(targets.class_ids[:3].tolist()):
        assert targets.attribute_ids[row].tolist() == ([4, 1] if class_id == 2 else [-1, -1])
        goal = objects.boxes[0 if class_id == 2 else 1][None]
        want = encode_deltas(targets.boxes[row][None], goal, plus_one_sides=False)
        torch.testing.assert_close(targets.deltas[row], want[0])
    assert (int(targets.found), targets.num_objects) == (1, 2)


def test_a_photo_that_gives_no_region_gives_one_that_is_no_example():
    objects = objects_of([0, 0, 100, 100], ignored=[0])
    for proposals in (boxes_of(), boxes_of([5, 5, 20, 20])):
        targets = region_targets(proposals, (100, 90), objects, EVERYTHING, HF, 7, generator())
        assert targets.boxes.tolist() == [[0, 0, 89, 99]] and targets.class_ids.tolist() == [IGNORE]
        assert targets.deltas.shape == (0, 4) and targets.attribute_ids.shape == (0, 1) and targets.num_objects == 0


@pytest.mark.parametrize(
    "change, words",
    [
        ({"anchors_per_image": 0}, "anchors_per_image is 0; it must be a whole number"),
        ({"region_iou": 0.0}, "region_iou is 0.0; it must be above 0"),
        ({"anchor_negative_iou": 0.8}, "anchor_negative_iou 0.8 is above anchor_positive_iou 0.7"),
        ({"anchor_border": -1.0}, "anchor_border is -1.0"),
        ({"proposals_before_nms": 10}, "proposals_before_nms 10 is less than proposals_after_nms 2000"),
    ],
)
def test_rules_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        SamplingRules(**change)


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
