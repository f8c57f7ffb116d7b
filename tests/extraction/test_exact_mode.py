"""Exact mode: a region's numbers depend on its photo and its box only, bit for bit, for an equal thread count; and the
switches that make float32 plain: for the whole time that any thread is inside, and back afterwards."""

import contextlib
import dataclasses
import threading

import cv2
import numpy as np
import pytest
import torch
from small_networks import NARROW

from roibeam.extraction.fast.modes import bf16_instructions
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.precision import plain_float32
from roibeam.extraction.weights.loading import build_detector

COUNTS = (1, 3, 36, 300)
# (height, width, threads, base_channels); many threads on few cores take their time, above all beside other tests.
CASES = [(33, 47, 1, 8), (33, 47, 16, 4), (97, 131, 1, 4), (160, 213, 1, 4)]
CASES += [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in [(33, 47, 1, 16), (33, 47, 2, 4), (97, 131, 16, 4), (160, 213, 2, 4)]
]
# Each size and each number of threads is among those above.
CASES += [
    pytest.param(height, width, count, 4, marks=[pytest.mark.slow, pytest.mark.soak(cases=True)])
    for height, width, count in [(97, 131, 2), (160, 213, 16)]
]


@contextlib.contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def noise(height, width, seed=0):
    return np.random.default_rng([height, width, seed]).integers(0, 256, (height, width, 3), dtype=np.uint8)


def random_boxes(count, height, width):
    rng = np.random.default_rng(count)
    corners = rng.uniform(0, 1, (count, 2, 2)) * [width, height]
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def as_is():
    """The small network on photos that are not resized, so that the maps have odd sizes."""

    def build(height, width, base_channels, mode="exact"):
        edges = {"short_edge": min(height, width), "long_edge": max(height, width)}
        config = dataclasses.replace(CONFIGS["small"], base_channels=base_channels, **edges)
        return build_detector(config, weights="random:1", mode=mode)

    return build


@pytest.fixture(scope="module")
def true_size():
    """Of true width and depth, on photos half as large: the backbone runs once for every set of boxes."""
    config = dataclasses.replace(CONFIGS["vg-r101-c4"], short_edge=400, long_edge=667)
    return build_detector(config, weights="random:1", conventions="hf")


def assert_same_regions(got, want):
    for field in dataclasses.fields(want):
        left, right = getattr(got, field.name), getattr(want, field.name)
        assert (left is None) == (right is None) and (left is None or left.tobytes() == right.tobytes()), field.name


@pytest.mark.parametrize("height, width, count, base_channels", CASES)
def test_a_photo_does_not_depend_on_its_company(as_is, height, width, count, base_channels):
    photo, others = noise(height, width), [noise(50, 40), noise(height, width, seed=1), noise(20, 90)]
    with threads(count):
        detector = as_is(height, width, base_channels)
        (alone,) = detector([photo], whole_image=True)
        company = detector([others[0], photo, *others[1:], photo], whole_image=True)
        assert_same_regions(company[1], alone)
        assert_same_regions(company[-1], alone)


@pytest.mark.parametrize("height, width, count, base_channels", CASES)
def test_a_box_does_not_depend_on_its_company(as_is, height, width, count, base_channels):
    with threads(count):
        check_boxes(as_is(height, width, base_channels), noise(height, width))


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_box_whose_first_layers_ran_on_the_map_does_not_depend_on_its_company(count):
    config = dataclasses.replace(NARROW, short_edge=97, long_edge=131, pooled_cells=5)
    with threads(count):
        check_boxes(build_detector(config, weights="random:1", conventions="vlbert-e2e"), noise(97, 131))


def test_a_box_does_not_depend_on_its_company_in_bf16_either(as_is):
    counts = COUNTS if bf16_instructions() != "none" else (1, 3, 36)  # without, 300 boxes take a minute
    with threads(1):
        check_boxes(as_is(33, 47, 4, "bf16"), noise(33, 47), counts)


@pytest.mark.slow
@pytest.mark.parametrize("count, counts", [(1, (3, 36, 80)), (2, (36,))])
def test_true_size_boxes_do_not_depend_on_their_company(shared_data, true_size, count, counts):
    """The head computes at the true widths; it gets whole chunks, whatever the map's size."""
    photo = cv2.imread(str(shared_data / "images" / "COCO_train2014_000000131486.jpg"))
    with threads(count):
        check_boxes(true_size, photo, counts)


def check_boxes(detector, photo, counts=COUNTS):
    """Every box of the largest set gives the same bits in another order, in the smaller sets and in any chunk."""
    height, width = photo.shape[:2]
    boxes = random_boxes(max(counts), height, width)
    feature_map = detector.head_outputs(photo, boxes=boxes[:1]).feature_map
    everything = detector.head_outputs(photo, boxes=boxes)
    assert torch.equal(everything.feature_map, feature_map)
    order = np.random.default_rng(0).permutation(len(boxes))
    for ids in (order[:count] for count in counts):
        some = detector.head_outputs(photo, boxes=boxes[ids])
        for field in dataclasses.fields(some.regions):
            got, want = (
                getattr(some.regions, field.name),
                getattr(everything.regions, field.name)[torch.from_numpy(ids)],
            )
            assert got.numpy().tobytes() == want.numpy().tobytes(), (field.name, len(ids))


CPU = torch.device("cpu")


def switches():
    return torch.backends.cudnn.conv.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@pytest.fixture
def fast_and_loose():
    """What a caller may have switched on before, as values to expect back."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.deterministic = False
    yield switches()
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.deterministic = before[1]


def test_plain_inside_and_as_before_outside(fast_and_loose):
    assert fast_and_loose != ("ieee", "ieee")
    with plain_float32(CPU), plain_float32(CPU):
        assert switches() == ("ieee", "ieee") and torch.backends.cudnn.deterministic
    assert switches() == fast_and_loose and not torch.backends.cudnn.deterministic


def test_an_error_inside_puts_the_switches_back(fast_and_loose):
    with pytest.raises(ZeroDivisionError), plain_float32(CPU):
        1 / 0  # noqa: B018
    assert switches() == fast_and_loose


def test_the_first_thread_to_leave_changes_nothing_for_the_others(fast_and_loose):
    entered, leave, seen = threading.Event(), threading.Event(), []

    def stay():
        with plain_float32(CPU):
            entered.set()
            leave.wait(10)
            seen.append((switches(), torch.backends.cudnn.deterministic))

    other = threading.Thread(target=stay)
    with plain_float32(CPU):
        other.start()
        assert entered.wait(10)
    assert switches() == ("ieee", "ieee")  # this thread has left, the other is inside
    with plain_float32(CPU):
        pass
    leave.set()
    other.join(10)
    assert seen == [(("ieee", "ieee"), True)]
    assert switches() == fast_and_loose and not torch.backends.cudnn.deterministic


def test_autocast_of_the_caller_ends_at_the_door():
    a = torch.rand(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), plain_float32(CPU):
        assert (a @ a).dtype == torch.float32


def test_tf32_is_for_cuda_and_waits_for_those_who_want_none():
    entered, order = threading.Event(), []

    def round_products():
        entered.set()
        with plain_float32(CPU, tf32=True):
            order.append((torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision))

    other = threading.Thread(target=round_products)
    with plain_float32(CPU):
        other.start()
        assert entered.wait(10)
        other.join(0.2)
        assert not order  # it waits
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    other.join(10)
    assert order[0][0] == "tf32" and order[0][1] in ("ieee", "none")
