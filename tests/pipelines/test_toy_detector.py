"""The detector that ships with the project: its files, and what it finds in a world that it has not seen."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from roibeam.extraction.detector import HeadOutputs
from roibeam.extraction.network.state import weights_digest
from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.weights.detector_choice import SHIPPED, WEIGHTS_NAME, read_detector_folder
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.data.labelled_photos import open_labelled_photos
from roibeam.pipelines.toyworld.rendering import draw_samples
from roibeam.pipelines.toyworld.world import ATTRIBUTES, CATEGORIES
from roibeam.pipelines.toyworld.write import write_world
from roibeam.pipelines.training.detector.evaluation import evaluate_detector

FOLDER = SHIPPED["toy"]


def test_it_is_small_and_its_card_and_names_are_its_own() -> None:
    assert (FOLDER / WEIGHTS_NAME).stat().st_size <= 5_000_000
    assert weights_digest(load_file(FOLDER / WEIGHTS_NAME)) in (FOLDER / "README.md").read_text("utf-8")
    folder = read_detector_folder("toy")
    assert folder.class_names == tuple(CATEGORIES) and folder.attribute_names == tuple(ATTRIBUTES)


def test_it_finds_what_is_in_pictures_it_has_not_seen(tmp_path: Path) -> None:
    """Far from the bars of the model card, which come from 600 photos; these are 12."""
    write_world(tmp_path / "world", seed=77, num_images=40, workers=1)
    photos = open_labelled_photos(str(tmp_path / "world" / "visual_genome" / "train.txt"))
    folder = read_detector_folder("toy")
    report = evaluate_detector(
        build_detector(folder.config, weights=folder.weights, conventions=folder.conventions), photos.images,
        photos.root, class_names=photos.class_names, attribute_names=photos.attribute_names,
    )  # fmt: skip
    assert report.objects.weighted_mean is not None and report.objects.weighted_mean > 0.85
    assert report.attribute_accuracy.given_boxes == pytest.approx(0.95, abs=0.05)
    assert report.region_recall.recall is not None and report.region_recall.recall > 0.9


def test_as_it_runs_it_finds_what_its_plain_network_finds(tmp_path: Path) -> None:
    """Same proposals and choice, with trained weights on pictures of their world; other tests have random ones."""
    folder = read_detector_folder("toy")
    detector = build_detector(folder.config, weights=folder.weights, conventions=folder.conventions)
    draw_samples(tmp_path, count=2, seed=7)
    paths = sorted(tmp_path.rglob("*.jpg"))
    assert len(paths) == 2
    for path in paths:
        image = decode_image(path.read_bytes())
        made = preprocess(image, detector.config, detector.conventions)
        with torch.inference_mode(), detector.arithmetic():
            plain_map = detector.backbone(made.pixels)
            plain_proposals = detector.proposal_generator(plain_map, made.input_hw, made.factor)
            plain_regions = detector.roi_heads(plain_map, plain_proposals.boxes)
            plain = HeadOutputs(made, plain_map, plain_proposals, plain_regions)
            fast = detector.head_outputs(image)
            want, got = detector.postprocess(plain), detector.postprocess(fast)
        torch.testing.assert_close(fast.proposals.boxes, plain_proposals.boxes, rtol=0, atol=0.003)
        scale = float(plain_regions.features.max())
        torch.testing.assert_close(fast.regions.features, plain_regions.features, rtol=0, atol=1e-5 * scale)
        assert len(got.boxes) >= 10 and np.array_equal(got.proposal_ids, want.proposal_ids)
        assert np.array_equal(got.class_ids, want.class_ids) and np.array_equal(got.attribute_ids, want.attribute_ids)
