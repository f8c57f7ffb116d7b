"""Which regions are kept: against a literal copy of the published rule, and on the cases it leaves open."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from roibeam.extraction.network.conventions import SELECTIONS, SelectionPolicy
from roibeam.extraction.regions import classwise_max, select_classwise_max, select_regions, select_single_nms

LADDER = SELECTIONS["hf-36"]


def published_max_conf(boxes, scores, threshold):
    """peteanderson80/bottom-up-attention tools/generate_tsv.py with its cpu_nms.pyx, suppressing IoU > threshold."""
    max_conf = np.zeros(len(boxes))
    for class_id in range(scores.shape[1]):
        x1, y1, x2, y2 = boxes.T
        areas = (x2 - x1 + 1) * (y2 - y1 + 1)
        order, keep = scores[:, class_id].argsort(kind="stable")[::-1], []
        while len(order):
            first, rest = order[0], order[1:]
            keep.append(first)
            w = np.maximum(0, np.minimum(x2[first], x2[rest]) - np.maximum(x1[first], x1[rest]) + 1)
            h = np.maximum(0, np.minimum(y2[first], y2[rest]) - np.maximum(y1[first], y1[rest]) + 1)
            order = rest[w * h / (areas[first] + areas[rest] - w * h) <= threshold]
        max_conf[keep] = np.maximum(max_conf[keep], scores[keep, class_id])
    return max_conf


def random_regions(seed, regions=40, classes=7):
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 40, (regions, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(0, 30, (regions, 2))], axis=1).astype(np.float32)
    scores = rng.dirichlet(np.full(classes + 1, 0.3), regions)[:, :classes].astype(np.float32)
    return boxes, scores


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limits", [(0.2, 3, 100), (0.2, 3, 8), (0.999, 12, 20), (0.2, 40, 40), (0.0, 0, 10)])
def test_classwise_max_keeps_what_the_tool_keeps(seed, limits):
    boxes, scores = random_regions(seed)
    min_score, min_regions, max_regions = limits
    max_conf = published_max_conf(boxes, scores, 0.3)
    want = np.where(max_conf >= min_score)[0]
    if len(want) < min_regions:
        want = np.argsort(-max_conf, kind="stable")[:min_regions]
    elif len(want) > max_regions:
        want = np.argsort(-max_conf, kind="stable")[:max_regions]
    policy = SelectionPolicy(min_score=min_score, min_regions=min_regions, max_regions=max_regions)
    got = select_classwise_max(torch.from_numpy(boxes), torch.from_numpy(scores), policy).region_ids
    np.testing.assert_array_equal(got, want)


def test_scores_at_or_above_the_floor_do_not_depend_on_it():
    boxes, scores = map(torch.from_numpy, random_regions(9))
    _, exact = classwise_max(boxes, scores, SelectionPolicy(), floor=0.0)
    for floor in (0.01, 0.1, 0.3):
        _, got = classwise_max(boxes, scores, SelectionPolicy(), floor=floor)
        assert torch.equal(got, torch.where(exact >= floor, exact, 0.0))


def test_fewer_proposals_than_the_minimum_gives_all_of_them():
    boxes, scores = map(torch.from_numpy, random_regions(1, regions=5))
    assert sorted(select_classwise_max(boxes, scores, SELECTIONS["butd-36"]).region_ids.tolist()) == [0, 1, 2, 3, 4]
    assert sorted(select_single_nms(boxes, scores.amax(1), LADDER).tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", SELECTIONS)
def test_no_proposals_give_no_regions(name):
    empty = torch.empty(0, 4)
    got = select_regions(
        SELECTIONS[name],
        class_scores=torch.empty(0, 7),
        proposal_boxes=empty,
        regressed_boxes=empty,
        nms_boxes=empty,
    )
    assert got.proposal_ids.shape == (0,) and got.boxes.shape == (0, 4)


def test_equal_scores_go_to_the_lower_index():
    boxes = torch.tensor([[20.0 * i, 0.0, 20.0 * i + 9, 9.0] for i in range(30)])
    scores = torch.full((30, 2), 0.5)
    policy = dataclasses.replace(SELECTIONS["butd-36"], min_regions=5, max_regions=5)
    assert select_classwise_max(boxes, scores, policy).region_ids.tolist() == [0, 1, 2, 3, 4]
    assert select_single_nms(boxes, scores[:, 0], LADDER).tolist() == list(range(30))


@pytest.mark.parametrize(
    "change, words",
    [
        ({"method": "best"}, "selection method 'best'; implemented: classwise-max, single-nms"),
        ({"kept_box": "both"}, "selection kept_box 'both'; implemented: proposal, regressed"),
        ({"nms_thresholds": (0.3, 0.5)}, "classwise-max takes exactly one"),
        ({"nms_thresholds": ()}, "must be a tuple of IoUs"),
        ({"nms_thresholds": (1.5,)}, "above 0 and at most 1"),
        ({"min_score": 2.0}, r"min_score 2.0; it must be in 0..1"),
        ({"min_regions": 50, "max_regions": 36}, r"keeps 50..36 regions"),
        ({"method": "single-nms", "kept_box": "regressed"}, "knows no score and no"),
        ({"when_too_few": "last-threshold"}, "classwise-max has one threshold"),
        ({"order": "area"}, "selection order 'area'; implemented: published, score"),
    ],
)
def test_impossible_policies_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(SelectionPolicy(), **change)
