"""Which regions are kept: against a literal copy of the published rule, on the cases it leaves open, and that every
field of a policy changes which they are, by the rule its name says.

As in test_conventions.py, `CASES` holds what a probe gives for each value, worked out by hand; a field or a word that
is missing there fails. That the rules are the published ones is for bench/published_proposals.py too.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from roibeam.extraction.network.conventions import _CHOICES, SELECTIONS, SelectionPolicy
from roibeam.extraction.regions import (
    classwise_max,
    select_classwise,
    select_classwise_max,
    select_regions,
    select_single_nms,
)

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
        class_boxes=torch.empty(0, 7, 4),
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
        ({"method": "single-nms", "kept_box": "regressed"}, r"knows no \+1"),
        ({"when_too_few": "last-threshold"}, "classwise-max has one threshold"),
        ({"order": "area"}, "selection order 'area'; implemented: published, score"),
    ],
)
def test_impossible_policies_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(SelectionPolicy(), **change)


BUTD = replace(SELECTIONS["butd-10-100"], min_regions=0)
SINGLE = SELECTIONS["hf-36"]


def keep(
    policy: SelectionPolicy,
    boxes: list[list[float]],
    scores: list[list[float]],
    regressed: list[list[float]] | None = None,
) -> tuple[list[int], list[list[float]]]:
    """Ids and boxes of what is kept, in photo pixels, which are those of the network."""
    selected = select_regions(
        policy,
        class_scores=torch.tensor(scores),
        proposal_boxes=torch.tensor(boxes),
        regressed_boxes=torch.tensor(regressed or boxes),
        nms_boxes=torch.tensor(regressed or boxes),
        class_boxes=torch.tensor(regressed or boxes)[:, None].expand(-1, len(scores[0]), -1),
    )
    return selected.proposal_ids.tolist(), selected.boxes.tolist()


# A box, the upper half of it (9x18 pixels of 10x19 when the last pixel counts), and one far away.
WHOLE, HALF, AWAY = [0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 5.0], [50.0, 50.0, 60.0, 60.0]
APART = [[20.0 * i, 0.0, 20.0 * i + 9, 9.0] for i in range(5)]
RISING = [[0.1], [0.3], [0.5], [0.7], [0.9]]


def method(policy: SelectionPolicy) -> list[int]:
    """Two boxes on one place, best in different classes: NMS inside each class keeps both, one over all does not."""
    return keep(replace(policy, min_regions=0), [WHOLE, WHOLE], [[0.8, 0.0], [0.0, 0.7]])[0]


def ladder(policy: SelectionPolicy) -> list[int]:
    """IoU 8/12 between neighbours, 6/14 between the next but one; two regions are wanted."""
    boxes = [[2.0 * i, 0.0, 2.0 * i + 10, 10.0] for i in range(3)]
    return keep(replace(policy, min_regions=2), boxes, [[0.9], [0.8], [0.7]])[0]


def too_few(policy: SelectionPolicy) -> list[int]:
    """Three times the same box: no threshold leaves two."""
    return keep(replace(policy, min_regions=2), [WHOLE] * 3, [[0.7], [0.9], [0.8]])[0]


def apart(policy: SelectionPolicy) -> list[int]:
    return keep(policy, APART, RISING)[0]


def moved_apart(policy: SelectionPolicy) -> list[int]:
    """Two proposals on one place, which are moved apart."""
    return keep(policy, [WHOLE, WHOLE], [[0.8], [0.7]], [WHOLE, AWAY])[0]


def twice_in_one_class(policy: SelectionPolicy) -> list[int]:
    """Classes of two boxes on one place, best in one class; the second stays by its other class."""
    both = torch.tensor([WHOLE, WHOLE])
    scores = torch.tensor([[0.8, 0.0], [0.7, 0.25]])
    kept = select_regions(
        policy, class_scores=scores, proposal_boxes=both, regressed_boxes=both, nms_boxes=both, class_boxes=None
    )
    return kept.class_ids.tolist()


# field -> (policy, probe, {value: what the probe gives for it})
CASES: dict[str, tuple[SelectionPolicy, Callable[[SelectionPolicy], object], dict[Any, object]]] = {
    "method": (BUTD, method, {"classwise-max": [0, 1], "single-nms": [0], "classwise": [0, 1]}),
    "kept_box": (
        BUTD,
        lambda policy: keep(policy, [WHOLE], [[0.9]], [AWAY])[1],
        {"proposal": [WHOLE], "regressed": [AWAY]},
    ),
    # The first that leaves two of the three: 0.5 does, 0.4 leaves one; 0.7 leaves all.
    "nms_thresholds": (SINGLE, ladder, {(0.4, 0.5): [0, 2], (0.4, 0.7): [0, 1, 2], (0.5,): [0, 2]}),
    # IoU is exactly a half.
    "nms_comparison": (
        replace(BUTD, nms_thresholds=(0.5,), legacy_plus_one_areas=False),
        lambda policy: keep(policy, [WHOLE, HALF], [[0.9], [0.8]])[0],
        {">": [0, 1], ">=": [0]},
    ),
    # 11x6 of 11x11 pixels are more than a half, 10x5 of 10x10 are not.
    "legacy_plus_one_areas": (
        replace(BUTD, nms_thresholds=(0.5,)),
        lambda policy: keep(policy, [WHOLE, HALF], [[0.9], [0.8]])[0],
        {True: [0], False: [0, 1]},
    ),
    "when_too_few": (SINGLE, too_few, {"no-nms": [1, 2, 0], "last-threshold": [1]}),
    "min_score": (BUTD, apart, {0.3: [1, 2, 3, 4], 0.5: [2, 3, 4]}),
    # One passes 0.9; when more are wanted, the best come, best first.
    "min_regions": (replace(BUTD, min_score=0.9), apart, {0: [4], 1: [4], 3: [4, 3, 2]}),
    "max_regions": (BUTD, apart, {4: [1, 2, 3, 4], 2: [4, 3]}),
    "order": (BUTD, apart, {"published": [1, 2, 3, 4], "score": [4, 3, 2, 1]}),
    "nms_boxes": (replace(BUTD, min_regions=0), moved_apart, {"usual": [0], "proposal": [0], "class": [0, 1]}),
    "region_class": (BUTD, twice_in_one_class, {"best": [0, 0], "surviving": [0, 1]}),
}


def changed(name: str, value: Any) -> SelectionPolicy:
    if name == "method" and value == "single-nms":  # goes with other values of other fields only
        return SINGLE
    if name == "method" and value == "classwise":
        return replace(BUTD, method="classwise", region_class="surviving")
    return replace(CASES[name][0], **{name: value})


@pytest.mark.parametrize("field, value", [(name, value) for name, case in CASES.items() for value in case[2]], ids=str)
def test_each_value_keeps_what_its_rule_says(field: str, value: Any) -> None:
    _, probe, wanted = CASES[field]
    assert probe(changed(field, value)) == wanted[value]


def test_every_field_and_every_word_has_a_case_that_parts_it_from_another() -> None:
    assert set(CASES) == {field.name for field in fields(SelectionPolicy)}
    for name, (_, probe, wanted) in CASES.items():
        if name in _CHOICES:
            assert set(wanted) == set(_CHOICES[name]), name
        assert len({repr(probe(changed(name, value))) for value in wanted}) > 1, f"{name} changes nothing"


def test_classwise_gives_a_region_for_each_class_and_halves_its_score_until_enough_are_left() -> None:
    policy = replace(SELECTIONS["vinvl-rule-0"], min_score=0.4, min_regions=3)
    boxes, scores = torch.tensor(APART[:2]), torch.tensor([[0.5, 0.3], [0.05, 0.45]])
    moved = torch.stack([boxes, boxes + 1], dim=1)
    kept = select_regions(
        policy, class_scores=scores, proposal_boxes=boxes, regressed_boxes=boxes, nms_boxes=boxes, class_boxes=moved
    )
    assert kept.proposal_ids.tolist() == [0, 1, 0] and kept.class_ids.tolist() == [0, 1, 1]
    assert torch.equal(kept.boxes, moved[kept.proposal_ids, kept.class_ids])
    # By score alone, the best ones exactly; from a low minimum a first look at high scores must not hide the others.
    for most, wanted in ((2, [(0, 0), (1, 1)]), (4, [(0, 0), (1, 1), (0, 1), (1, 0)])):
        best = replace(policy, order="score", min_score=0.0, min_regions=0, max_regions=most)
        found = select_classwise(moved, scores, best)
        assert list(zip(found.region_ids.tolist(), found.class_ids.tolist(), strict=True)) == wanted
    fewer = replace(policy, min_regions=0, max_regions=1)
    kept = select_regions(
        fewer, class_scores=scores, proposal_boxes=boxes, regressed_boxes=boxes, nms_boxes=boxes, class_boxes=moved
    )
    assert kept.proposal_ids.tolist() == [0]


# min_score, min_regions, max_regions and threshold of each published rule; sources stand beside the presets.
PUBLISHED = {
    "butd-10-100": (0.2, 10, 100, (0.3,)),
    "butd-36": (0.2, 36, 36, (0.3,)),
    "milvlg-10-100": (0.2, 10, 100, (0.3,)),
    "milvlg-36": (0.2, 36, 36, (0.3,)),
    "milvlg-100": (0.2, 100, 100, (0.3,)),
    "milvlg-d2": (0.05, 0, 100, (0.5,)),
    "detections": (0.2, 10, 100, (1.0,)),
    "milvlg-d2-100": (0.0, 0, 100, (0.3,)),
    "hf-36": (0.0, 10, 36, (0.5, 0.6, 0.7, 0.8, 0.9)),
    "hf-100": (0.0, 10, 100, (0.5, 0.6, 0.7, 0.8, 0.9)),
    "d2-36": (0.0, 36, 36, (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    "d2-100": (0.0, 10, 100, (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    "vl-bert": (0.5, 10, 100, (0.3,)),
    "vilbert": (0.2, 10, 36, (0.3,)),
    "visualbert": (0.2, 144, 144, (0.3,)),
    "visualbert-nlvr2": (0.2, 144, 144, (0.5,)),
    "imagebert": (0.2, 100, 100, (0.3,)),
    "interbert": (0.2, 90, 100, (0.3,)),
    "maskrcnn-benchmark-100": (0.0, 100, 100, (0.5,)),
    "vinvl": (0.2, 10, 100, (0.3,)),
    "vinvl-demo": (0.2, 10, 100, (0.3,)),
    "vinvl-rule-0": (0.2, 10, 100, (0.5,)),
    "vinvl-rule-2": (0.2, 10, 100, (0.5,)),
}


def test_presets_hold_the_published_limits() -> None:
    got = {name: (p.min_score, p.min_regions, p.max_regions, p.nms_thresholds) for name, p in SELECTIONS.items()}
    assert got == PUBLISHED


@pytest.mark.parametrize("name", SELECTIONS)
def test_each_preset_keeps_its_number_of_300_regions(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(300, 2, generator=generator) * 500
    boxes = torch.cat([corners, corners + 20 + 60 * torch.rand(300, 2, generator=generator)], dim=1)
    scores = (4 * torch.randn(300, 31, generator=generator)).softmax(dim=1)[:, :30]
    ids, _ = keep(SELECTIONS[name], boxes.tolist(), scores.tolist())
    policy = SELECTIONS[name]
    assert policy.min_regions <= len(ids) <= policy.max_regions and len(set(ids)) == len(ids)
