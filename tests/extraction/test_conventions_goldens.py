"""The presets against published numbers: Caffe's anchors, the inputs of the goldens, and weights in other layouts."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.boxes import cell_anchors
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS, Conventions
from roibeam.extraction.network.roi_heads import RegionOutputs
from roibeam.extraction.network.rpn import ProposalGenerator, choose_proposals
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.weights.families import CAFFE_LAYOUT, HF_LAYOUT, HeadLayout, relayout
from roibeam.extraction.weights.loading import build_detector

HF, CAFFE = CONVENTIONS["hf"], CONVENTIONS["caffe"]


def test_caffe_anchors_are_the_published_dozen() -> None:
    """generate_anchors.py with scales 4 8 16 32: bases of 23x12, 16x16 and 11x22 pixels around 7.5, times the scale."""
    wanted = [
        *([-38, -16, 53, 31], [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199]),
        *([-24, -24, 39, 39], [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263]),
        *([-14, -36, 29, 51], [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359]),
    ]
    assert cell_anchors(CONFIGS["vg-r101-c4-600"], CAFFE).tolist() == wanted


@pytest.mark.parametrize(
    "preset, config, key",
    [
        ("caffe", "vg-r101-c4-600", "caffe600"),
        ("milvlg", "vg-r101-c4-600", "caffe600"),
        ("d2", "vg-r101-c4", "d2_800"),
        ("d2", "vg-r101-c4-600", "d2_600"),
    ],
)
@pytest.mark.parametrize("name", ["input", "COCO_train2014_000000131486", "COCO_train2014_000000387267"])
def test_input_of_the_published_recipes(preset, config, key, name, golden_dir, photo) -> None:
    made = preprocess(photo(name), CONFIGS[config], CONVENTIONS[preset])
    with np.load(golden_dir / f"small_{name}.npz") as golden:
        assert list(made.pixels.shape[1:]) == golden[f"{key}_shape"].tolist()
        np.testing.assert_array_equal(made.pixels[0, :, 32:64, 48:80].numpy(), golden[f"{key}_crop"])
        np.testing.assert_allclose(made.pixels[0].double().sum((1, 2)), golden[f"{key}_sum"], rtol=1e-9)
        if preset == "caffe":
            assert made.factor == golden["caffe600_scale"]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_input_of_vlbert(index, golden_dir, photo) -> None:
    """RGB through PIL at 192/320, edges truncated; the first photo has a blanked region, outside the window."""
    name = ["input", "COCO_train2014_000000131486", "COCO_train2014_000000387267"][index]
    config = replace(CONFIGS["small"], short_edge=192, long_edge=320)
    made = preprocess(photo(name), config, CONVENTIONS["vlbert-e2e"])
    with np.load(golden_dir / "e2e_batch.npz") as golden:
        assert list(made.input_hw[::-1]) == golden["im_info"][index, :2].tolist()
        np.testing.assert_array_equal(made.pixels[0, :, 32:64, 48:80].numpy(), golden["input_crop"][index])
        if index:
            np.testing.assert_allclose(made.pixels[0].double().sum((1, 2)), golden["input_sum"][index], rtol=1e-9)


# What a wrong convention does to the features of given boxes on the golden network, as goldens/detector/README.md says.
WRONG = {
    "channel_order": "rgb",
    "resize": "pil-bilinear",
    "padding_multiple": 32,
    "stem_pool": "pad-1-floor",
    "stride_conv": "3x3",
    "norm_eps": 2e-5,
    "res5_dilation": 1,
    "region_pool": "roi-align-1",
}


@pytest.mark.parametrize("field", [None, *WRONG], ids=str)
def test_a_wrong_convention_is_seen_by_the_goldens(field, golden_dir, photo, small_detector) -> None:
    conventions = HF if field is None else replace(HF, **{field: WRONG[field]})
    detector = Detector(small_detector.config, conventions)
    detector.load_state_dict(small_detector.state_dict())
    name = "COCO_train2014_000000131486"  # its edges are no multiples of 32
    with np.load(golden_dir / f"small_{name}.npz") as golden, torch.inference_mode():
        made = preprocess(photo(name), detector.config, conventions)
        got = detector.roi_heads(detector.backbone(made.pixels), torch.from_numpy(golden["given_boxes"][0])).features
        stable, want = golden["given_stable"][0], torch.from_numpy(golden["given_features"][0])
    error = float((got - want)[stable].abs().max() / want.abs().max())
    assert error < 1e-4 if field is None else error > 1e-3, error


@pytest.fixture(scope="module")
def state_of_goldens(small_detector) -> dict[str, torch.Tensor]:
    return small_detector.state_dict()


@pytest.mark.parametrize(
    "change", [{"background": "first"}, {"no_attribute": "first"}, {"region_deltas": "with-background"}]
)
def test_rows_in_another_place_say_the_same(change, state_of_goldens) -> None:
    """Background and "no attribute" stand in four head tensors; moved in all of them, nothing changes."""
    conventions = replace(HF, **change)
    config = CONFIGS["small"]
    state = relayout(state_of_goldens, HF_LAYOUT, HeadLayout.of(conventions), num_sizes=4, num_ratios=3)
    moved = Detector(config, conventions)
    moved.load_state_dict(state)
    plain = Detector(config)
    plain.load_state_dict(state_of_goldens)
    features = torch.rand(5, config.feature_dim, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        want, got = plain.roi_heads.box_predictor(features), moved.roi_heads.box_predictor(features)
    for field in fields(RegionOutputs):
        torch.testing.assert_close(getattr(got, field.name), getattr(want, field.name), rtol=1e-5, atol=1e-5)


def test_anchors_and_objectness_in_another_layout_propose_the_same(state_of_goldens) -> None:
    """Pairs instead of logits and ratios outside sizes, on one map: the same boxes with the same scores."""
    conventions = replace(HF, objectness="pair-softmax", anchor_order="ratio-major")
    config = CONFIGS["small"]
    state = relayout(state_of_goldens, HF_LAYOUT, HeadLayout.of(conventions), num_sizes=4, num_ratios=3)
    made = []
    for each, weights in ((HF, state_of_goldens), (conventions, state)):
        detector = Detector(config, each)
        detector.load_state_dict(weights)
        generator = torch.Generator().manual_seed(0)
        feature_map = torch.rand(1, config.map_channels, 6, 8, generator=generator)
        with torch.inference_mode():
            made.append(detector.proposal_generator(feature_map, (96, 128), 1.0))
    logits, pairs = made
    torch.testing.assert_close(logits.boxes, pairs.boxes, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(logits.objectness.sigmoid(), pairs.objectness, rtol=1e-5, atol=1e-6)


def test_layout_of_the_caffe_preset_is_that_of_its_files() -> None:
    assert HeadLayout.of(CAFFE) == HeadLayout.of(CONVENTIONS["milvlg"]) == CAFFE_LAYOUT


@pytest.fixture(scope="module", params=CONVENTIONS)
def tiny_detector(request) -> Detector:
    tiny = replace(CONFIGS["small"], base_channels=2, short_edge=64, long_edge=107)
    return build_detector(tiny, weights="random:1", conventions=request.param)


@pytest.mark.parametrize("height, width", [(1, 1), (1, 400), (200, 3), (40, 60)])
def test_every_preset_runs_on_odd_photos(tiny_detector, height, width) -> None:
    (regions,) = tiny_detector([np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)])
    assert np.isfinite(regions.features).all() and (regions.boxes[:, 2:] <= [width, height]).all()
    assert regions.features.shape == (len(regions.boxes), 64) and regions.class_probabilities.shape[1] == 21
    # No box of 16 photo pixels fits into fewer.
    no_room = min(height, width) < tiny_detector.conventions.min_proposal_side
    assert (len(regions.boxes) == 0) == no_room


def test_boxes_outside_the_photo_or_empty_are_described(tiny_detector) -> None:
    boxes = np.array([[0, 0, 60, 40], [10, 10, 10, 10], [500, 500, 600, 600], [-50, -50, -10, -10]], np.float32)
    (regions,) = tiny_detector([np.full((40, 60, 3), 99, np.uint8)], boxes=[boxes])
    assert regions.boxes.tolist() == [[0, 0, 60, 40], [10, 10, 10, 10], [60, 40, 60, 40], [0, 0, 0, 0]]
    assert np.isfinite(regions.features).all() and (np.abs(regions.features).max(axis=1) > 0).all()


def test_nan_is_an_error_not_a_photo_without_regions(noise_image) -> None:
    detector = build_detector(replace(CONFIGS["small"], base_channels=2), weights="random:1")
    detector.backbone.res4[0].conv1.weight.data[0] = float("nan")
    with pytest.raises(ValueError, match="the proposal network gave NaN or infinity"):
        detector([noise_image])


PUBLISHED_PROPOSALS = Path(__file__).parent / "data" / "published_proposals.npz"
# Fields of the proposals in which "caffe" is not "hf". The layout of the head outputs is handed over as it is.
PROPOSAL_FIELDS = (
    *("anchor_sides", "anchor_order", "anchor_offset", "box_sides", "box_clip", "delta_cap"),
    *("proposal_filter", "min_proposal_side", "nms_comparison"),
)


def published_case(preset: str, case: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Keywords for `proposals_of`, and what the published code gave: boxes, scores."""
    with np.load(PUBLISHED_PROPOSALS) as data:
        names = ("logits", "deltas")
        given = {name: torch.from_numpy(data[f"{name}_{case}"]) for name in names}
        given |= {"input_hw": tuple(data["input_hw"].tolist()), "factor": float(data["factors"][case])}
        given["limits"] = tuple(data["limits"].tolist())
        return given, data[f"boxes_{preset}_{case}"], data[f"scores_{preset}_{case}"]


