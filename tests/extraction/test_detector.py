"""What must hold of any detector: exactness, odd photos, the description, the door."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from small_networks import NARROW
from torch.utils._python_dispatch import TorchDispatchMode

from roibeam.extraction.detector import Detector
from roibeam.extraction.fast.inference_network import NetworkCache
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS, Conventions
from roibeam.extraction.network.roi_heads import RegionOutputs
from roibeam.extraction.weights.loading import build_detector


def head_rows(detector, feature_map, boxes):
    with torch.inference_mode():
        outputs = detector.network().regions(feature_map, boxes)
    return {field.name: getattr(outputs, field.name) for field in dataclasses.fields(RegionOutputs)}


@pytest.fixture(scope="module")
def feature_map(narrow_detector):
    return torch.rand(1, narrow_detector.config.map_channels, 10, 14, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def boxes():
    corner = torch.rand(37, 2, generator=torch.Generator().manual_seed(1)) * 120
    return torch.cat([corner, corner + 5 + corner.flip(0) * 0.7], dim=1)


@pytest.fixture(scope="module")
def everything(narrow_detector, feature_map, boxes):
    return head_rows(narrow_detector, feature_map, boxes)


@pytest.mark.parametrize("count", [1, 15, 16, 17])
def test_a_region_is_bit_identical_whatever_else_is_there(narrow_detector, feature_map, boxes, everything, count):
    some = head_rows(narrow_detector, feature_map, boxes[:count])
    for name, rows in some.items():
        assert torch.equal(rows, everything[name][:count]), name


ODD_SIZES = [(1, 1), (4000, 30), (200, 4000), (57, 90)]


@pytest.mark.parametrize(
    "preset, height, width",
    [*((preset, *size) for preset in CONVENTIONS for size in ODD_SIZES), ("hf", 12, 8), ("hf", 1, 3000)],
)
def test_odd_photos_give_finite_regions(preset, height, width):
    config = dataclasses.replace(NARROW, short_edge=96, long_edge=160)
    detector = build_detector(config, weights="random:1", conventions=preset)
    outputs = detector.head_outputs(np.resize(np.arange(251, dtype=np.uint8), (height, width, 3)))
    for selection in SELECTIONS.values():
        # Some presets filter the proposals of one pixel.
        check_regions(detector.postprocess(outputs, selection), selection, height, width, least=int(preset == "hf"))


def test_a_black_photo_gives_finite_regions(narrow_detector):
    (regions,) = narrow_detector([np.zeros((90, 120, 3), np.uint8)])
    check_regions(regions, narrow_detector.selection, 90, 120)


def check_regions(regions, selection, height, width, *, least=1):
    count = len(regions.boxes)
    assert least <= count <= selection.max_regions
    assert regions.features.shape == (count, 128) and regions.class_probabilities.shape == (count, 21)
    for field in dataclasses.fields(regions):
        value = getattr(regions, field.name)
        if field.name == "image_feature":
            continue
        assert len(value) == count and np.isfinite(value).all() and value.flags.c_contiguous, field.name
        assert value.dtype == (np.int64 if field.name.endswith("_ids") else np.float32), field.name
    for boxes in (regions.boxes, regions.proposal_boxes, regions.regressed_boxes):
        assert (boxes[:, 2:] >= boxes[:, :2]).all() and (boxes >= 0).all()
        assert (boxes[:, 2:] <= [width, height]).all()
    np.testing.assert_allclose(regions.class_probabilities.sum(1), 1, atol=1e-5)
    if selection.region_class == "best":
        np.testing.assert_array_equal(regions.class_ids, regions.class_probabilities[:, :-1].argmax(1))
    at = np.arange(count), regions.class_ids
    np.testing.assert_array_equal(regions.class_scores, regions.class_probabilities[at])


@pytest.mark.parametrize(
    "image, words",
    [
        (np.zeros((4, 4), np.uint8), r"got \(4, 4\) uint8"),
        (np.zeros((4, 4, 3), np.float32), r"got \(4, 4, 3\) float32"),
        (np.zeros((4, 4, 4), np.uint8), r"got \(4, 4, 4\) uint8"),
        (np.zeros((0, 4, 3), np.uint8), "0x4 pixels is empty"),
        ("photo.jpg", "got str"),
    ],
)
def test_only_bgr_bytes_are_images(narrow_detector, image, words):
    with pytest.raises(ValueError, match=words):
        narrow_detector([image])


def test_description_is_json_and_names_everything(small_detector):
    described = small_detector.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["feature_dim"] == 512 and described["num_classes"] == 20 and described["num_attributes"] == 12
    assert described["conventions"]["res5_dilation"] == 2
    assert described["selection"]["max_regions"] == 100
    assert "region_chunk" not in described["config"] and described["numerics"]["region_chunk"] % 16 == 0
    other = build_detector("small", weights="random:2").describe()
    assert {key for key in described if described[key] != other[key]} == {"weights"}


def test_what_the_caller_switched_on_changes_nothing_and_comes_back(narrow_detector, noise_image):
    (plain,) = narrow_detector([noise_image])
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (inside,) = narrow_detector([noise_image])
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert np.array_equal(plain.features, inside.features)


def test_a_detector_takes_its_parts(narrow_detector, noise_image):
    class OneBox(torch.nn.Module):
        def forward(self, feature_map, input_hw, factor):
            proposals = narrow_detector.proposal_generator(feature_map, input_hw, factor)
            return dataclasses.replace(proposals, boxes=proposals.boxes[:1], objectness=proposals.objectness[:1])

    detector = Detector(
        narrow_detector.config,
        backbone=narrow_detector.backbone,
        proposal_generator=OneBox(),
        roi_heads=narrow_detector.roi_heads,
    )
    (regions,) = detector([noise_image])
    assert regions.proposal_ids.tolist() == [0]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"depth": 34}, r"depth is 34; it must be one of \[26, 50, 101, 152\]"),
        ({"num_classes": -1}, "num_classes is -1; it must be a whole number of at least 0"),
        ({"num_attributes": 70000}, "at most 65534"),
        ({"region_chunk": 100}, "region_chunk is 100; it must be a multiple of 16"),
        ({"long_edge": 100}, "long_edge 100 is shorter than short_edge"),
        ({"anchor_sizes": ()}, "anchor_sizes is"),
        ({"proposal_nms_iou": 0.0}, "proposal_nms_iou is 0.0"),
        ({"proposals_before_nms": 10}, "proposals_before_nms 10 is less"),
    ],
)
def test_impossible_sizes_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(DetectorConfig(), **change)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"channel_order": "grb"}, "convention channel_order is 'grb'; implemented: 'bgr', 'rgb'"),
        ({"region_pool": "roi-align"}, "region_pool is 'roi-align'; implemented: 'roi-pool', 'roi-align-1', 'roi-"),
        ({"res5_dilation": 3}, "convention res5_dilation is 3; implemented: 1, 2"),
        ({"pixel_mean": (1.0,)}, "pixel_mean is .*a tuple of 3 numbers"),
        ({"pixel_std": (1.0, 1.0, 0.0)}, "pixel_std is .*3 positive numbers"),
        ({"norm_eps": -0.1}, "norm_eps -0.1"),
        ({"delta_cap": -1.0}, "delta_cap is -1.0"),
        ({"padding_multiple": 0}, "padding_multiple is 0"),
        ({"resize": "pil-bilinear", "resize_mean": "before"}, "resizes 8-bit pixels"),
        ({"resized_edge_rounding": "truncate"}, "goes with a long_edge_rule"),
    ],
)
def test_conventions_that_are_not_computed_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(Conventions(), **change)


def test_every_word_convention_is_checked():
    free = {"pixel_mean", "pixel_std", "norm_eps", "anchor_offset", "delta_cap"}
    free |= {"proposal_delta_weights", "region_delta_weights", "padding_multiple", "min_proposal_side"}
    for field in dataclasses.fields(Conventions):
        if field.name not in free:
            with pytest.raises(ValueError, match=f"convention {field.name} is 'other'; implemented"):
                dataclasses.replace(Conventions(), **{field.name: "other"})


@pytest.mark.parametrize("preset", CONVENTIONS)
def test_a_photo_resized_beforehand_gives_the_same_bits(preset: str) -> None:
    detector = build_detector(NARROW, weights="random:1", conventions=preset)
    photo = np.random.default_rng(3).integers(0, 256, (70, 101, 3), np.uint8)
    (want,), (got,) = detector([photo]), detector([detector.prepare(photo)])
    assert len(want.boxes) > 0
    for name, value in vars(want).items():
        np.testing.assert_array_equal(value, getattr(got, name), err_msg=name)


class WaitsForTheDevice(TorchDispatchMode):
    """Notes the operations whose result has a size, or is a number, that a GPU must be waited for to tell."""

    waiting = ("nonzero", "item", "_local_scalar_dense", "is_nonzero", "masked_select", "_unique2", "nms")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        by_mask = name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        if by_mask or name in self.waiting:
            self.names.append("index by mask" if by_mask else name)
        return function(*args, **(kwargs or {}))


def test_proposals_are_waited_for_twice(narrow_detector, feature_map):
    """To know how many boxes are large enough, and how many are left by suppression. Whether all numbers are finite is
    asked when no box is left."""
    with torch.inference_mode(), WaitsForTheDevice() as waits:
        narrow_detector.proposal_generator(feature_map, (160, 224), 1.0)
    assert waits.names == ["nonzero", "nms"]
    with torch.inference_mode(), WaitsForTheDevice() as waits, pytest.raises(ValueError, match="NaN or infinity"):
        narrow_detector.proposal_generator(feature_map * torch.nan, (160, 224), 1.0)
    assert waits.names == ["nonzero", "nms", "is_nonzero"]


def test_weights_changed_behind_torch_count_when_the_copies_are_forgotten(narrow_detector, noise_image):
    detector = copy.deepcopy(narrow_detector)
    (before,) = detector([noise_image])
    for weight in detector.roi_heads.parameters():
        weight.data.mul_(1.01)
    detector.forget_copies()
    (after,) = detector([noise_image])
    assert not np.array_equal(before.features, after.features)
    fresh = copy.deepcopy(narrow_detector)
    fresh.load_state_dict(detector.state_dict())
    np.testing.assert_array_equal(fresh([noise_image])[0].features, after.features)


def test_whether_a_weight_has_changed_is_asked_once_a_call(narrow_detector, noise_image):
    """Not for each photo: Python takes a millisecond for it at true size, in which a GPU is told nothing."""
    detector = copy.deepcopy(narrow_detector)
    asked = []

    class Counted(NetworkCache):
        def get(self, *arguments):
            asked.append(1)
            return super().get(*arguments)

    detector._networks = Counted()
    assert len(detector([noise_image] * 3, whole_image=True)) == 3
    assert len(asked) == 1
