"""What the detector promises, on a CUDA device: a CPU's numbers, independence of company, the errors of the modes."""

import copy
from collections.abc import Iterator

import cv2
import numpy as np
import pytest
import torch

from roibeam.extraction.detector import Detector
from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.fast.cuda_device import CudaConv, RecordedCalls
from roibeam.extraction.fast.modes import MODES
from roibeam.extraction.network.boxes import suppress
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS
from roibeam.extraction.network.precision import plain_float32
from roibeam.extraction.network.roi_heads import WindowMax
from roibeam.extraction.network.rpn import choose_proposals
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.extraction.region_encoder import RegionEncoder, load_encoder_weights
from roibeam.extraction.regions import Regions
from roibeam.extraction.weights.loading import build_detector

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# Largest difference from exact on a CPU, of the largest feature, for given boxes: 2e-7, 2e-4 and 5e-3 were measured.
TOLERANCES = {"exact": 1e-4, "tf32": 2e-3, "bf16": 5e-2}
WIDTH, HEIGHT = 640, 480


@pytest.fixture(scope="module")
def photos() -> list[np.ndarray]:
    """Three sizes; the first comes twice in a row of calls, so that recordings are made and replayed."""
    rng = np.random.default_rng(0)
    return [
        np.kron(rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8), np.ones((16, 16, 1), np.uint8))
        for height, width in [(HEIGHT, WIDTH), (WIDTH, HEIGHT), (HEIGHT, WIDTH), (320, 640)]
    ]


@pytest.fixture(scope="module")
def boxes() -> np.ndarray:
    corners = np.random.default_rng(1).uniform(0, 1, (300, 2, 2)) * [WIDTH, HEIGHT]
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).astype(np.float32)