def proposals_of(
    conventions: Conventions, *, logits, deltas, input_hw, factor, limits
) -> tuple[np.ndarray, np.ndarray]:
    config = replace(CONFIGS["vg-r101-c4-600"], proposals_before_nms=limits[0], proposals_after_nms=limits[1])
    generator = ProposalGenerator(config, conventions)
    boxes, objectness = generator.score_anchors(logits, deltas)
    made = choose_proposals(boxes, objectness, input_hw, factor, config, conventions)
    return made.boxes.numpy(), made.objectness.numpy()


def differs(got: tuple[np.ndarray, np.ndarray], boxes: np.ndarray, scores: np.ndarray) -> bool:
    """Whether other anchors were chosen (scores have no ties), in another order, or boxes are 0.01 pixel apart."""
    if got[1].shape != scores.shape or np.abs(got[1] - scores).max() > 1e-6:
        return True
    return bool(np.abs(got[0] - boxes).max() > 0.01)


@pytest.mark.parametrize("preset", ["caffe", "milvlg"])
@pytest.mark.parametrize("case", [0, 1])
def test_proposals_of_the_published_codes(preset, case) -> None:
    """py-faster-rcnn's and MILVLG's own code gave these: bench/published_golden.py."""
    given, boxes, scores = published_case(preset, case)
    assert not differs(proposals_of(CONVENTIONS[preset], **given), boxes, scores)


@pytest.mark.parametrize("preset", ["caffe", "milvlg"])
@pytest.mark.parametrize("field", PROPOSAL_FIELDS)
def test_a_flipped_proposal_rule_is_seen(preset, field) -> None:
    conventions, other = CONVENTIONS[preset], CONVENTIONS["hf"]
    if getattr(conventions, field) == getattr(other, field):
        other = CONVENTIONS["milvlg" if preset == "caffe" else "caffe"]
    flipped = replace(conventions, **{field: getattr(other, field)})
    cases = [published_case(preset, case) for case in (0, 1)]
    assert any(differs(proposals_of(flipped, **given), boxes, scores) for given, boxes, scores in cases)
