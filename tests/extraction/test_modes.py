"""The network in its inference form against the modules it is made from, and its modes against exact."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from small_networks import NARROW as TINY
from torch import nn

from roibeam.extraction.detector import Detector
from roibeam.extraction.fast.fused_resnet import BinnedStage, FusedConv, folded, has_fused_kernels
from roibeam.extraction.fast.modes import MODES, mode_named
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.resnet import FrozenBatchNorm, NormedConv, group_norm
from roibeam.extraction.network.roi_heads import RegionOutputs
from roibeam.extraction.network.state import weights_digest
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.training.batch_losses import build_trainable_detector
from roibeam.extraction.weights.loading import build_detector

HEADS = tuple(field.name for field in dataclasses.fields(RegionOutputs))


@pytest.fixture(scope="module")
def photos(noise: np.ndarray) -> list[np.ndarray]:
    return [noise, np.ascontiguousarray(noise[::-1]), np.ascontiguousarray(noise.transpose(1, 0, 2)), 255 - noise]


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)


def largest_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Of the largest value."""
    return float((got - want).abs().max() / want.abs().max())


def cosines(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(want, axis=1)
    return np.asarray((got * want).sum(axis=1) / lengths)


def filled_conv(kernel: int, stride: int, dilation: int) -> NormedConv:
    generator = torch.Generator().manual_seed(kernel)
    conv = NormedConv(16, 32, kernel, stride=stride, dilation=dilation, eps=1e-5)
    conv.weight.data.normal_(generator=generator)
    norm = conv.norm
    assert isinstance(norm, FrozenBatchNorm)
    norm.weight.normal_(generator=generator)
    norm.bias.normal_(generator=generator)
    norm.running_mean.normal_(generator=generator)
    # The smallest variances are below the epsilon, so that it counts.
    norm.running_var.copy_(10 ** torch.empty(32).uniform_(-6, 1, generator=generator))
    return conv


@pytest.mark.parametrize("kernel, stride, dilation", [(1, 1, 1), (1, 2, 1), (3, 1, 1), (3, 1, 2), (3, 2, 1), (7, 2, 1)])
@torch.inference_mode()
def test_a_fused_convolution_is_convolution_norm_sum_and_relu(kernel, stride, dilation):
    conv = filled_conv(kernel, stride, dilation)
    x = torch.rand(2, 16, 15, 18, generator=torch.Generator().manual_seed(0))
    plain = conv(x)
    last = x.contiguous(memory_format=torch.channels_last)
    assert largest_error(FusedConv(conv, torch.float32, (15, 18))(last), plain) < 3e-6
    onto = torch.rand_like(plain).contiguous(memory_format=torch.channels_last)
    want = torch.relu(plain + onto)
    assert largest_error(FusedConv(conv, torch.float32, (15, 18), relu=True)(last, onto=onto), want) < 3e-6
    # Laid out for maps of another size.
    assert largest_error(FusedConv(conv, torch.float32, (99, 3))(last), plain) < 3e-6


def test_norms_are_folded_in_float64():
    weight, bias = folded(filled_conv(3, 1, 1))
    assert weight.dtype == bias.dtype == torch.float64


@pytest.mark.parametrize("preset", list(CONVENTIONS))
def test_the_inference_form_says_what_the_modules_say(preset, noise):
    detector = build_detector(TINY, weights="random:1", conventions=preset)
    made = preprocess(noise, detector.config, detector.conventions)
    with torch.inference_mode():
        network = detector.network()
        maps = detector.backbone(made.pixels)
        assert largest_error(network.feature_map(made.pixels), maps) < 2e-5
        for got, want in zip(network.rpn(maps), detector.proposal_generator.rpn_head(maps), strict=True):
            assert largest_error(got, want) < 2e-5
        boxes = torch.tensor([[0.0, 0.0, 99.0, 80.0], [20.0, 30.0, 60.0, 90.0], [5.0, 5.0, 5.0, 5.0]])
        got, want = network.regions(maps, boxes), detector.roi_heads(maps, boxes)
    for name in HEADS:
        assert largest_error(getattr(got, name), getattr(want, name)) < 2e-5, name


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, group_norm])
def test_norms_of_a_network_trained_from_scratch(norm, noise):
    """Batch norms in evaluation mode are folded, group norms cannot be; both say what the modules say."""
    torch.manual_seed(0)
    detector = build_trainable_detector(TINY, CONVENTIONS["hf"], norm=norm).eval()
    made = preprocess(noise, detector.config, detector.conventions)
    with torch.inference_mode():
        assert largest_error(detector.network().feature_map(made.pixels), detector.backbone(made.pixels)) < 2e-5