@pytest.fixture(scope="module", params=["small", "vg-r101-c4"])
def size(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def on_cpu(size: str) -> Detector:
    return build_detector(size, weights="random:1", conventions="hf")


@pytest.fixture(scope="module", params=["exact", "tf32", "bf16"])
def detector(request: pytest.FixtureRequest, size: str) -> Iterator[Detector]:
    yield build_detector(size, weights="random:1", conventions="hf", mode=request.param, device="cuda")
    torch.cuda.empty_cache()


def assert_same(got: Regions, want: Regions, rows: np.ndarray | slice = slice(None)) -> None:
    for name in ("features", "class_probabilities", "boxes", "regressed_boxes", "attribute_scores"):
        assert getattr(got, name).tobytes() == getattr(want, name)[rows].tobytes(), name


def test_given_boxes_have_the_features_of_a_cpu(detector, on_cpu, photos, boxes):
    few = boxes[:24]
    (want,) = on_cpu(photos[:1], boxes=[few], whole_image=True)
    for _ in range(3):  # as it comes, recorded, replayed
        (got,) = detector(photos[:1], boxes=[few], whole_image=True)
        tolerance = TOLERANCES[detector.mode.name] * np.abs(want.features).max()
        np.testing.assert_allclose(got.features, want.features, rtol=0, atol=tolerance)
        np.testing.assert_allclose(got.image_feature, want.image_feature, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(got.boxes, want.boxes)


def test_a_box_does_not_depend_on_its_company(detector, photos, boxes):
    (everything,) = detector(photos[:1], boxes=[boxes])
    order = np.random.default_rng(2).permutation(len(boxes))
    for rows in (order, order[::-1], order[:200], order[:36], order[:3], order[-1:]):
        (some,) = detector(photos[:1], boxes=[boxes[rows]])
        assert_same(some, everything, rows)


def test_a_photo_does_not_depend_on_its_company(detector, photos):
    (alone,) = detector(photos[:1], whole_image=True)
    for _ in range(3):
        company = detector([photos[1], photos[0], photos[3], photos[0], photos[2]], whole_image=True)
        for regions in (company[1], company[3]):
            assert_same(regions, alone)
            assert regions.image_feature.tobytes() == alone.image_feature.tobytes()


def test_detections_are_those_of_a_cpu(on_cpu, size, photos):
    """Nearly equal objectness may change places, and boxes with it."""
    exact = build_detector(size, weights="random:1", conventions="hf", device="cuda")
    (want,), (got,) = on_cpu(photos[:1]), exact(photos[:1])
    assert len(got.boxes) == len(want.boxes)
    distances = np.abs(got.boxes[:, None] - want.boxes[None]).max(axis=2).min(axis=1)
    assert (distances < 0.05).mean() > 0.9


@pytest.mark.parametrize("comparison", [">", ">="])
@pytest.mark.parametrize("plus_one_sides", [False, True])
@pytest.mark.parametrize("most", [None, 30, 300])
def test_suppression_keeps_what_a_cpu_keeps(comparison, plus_one_sides, most):
    generator = torch.Generator().manual_seed(3)
    # Whole pixels: overlaps that meet the threshold exactly, equal boxes, equal scores.
    corners = (torch.rand(3000, 2, 2, generator=generator) * 40).round()
    boxes = torch.cat([corners.amin(dim=1), corners.amax(dim=1) + 1], dim=1)
    scores = (torch.rand(3000, generator=generator) * 50).round()
    found = [
        suppress(boxes.to(at), scores.to(at), 0.5, comparison=comparison, plus_one_sides=plus_one_sides, most=most)
        for at in ("cpu", "cuda")
    ]
    assert torch.equal(found[0], found[1].cpu()) and len(found[0]) > 20


@pytest.mark.parametrize("preset", ["hf", "caffe", "milvlg"])
def test_proposals_are_those_of_a_cpu(preset):
    generator = torch.Generator().manual_seed(4)
    corners = torch.rand(8000, 2, 2, generator=generator) * torch.tensor([700.0, 500.0]) - 20
    boxes = torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)
    scores = (torch.rand(8000, generator=generator) * 1000).round() / 1000
    found = [
        choose_proposals(boxes.to(at), scores.to(at), (480, 640), 1.5, CONFIGS["vg-r101-c4"], CONVENTIONS[preset])
        for at in ("cpu", "cuda")
    ]
    assert torch.equal(found[0].boxes, found[1].boxes.cpu()) and len(found[0].boxes) == 300


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooled_cells_are_those_of_a_cpu(dtype):
    generator = torch.Generator().manual_seed(5)
    feature_map = torch.randn(1, 16, 50, 67, generator=generator).to(dtype)
    corners = torch.rand(300, 2, 2, generator=generator) * torch.tensor([67.0, 50.0]) * 16
    boxes = torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)
    want, got = (
        WindowMax(feature_map.to(at), boxes.to(at), cells=14, stride=16, chunk=304)(0) for at in ("cpu", "cuda")
    )
    assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("selection", ["butd-10-100", "hf-36"])
def test_the_engine_says_what_the_detector_says(tmp_path, photos, selection):
    detector = build_detector("small", weights="random:1", device="cuda")
    detector.selection = SELECTIONS[selection]
    images = []
    for number in range(40):
        path = tmp_path / f"{number:02}.png"
        cv2.imwrite(str(path), photos[number % len(photos)])
        images.append(ImageRef(path.stem, str(path)))
    wanted = [detector([photo])[0] for photo in photos]
    for number, outcome in enumerate(extract_regions(images, detector)):
        assert not isinstance(outcome, Failure), outcome
        want = wanted[number % len(photos)]
        np.testing.assert_array_equal(outcome.features, want.features.astype(np.float16))


@pytest.mark.parametrize("name", ["exact", "tf32", "bf16"])
def test_damaged_weights_are_refused(name, photos):
    detector = build_detector("small", weights="random:1", mode=name, device="cuda")
    detector.roi_heads.res5[1].conv1.weight.data[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="a convolution's weights hold NaN or infinity"):
        detector(photos[:1])


