"""The presets against numbers of the published codes: inputs and proposals; and odd boxes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.rpn import ProposalGenerator, choose_proposals
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.weights.loading import build_detector


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
    """To the last bit, with each preset's own mean; tests/conformance compares them with the mean of its folder."""
    made = preprocess(photo(name), CONFIGS[config], CONVENTIONS[preset])
    with np.load(golden_dir / f"small_{name}.npz") as golden:
        assert list(made.pixels.shape[1:]) == golden[f"{key}_shape"].tolist()
        np.testing.assert_array_equal(made.pixels[0, :, 32:64, 48:80].numpy(), golden[f"{key}_crop"])
        np.testing.assert_allclose(made.pixels[0].double().sum((1, 2)), golden[f"{key}_sum"], rtol=1e-9)
        if preset == "caffe":
            assert made.factor == golden["caffe600_scale"]


@pytest.mark.parametrize("preset", ["caffe", "milvlg"])
@pytest.mark.parametrize("case", [0, 1])
def test_proposals_of_the_published_codes(preset, case) -> None:
    """py-faster-rcnn's and MILVLG's own code gave these: bench/published_golden.py."""
    conventions = CONVENTIONS[preset]
    with np.load(Path(__file__).parent / "data" / "published_proposals.npz") as data:
        before, after = data["limits"].tolist()
        config = replace(CONFIGS["vg-r101-c4-600"], proposals_before_nms=before, proposals_after_nms=after)
        said = (torch.from_numpy(data[f"{name}_{case}"]) for name in ("logits", "deltas"))
        boxes, objectness = ProposalGenerator(config, conventions).score_anchors(*said)
        input_hw, factor = tuple(data["input_hw"].tolist()), float(data["factors"][case])
        made = choose_proposals(boxes, objectness, input_hw, factor, config, conventions)
        # Scores have no ties: equal ones in this order are those of the same anchors.
        np.testing.assert_allclose(made.objectness, data[f"scores_{preset}_{case}"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(made.boxes, data[f"boxes_{preset}_{case}"], rtol=0, atol=0.01)


@pytest.mark.parametrize("preset", CONVENTIONS)
def test_boxes_outside_the_photo_or_empty_are_described(preset) -> None:
    tiny = replace(CONFIGS["small"], base_channels=2, short_edge=64, long_edge=107)
    detector = build_detector(tiny, weights="random:1", conventions=preset)
    boxes = [[0, 0, 60, 40], [10, 10, 10, 10], [500, 500, 600, 600], [-50, -50, -10, -10], [-9, 20, 40, 500]]
    (regions,) = detector([np.full((40, 60, 3), 99, np.uint8)], boxes=[np.array(boxes, np.float32)])
    clipped = [[0, 0, 60, 40], [10, 10, 10, 10], [60, 40, 60, 40], [0, 0, 0, 0], [0, 20, 40, 40]]
    assert regions.boxes.tolist() == clipped
    assert np.isfinite(regions.features).all() and (np.abs(regions.features).max(axis=1) > 0).all()
