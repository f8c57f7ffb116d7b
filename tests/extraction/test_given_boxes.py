"""Features of boxes that are handed in, of masked regions, of the whole photo."""

import dataclasses

import numpy as np
import pytest
import torch
from small_networks import NARROW

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS
from roibeam.extraction.network.roi_heads import pool_regions
from roibeam.extraction.weights.loading import build_detector

HEIGHT, WIDTH = 90, 120
BOXES = np.array([[10, 20, 60, 80], [0, 0, WIDTH, HEIGHT], [30.5, 10.25, 31.5, 70]], np.float32)


@pytest.fixture(scope="module")
def photo():
    return np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def test_given_boxes_come_back_as_they_are_with_the_features_of_their_place(narrow_detector, photo):
    (regions,) = narrow_detector([photo], boxes=[BOXES])
    np.testing.assert_array_equal(regions.boxes, BOXES)
    assert regions.proposal_ids.tolist() == [0, 1, 2]
    outputs = narrow_detector.head_outputs(photo)
    network_boxes = outputs.network_input.scale.to_network(torch.from_numpy(BOXES))
    with torch.inference_mode():
        want = narrow_detector.network().regions(outputs.feature_map, network_boxes)
    np.testing.assert_array_equal(regions.features, want.features.numpy())
    assert regions.regressed_boxes.shape == (3, 4) and not np.array_equal(regions.regressed_boxes, BOXES)


def test_some_images_bring_boxes_and_some_do_not(narrow_detector, photo):
    given, free = narrow_detector([photo, photo], boxes=[BOXES, None])
    (alone,) = narrow_detector([photo])
    assert len(given.boxes) == 3
    np.testing.assert_array_equal(free.features, alone.features)


def test_no_boxes_give_no_regions(narrow_detector, photo):
    (regions,) = narrow_detector([photo], boxes=[np.empty((0, 4), np.float32)])
    assert regions.boxes.shape == (0, 4) and regions.features.shape == (0, 128)
    assert regions.class_probabilities.shape == (0, 21) and regions.regressed_boxes.shape == (0, 4)


@pytest.mark.parametrize(
    "point, value",
    [
        (0.0, 0.0),
        (20.0, 5.0),  # 20 / 16 rounds to 1: row 1, column 1
        (39.9, 10.0),  # 2.49 rounds to 2
        (40.0, 0.0),  # 2.5 rounds to 3, past the three rows: an empty bin is 0
    ],
)
def test_an_empty_box_is_pooled_from_the_cell_its_corner_rounds_to(point, value):
    cells = torch.arange(12.0).view(1, 1, 3, 4)  # 3 rows, 4 columns
    pooled = pool_regions(cells, [torch.full((1, 4), point)], CONVENTIONS["hf"])
    assert pooled.unique().tolist() == [value]


@pytest.mark.parametrize(
    "boxes, words",
    [
        (np.zeros((2, 3)), r"must be \(R, 4\) numbers"),
        (np.array([[0, 0, 5, 5], [3, 3, 1, 5]]), r"given box 1 is \[3, 3, 1, 5\]"),
        (np.array([[0, 0, np.nan, 5]]), "given box 0 is"),
        (np.array([["a", "b", "c", "d"]]), r"must be \(R, 4\) numbers"),
    ],
)
def test_impossible_boxes_are_refused(narrow_detector, photo, boxes, words):
    with pytest.raises(ValueError, match=words):
        narrow_detector([photo], boxes=[boxes])


@pytest.mark.parametrize("boxes", [[], [BOXES], [None, BOXES, BOXES]])
def test_one_entry_of_boxes_for_each_image(narrow_detector, photo, boxes):
    with pytest.raises(ValueError, match=f"one entry for each of the 2 images, got {len(boxes)}"):
        narrow_detector([photo, photo], boxes=boxes)


def test_no_images_give_no_regions(narrow_detector):
    assert narrow_detector([]) == narrow_detector([], boxes=[]) == []


def test_masked_regions_lose_their_pixels_and_others_lose_what_they_share(narrow_detector, photo):
    boxes = np.array([[0, 0, 20, 20], [0, 0, WIDTH, HEIGHT]], np.float32)
    plain = narrow_detector.head_outputs(photo, boxes=boxes).regions.features
    first = narrow_detector.head_outputs(photo, boxes=boxes, masked=np.array([True, False])).regions.features
    assert not torch.equal(first[0], plain[0]) and not torch.equal(first[1], plain[1])
    # With the whole photo masked nothing of it is left.
    both = narrow_detector.head_outputs(photo, boxes=boxes, masked=np.array([False, True])).regions.features
    other = narrow_detector.head_outputs(255 - photo, boxes=boxes, masked=np.array([False, True])).regions.features
    assert torch.equal(both, other)