@pytest.mark.parametrize("mode", [MODES["exact"], MODES["tf32"], MODES["bf16"]], ids=lambda mode: mode.name)
@pytest.mark.parametrize("kernel, stride, dilation", [(1, 1, 1), (1, 2, 1), (3, 1, 1), (3, 1, 2), (3, 2, 1), (7, 2, 1)])
@torch.inference_mode()
def test_a_convolution_is_convolution_sum_and_relu(mode, kernel, stride, dilation):
    generator = torch.Generator().manual_seed(6)
    conv = torch.nn.Conv2d(16, 32, kernel, stride, dilation * (kernel // 2), dilation)
    x = torch.randn(2, 16, 15, 18, generator=generator)
    weight, bias = conv.weight.double(), conv.bias.double()
    plain = torch.nn.functional.conv2d(x.double(), weight, bias, stride, conv.padding, dilation)
    onto = torch.randn(plain.shape, generator=generator)
    wanted = [plain, plain.relu(), (plain + onto.double()).relu()]
    last = x.to("cuda", mode.conv_dtype, memory_format=torch.channels_last)
    sum_of = onto.to("cuda", mode.conv_dtype, memory_format=torch.channels_last)
    with build_detector("small", weights="random:1", mode=mode.name, device="cuda").arithmetic():
        made = [CudaConv(weight.cuda(), bias.cuda(), conv, mode, relu=relu) for relu in (False, True)]
        found = [made[0](last), made[1](last), made[1](last, onto=sum_of)]
    for got, want in zip(found, wanted, strict=True):
        largest = float((got.double().cpu() - want).abs().max() / want.abs().max())
        assert largest < {"exact": 1e-5, "tf32": 2e-3, "bf16": 2e-2}[mode.name]


def test_recorded_calls_say_what_the_function_says():
    asked: list[torch.Size] = []

    def function(x: torch.Tensor, y: torch.Tensor, *, times: int) -> tuple[torch.Tensor, ...]:
        asked.append(x.shape)
        return x * times + y, x.sum(dim=0)

    calls = RecordedCalls(function)
    kept = []
    for number in range(120):
        x = torch.full((2, 1 + number % 40), float(number), device="cuda")  # more shapes than are kept
        times, y = 2 + number % 2, torch.full_like(x, number + 1.0)
        kept.append((number, times, calls(x, y, times=times), calls(x, y, times=times)))
    for number, times, *both in kept:
        for made, summed in both:
            assert bool((made == times * number + number + 1).all()) and bool((summed == 2 * number).all())
    once = torch.ones(5, 5, device="cuda")
    before = len(asked)
    for _ in range(10):
        calls(once, once, times=2)
        calls(once, once, times=3)
    assert len(asked) == before + 6  # of each as it comes, to set up, and recorded


def test_a_region_encoder_trains_as_on_a_cpu():
    """Its norms are folded into convolutions there."""
    encoder = RegionEncoder(CONFIGS["small"])
    load_encoder_weights("random:1", encoder)
    generator = torch.Generator().manual_seed(8)
    pixels = torch.randn(2, 3, 96, 128, generator=generator) * 50
    corners = torch.rand(2, 5, 2, 2, generator=generator) * 90
    boxes = torch.cat([corners.amin(dim=2), corners.amax(dim=2) + 4], dim=2)
    real = torch.tensor([[True] * 5, [True, False, True, False, False]])
    found = {}
    for device in ("cpu", "cuda"):
        trained = copy.deepcopy(encoder).to(device)
        with plain_float32(torch.device(device)):
            features = trained(pixels.to(device), boxes.to(device), real.to(device))
            (features * torch.linspace(-1, 1, features.shape[2], device=device)).sum().backward()
        slopes = {name: each.grad.cpu() for name, each in trained.named_parameters() if each.grad is not None}
        found[device] = {"features": features.detach().cpu(), **slopes}
    assert found["cpu"].keys() == found["cuda"].keys() and len(found["cpu"]) > 20
    for name, want in found["cpu"].items():
        # A ReLU next to 0 falls to either side: 3e-4 of the largest slope was seen.
        tolerance = 1e-4 if name == "features" else 2e-3
        assert float((found["cuda"][name] - want).abs().max()) <= tolerance * float(want.abs().max()), name


def test_modes_and_chunks_are_recorded():
    for name, chunk in (("exact", 160), ("tf32", 112)):
        numerics = build_detector("small", weights="random:1", mode=name, device="cuda").describe()["numerics"]
        assert numerics == {"mode": name, "region_chunk": chunk, "kernels": "cuda"}