def test_group_norms_have_no_bf16(noise):
    detector = build_trainable_detector(TINY, CONVENTIONS["hf"], norm=group_norm).eval()
    detector.mode = mode_named("bf16")
    with pytest.raises(ValueError, match="fixed batch norms"):
        detector([noise])


def test_changed_weights_are_seen(noise):
    detector = build_detector(TINY, weights="random:1")
    (before,) = detector([noise])
    with torch.no_grad():
        detector.roi_heads.res5[2].conv3.norm.bias.add_(1)
    (shifted,) = detector([noise])
    assert not np.array_equal(shifted.features, before.features)
    detector.load_state_dict(build_detector(TINY, weights="random:1").state_dict())
    (after,) = detector([noise])
    assert np.array_equal(after.features, before.features)


def test_the_weights_of_a_detector_stay_its_own(noise):
    """Names, values and digest; copies and pickles compute the same."""
    detector = build_detector(TINY, weights="random:1")
    names, digest = list(detector.state_dict()), weights_digest(detector.state_dict())
    (regions,) = detector([noise])
    assert list(detector.state_dict()) == names and weights_digest(detector.state_dict()) == digest
    for other in (copy.deepcopy(detector), pickle.loads(pickle.dumps(detector))):
        assert np.array_equal(other([noise])[0].features, regions.features)


def test_a_photo_does_not_depend_on_its_company_in_bf16(photos):
    detector = build_detector(TINY, weights="random:1", mode="bf16")
    company = detector(photos)
    (alone,) = detector(photos[1:2])
    for field in dataclasses.fields(alone):
        assert np.array_equal(getattr(company[1], field.name), getattr(alone, field.name)), field.name


def test_batched_photos_share_calls_and_keep_their_order(photos, monkeypatch):
    exact, batched = (build_detector(TINY, weights="random:1", mode=name) for name in ("exact", "batched"))
    shapes = []
    network = batched.network()
    feature_map = network.feature_map
    monkeypatch.setattr(network, "feature_map", lambda pixels: (shapes.append(len(pixels)), feature_map(pixels))[1])
    given = [None, None, None, np.array([[3.0, 4.0, 70.0, 90.0]])]
    for got, want in zip(batched(photos, boxes=given), exact(photos, boxes=given), strict=True):
        assert got.features.shape == want.features.shape
        np.testing.assert_allclose(got.boxes, want.boxes, atol=1e-2)
        np.testing.assert_allclose(got.features, want.features, atol=1e-4 * np.abs(want.features).max())
    assert sorted(shapes) == [1, 1, 2]  # two of one size; a portrait; one with given boxes
    assert batched.preferred_batch == 8 and exact.preferred_batch == 1
    assert batched.batch_key((480, 640)) == batched.batch_key((240, 320)) != batched.batch_key((640, 480))


def test_weights_of_half_the_width_point_to_the_mode(photos):
    with pytest.raises(ValueError, match=r"weights are float32, got torch.bfloat16; .*mode='bf16'"):
        build_detector(TINY, weights="random:1").bfloat16()(photos)


def test_bf16_is_near_exact_and_is_not_exact(photos):
    boxes = np.array([[0, 0, 160, 120], [20, 30, 90, 100], [100, 5, 150, 60]], np.float32)
    exact, rounded = (build_detector("small", weights="random:1", mode=name) for name in ("exact", "bf16"))
    (want,), (got,) = (detector(photos[:1], boxes=[boxes], whole_image=True) for detector in (exact, rounded))
    assert got.features.dtype == np.float32 and 0.999 < cosines(got.features, want.features).min() < 1
    # Given boxes are not rounded.
    assert np.array_equal(got.boxes, want.boxes)
    # The mean over the cells is float32: there is more in it than the upper 16 bits.
    assert (got.features.view(np.uint32) & 0xFFFF).any()


