"""The detector against the published implementation: goldens/detector, tolerances from its README.

Small network on every run; the true-size one is `slow`.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from extraction import SELECTIONS, SelectionPolicy, build_detector, weights_digest
from extraction.selection import classwise_max
from extraction.state import CELL_ANCHORS

PHOTOS = ["input", "COCO_train2014_000000131486", "COCO_train2014_000000387267"]
CASES = [("small", name) for name in PHOTOS] + [pytest.param(("full", "input"), marks=pytest.mark.slow)]


class Case:
    """One photo through one network, with what the reference gave."""

    def __init__(self, size, name, detector, golden, image):
        self.size, self.name, self.detector, self.golden = size, name, detector, golden
        self.outputs = detector.head_outputs(image)
        with torch.inference_mode():
            self.feature_map = detector.backbone(self.outputs.network_input.pixels)
            self.given = detector.roi_heads(self.feature_map, torch.from_numpy(golden["given_boxes"][0]))

    def select(self, policy):
        return self.detector.postprocess(self.outputs, policy)


@pytest.fixture(scope="module")
def full_detector():
    return build_detector("vg-r101-c4", weights="random:1")


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def case(request, golden_dir, photo, small_detector):
    size, name = request.param
    detector = small_detector if size == "small" else request.getfixturevalue("full_detector")
    with np.load(golden_dir / f"{size}_{name}.npz") as golden:
        return Case(size, name, detector, dict(golden), photo(name))


def assert_near(got, want):
    """|a - b| <= 1e-4 max|b| + 1e-3 |b|: thirty times the reference's own float32 error (README, Tolerances)."""
    got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4 * float(want.abs().max()))


@pytest.mark.parametrize("size", ["small", pytest.param("full", marks=pytest.mark.slow)])
def test_random_1_gives_the_golden_weights(size, golden_dir, small_detector, request):
    detector = small_detector if size == "small" else request.getfixturevalue("full_detector")
    state = {**detector.state_dict(), CELL_ANCHORS: detector.proposal_generator.cell_anchors}
    sums = json.loads((golden_dir / f"weight_sums_{size}.json").read_text())
    keys = json.loads((golden_dir / f"hf_frcnn_keys{'_small' if size == 'small' else ''}.json").read_text())
    assert set(state) == {name for name in keys if not name.endswith("num_batches_tracked")}
    assert all(list(tensor.shape) == keys[name] for name, tensor in state.items())
    for name, tensor in detector.state_dict().items():
        got = [tensor.double().sum().item(), tensor.double().abs().sum().item()]
        assert got == pytest.approx(sums[name], rel=1e-9, abs=1e-9 * sums[name][1]), name


def test_network_input(case):
    got, golden = case.outputs.network_input, case.golden
    assert list(got.pixels.shape) == golden["input_shape"].tolist()
    assert list(got.image_hw) == golden["raw_sizes_hw"][0].tolist()
    np.testing.assert_array_equal(got.scale.factors_xyxy.numpy(), golden["scales_yx"][0][[1, 0, 1, 0]])
    np.testing.assert_allclose(got.pixels.double().sum((2, 3)), golden["input_sum"], rtol=1e-6)
    np.testing.assert_allclose(got.pixels.double().abs().sum((2, 3)), golden["input_abs_sum"], rtol=1e-6)
    assert_near(got.pixels[:, :, 32:64, 48:80], golden["input_crop"])


def test_res4_map(case):
    assert list(case.feature_map.shape) == case.golden["res4_shape"].tolist()
    assert_near(case.feature_map[:, :: 16 if case.size == "small" else 64], case.golden["res4_sub"])
    assert_near(case.feature_map.mean((2, 3)), case.golden["res4_channel_mean"])


def test_rpn_maps(case):
    with torch.inference_mode():
        logits, deltas = case.detector.proposal_generator.rpn_head(case.feature_map)
    step = 1 if case.size == "small" else 4
    assert list(logits.shape) == case.golden["rpn_shape"].tolist()
    assert_near(logits[:, :, ::step, ::step], case.golden["rpn_logits_sub"])
    assert_near(deltas[:, :, ::step, ::step], case.golden["rpn_deltas_sub"])


def test_proposals(case):
    boxes, golden = case.outputs.proposals.boxes.numpy(), case.golden
    assert len(boxes) == golden["proposal_count"][0]
    distance = np.abs(boxes[None] - golden["proposal_boxes"][:, None]).max(axis=2).min(axis=1)
    assert (distance <= 0.05).mean() >= 0.99
    assert_near(case.outputs.proposals.objectness, golden["proposal_logits"])