def test_masking_needs_boxes_and_one_flag_for_each(narrow_detector, photo):
    with pytest.raises(ValueError, match="masked regions need given boxes"):
        narrow_detector.head_outputs(photo, masked=np.ones(3, bool))
    with pytest.raises(ValueError, match=r"masked must be \(3,\) bool"):
        narrow_detector.head_outputs(photo, boxes=BOXES, masked=np.ones(2, bool))


def test_whole_image_feature_is_that_of_a_box_around_the_photo(narrow_detector, photo):
    (regions,) = narrow_detector([photo], boxes=[BOXES], whole_image=True)
    np.testing.assert_array_equal(regions.image_feature, regions.features[1])
    (free,) = narrow_detector([photo], whole_image=True)
    np.testing.assert_array_equal(free.image_feature, regions.image_feature)


def test_whole_image_ends_at_the_last_pixel_where_boxes_do():
    # 40 columns at stride 16: 40 / 16 rounds to 3 and 39 / 16 to 2, so one more column of cells is pooled.
    photo = np.random.default_rng(5).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    config = dataclasses.replace(NARROW, short_edge=40, long_edge=40)
    whole, last = np.array([[0, 0, 40, 40]], np.float32), np.array([[0, 0, 39, 39]], np.float32)
    for clip, box in (("edge", whole), ("last-pixel", last)):
        conventions = dataclasses.replace(CONVENTIONS["hf"], box_clip=clip)
        detector = build_detector(config, weights="random:1", conventions=conventions)
        outputs = detector.head_outputs(photo)
        with torch.inference_mode():
            want = detector.network().regions(outputs.feature_map, torch.from_numpy(box)).features[0]
        np.testing.assert_array_equal(detector.whole_image_feature(outputs), want.numpy())


def published_regression(boxes, deltas, height, width):
    """rbgirshick/py-faster-rcnn lib/fast_rcnn/bbox_transform.py, bbox_transform_inv and clip_boxes, written anew."""
    sides = boxes[:, 2:] - boxes[:, :2] + 1
    centers = boxes[:, :2] + 0.5 * sides + deltas[:, :2] * sides
    sides = np.exp(deltas[:, 2:]) * sides
    moved = np.concatenate([centers - 0.5 * sides, centers + 0.5 * sides], axis=1)
    return np.clip(moved, 0, np.array([width - 1, height - 1] * 2))


@pytest.mark.parametrize("name", ["caffe", "milvlg"])
def test_caffe_regresses_and_clips_in_photo_pixels(photo, name):
    detector = build_detector(NARROW, weights="random:1", conventions=name)
    outputs = detector.head_outputs(photo)
    wider = outputs.regions.box_deltas + torch.tensor([0.0, 0.0, 0.7, 0.7])  # so that some reach the edge
    outputs = dataclasses.replace(outputs, regions=dataclasses.replace(outputs.regions, box_deltas=wider))
    regions = detector.postprocess(outputs)
    rows = torch.from_numpy(regions.proposal_ids)
    deltas = outputs.regions.box_deltas[rows, torch.from_numpy(regions.class_ids)].double().numpy()
    boxes = (outputs.proposals.boxes[rows].double() / outputs.network_input.factor).numpy()
    want = published_regression(boxes, deltas, HEIGHT, WIDTH)
    np.testing.assert_allclose(regions.regressed_boxes, want, atol=1e-3)
    assert (want[:, 2] == WIDTH - 1).any()


@pytest.mark.parametrize("name", ["hf", "caffe"])
@pytest.mark.parametrize("bias", [3e38, float("nan")])
def test_wild_proposals_are_an_error_not_a_photo_without_regions(photo, name, bias):
    detector = build_detector(NARROW, weights="random:1", conventions=name)
    with torch.no_grad():
        detector.proposal_generator.rpn_head.anchor_deltas.bias.fill_(bias)
    with pytest.raises(ValueError, match="proposal network gave"):
        detector([photo])


def test_a_photo_without_proposals_gives_no_regions(photo):
    # Nothing is 500 photo pixels wide, so nothing passes the filter.
    conventions = dataclasses.replace(CONVENTIONS["caffe"], min_proposal_side=500.0)
    detector = build_detector(NARROW, weights="random:1", conventions=conventions)
    for selection in SELECTIONS.values():
        regions = detector.postprocess(detector.head_outputs(photo), selection)
        assert regions.boxes.shape == (0, 4) and regions.features.shape == (0, 128)


def test_nan_weights_give_nan_features_which_the_engine_refuses(photo):
    detector = Detector(NARROW)
    with torch.no_grad():
        detector.backbone.stem.conv1.weight.fill_(float("nan"))
    (regions,) = detector([photo], boxes=[BOXES])
    assert np.isnan(regions.features).any()