def test_modes_are_named_in_numerics_only():
    described = {name: build_detector(TINY, weights="random:1", mode=name).describe() for name in ("exact", "bf16")}
    numerics = {name: one.pop("numerics") for name, one in described.items()}
    assert described["exact"] == described["bf16"]
    assert [numerics[name]["mode"] for name in numerics] == ["exact", "bf16"]
    assert numerics["exact"]["kernels"] in ("onednn", "torch")


def test_a_mode_that_would_do_nothing_is_refused():
    with pytest.raises(ValueError, match=r"tf32 needs a GPU, and the device is 'cpu': choose bf16"):
        build_detector(TINY, weights="random:1", mode="tf32")
    with pytest.raises(ValueError, match=f"mode 'fp8': choose one of {', '.join(MODES)}"):
        Detector(TINY, mode="fp8")
    # The device of a detector may be chosen after it was made.
    with pytest.raises(ValueError, match="tf32 needs a GPU"):
        Detector(TINY, mode="tf32")([np.zeros((9, 9, 3), np.uint8)])


def test_bf16_without_instructions_for_it_is_said_to_be_slow(monkeypatch, caplog):
    monkeypatch.setattr("roibeam.extraction.fast.modes.bf16_instructions", lambda: "none")
    build_detector(TINY, weights="random:1")
    assert not caplog.messages
    build_detector(TINY, weights="random:1", mode="bf16")
    assert caplog.messages == ["bf16: this CPU has no bfloat16 instructions; float32 (mode exact) is faster here"]


@pytest.mark.parametrize("mode, tolerance", [("exact", 1e-5), ("bf16", 5e-2)])
def test_processors_without_fused_kernels_compute_the_same(monkeypatch, mode, tolerance):
    if not has_fused_kernels("cpu", mode_named(mode).conv_dtype):
        pytest.skip(f"this CPU has no fused kernels for {mode}")
    photo = np.random.default_rng(5).integers(0, 256, (90, 120, 3), np.uint8)
    boxes = np.array([[0, 0, 60, 50], [10, 20, 119, 89]], np.float32)
    found = []
    for is_there in (True, False):
        there = "roibeam.extraction.fast.fused_resnet.has_fused_kernels"
        monkeypatch.setattr(there, lambda *_, is_there=is_there: is_there)
        (regions,) = build_detector("small", weights="random:1", mode=mode)([photo], boxes=[boxes])
        found.append(regions.features)
    assert np.abs(found[0] - found[1]).max() <= tolerance * np.abs(found[0]).max()
    assert np.abs(found[0]).max() > 0


@pytest.mark.parametrize("mode", ["exact", "bf16"])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_equal_bins_are_convolved_once_and_the_bits_are_those_of_pooled_regions(mode: str, count: int) -> None:
    """Regions of all sizes, some empty, some past the map's end, more than one chunk of bins that differ."""
    if not has_fused_kernels("cpu", mode_named(mode).conv_dtype):
        pytest.skip("no fused convolutions here: regions are pooled")
    network = build_detector(dataclasses.replace(TINY, base_channels=8), weights="random:1", mode=mode).network()
    generator = torch.Generator().manual_seed(0)
    feature_map = torch.randn(1, 128, 30, 40, generator=generator)
    corners = torch.rand(count, 2, 2, generator=generator) * torch.tensor([660.0, 500.0])
    corners[::7, 1] = corners[::7, 0]
    boxes = torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)
    stage = network._map_stage
    assert isinstance(stage, BinnedStage)
    with torch.inference_mode():
        got = network.regions(feature_map, boxes)
        network._map_stage = None
        want = network.regions(feature_map, boxes)
    assert len(got.features) == count
    for name in HEADS:
        assert torch.equal(getattr(got, name), getattr(want, name)), name


@pytest.mark.parametrize("preset", CONVENTIONS)
def test_bins_are_convolved_once_where_roi_pool_cuts_out_regions(preset: str) -> None:
    """R2C's mean over samples and VL-BERT's one sample are no bins of a maximum; a stride skips bins."""
    network = build_detector(TINY, weights="random:1", conventions=preset).network()
    is_plain = (CONVENTIONS[preset].region_pool, CONVENTIONS[preset].res5_stride) == ("roi-pool", 1)
    takes = is_plain and has_fused_kernels("cpu", torch.float32)
    assert isinstance(network._map_stage, BinnedStage) == takes