def test_regions_of_given_boxes(case):
    stable, golden = case.golden["given_stable"][0], case.golden
    class_step = 1 if case.size == "small" else 16
    same_class = case.given.class_logits.argmax(1).numpy() == golden["given_cls_logits"][0].argmax(1)
    assert (same_class | ~stable).all()  # the smallest top-2 gap of these photos is far above the tolerance
    assert_near(case.given.features[stable], golden["given_features"][0][stable])
    assert_near(case.given.class_logits[stable], golden["given_cls_logits"][0][stable])
    assert_near(case.given.attribute_logits[stable], golden["given_attr_logits"][0][stable])
    assert_near(case.given.box_deltas[stable][:, ::class_step], golden["given_box_deltas"][0][stable])


def test_heads_of_proposals(case):
    probabilities = case.outputs.regions.class_logits.softmax(1)
    assert_near(probabilities.sort(1, descending=True).values[:, :5], case.golden["proposal_top5_prob"])
    if case.size == "small":
        assert_near(case.outputs.regions.class_logits, case.golden["proposal_cls_logits"])
        assert_near(case.outputs.regions.attribute_logits, case.golden["proposal_attr_logits"])
        assert_near(case.outputs.regions.box_deltas.flatten(1), case.golden["proposal_box_deltas"])


@pytest.mark.parametrize("preset, key", [("hf-36", "det36"), ("hf-100", "det100")])
def test_detections_of_the_reference(case, preset, key):
    got, golden = case.select(SELECTIONS[preset]), {k: v for k, v in case.golden.items() if k.startswith(key)}
    assert len(got.boxes) == golden[f"{key}_count"][0]
    matches = match(got.boxes, got.class_scores, got.class_ids, *(golden[f"{key}_{n}"] for n in BOX_FIELDS))
    assert (matches[golden[f"{key}_stable"]] >= 0).all()
    assert (matches >= 0).mean() >= 0.85
    features = golden.get(f"{key}_features", golden.get(f"{key}_features_sub"))
    step = got.features.shape[1] // features.shape[1]
    found = matches >= 0
    assert_near(got.features[matches[found], ::step], features[found])
    assert_near(got.attribute_scores[matches[found]], golden[f"{key}_attr_scores"][found])
    np.testing.assert_array_equal(got.attribute_ids[matches[found]], golden[f"{key}_attr_ids"][found])


def test_ladder_reaches_a_higher_threshold(case):
    if "ladder_min" not in case.golden:
        pytest.skip("this photo leaves no room for a higher threshold")
    everything = len(case.outputs.proposals.boxes)
    policy = dataclasses.replace(
        SELECTIONS["hf-36"], min_regions=int(case.golden["ladder_min"]), max_regions=everything
    )
    got = case.select(policy)
    assert len(got.boxes) == len(case.golden["ladder_boxes"])
    matches = match(got.boxes, got.class_scores, got.class_ids, *(case.golden[f"ladder_{n}"] for n in BOX_FIELDS))
    assert (matches >= 0).mean() >= 0.85


@pytest.mark.parametrize(
    "policy, key",
    [
        (SelectionPolicy(max_regions=36), "butd36"),
        (SELECTIONS["butd-10-100"], "butd100"),
        (SelectionPolicy(min_score=0.9999), "butdmin"),  # the minimum of 10 decides
    ],
)
def test_selection_of_bottom_up_attention(case, policy, key):
    if f"{key}_proposal_ids" not in case.golden:
        pytest.skip("small photos only")
    got = case.select(policy)
    np.testing.assert_array_equal(got.proposal_ids, case.golden[f"{key}_proposal_ids"])
    want = case.outputs.network_input.scale.to_photo(case.outputs.proposals.boxes[got.proposal_ids])
    np.testing.assert_allclose(got.boxes, want, atol=1e-3)


def test_classwise_max_of_bottom_up_attention(case):
    boxes = case.outputs.network_input.scale.to_photo(case.outputs.proposals.boxes)
    scores = case.outputs.regions.class_logits.softmax(1)[:, :-1]
    got = classwise_max(boxes, scores, SELECTIONS["butd-36"], floor=0.0)
    np.testing.assert_allclose(got, case.golden["butd_max_conf"], atol=1e-4)


def test_digest_of_the_small_weights_is_stable(small_detector):
    """Stores name their weights by it: if this changes, every store made before stops matching."""
    assert weights_digest(small_detector.state_dict()).startswith("141ee6adc2564d2e")


BOX_FIELDS = ("boxes", "scores", "classes")


def match(boxes, scores, classes, want_boxes, want_scores, want_classes):
    """For each wanted detection the index of one with its class, box within 0.1 px, score within 1e-3; -1 for none."""
    near = (
        (np.abs(boxes[None] - want_boxes[:, None]).max(2) <= 0.1)
        & (np.abs(scores[None] - want_scores[:, None]) <= 1e-3)
        & (classes[None] == want_classes[:, None])
    )
    return np.where(near.any(1), near.argmax(1), -1)
