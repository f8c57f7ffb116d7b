"""Photos with objects -> a batch, and a batch through the detector's own parts: the same losses under every convention,
gradients, and learning."""

from dataclasses import replace
from itertools import pairwise

import cv2
import numpy as np
import pytest
import torch
from small_networks import NARROW
from torch import nn

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.boxes import decode_deltas, grid_anchors
from roibeam.extraction.network.config import FEATURE_STRIDE, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, SelectionPolicy
from roibeam.extraction.network.resnet import FrozenBatchNorm, group_norm
from roibeam.extraction.network.state import is_weight, random_state
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.training.batch import PhotoObjects, collate_training_photos, prepare_training_photo
from roibeam.extraction.training.batch_losses import (
    LOSSES,
    DetectorTraining,
    build_trainable_detector,
    initialise,
    trained_attribute_logits,
)
from roibeam.extraction.training.rules import SamplingRules
from roibeam.extraction.training.targets import overlaps
from roibeam.extraction.weights.families import CAFFE_LAYOUT, HF_LAYOUT, relayout
from roibeam.extraction.weights.loading import build_detector

CONFIG = replace(NARROW, short_edge=60, long_edge=100)
IMAGE = np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8)


def objects_of(boxes, classes=None, attributes=None, ignored=None):
    count = len(boxes)
    return PhotoObjects(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(classes if classes is not None else [0] * count, np.int64),
        np.full((count, 1), -1) if attributes is None else np.array(attributes, np.int64),
        np.array(ignored if ignored is not None else [False] * count, bool),
    )


@pytest.mark.parametrize("name", CONVENTIONS)
def test_boxes_go_with_the_pixels(name):
    conventions = CONVENTIONS[name]
    objects = objects_of([[0, 0, 80, 40], [100, 20, 160, 120]], [3, 4], [[1, -1], [0, 12]], [False, True])
    photo = prepare_training_photo(IMAGE, objects, CONFIG, conventions)
    want = preprocess(IMAGE, CONFIG, conventions)
    assert torch.equal(photo.pixels, want.pixels[0]) and photo.factor == want.factor and photo.input_hw == (60, 80)
    last = 1 if conventions.box_clip == "last-pixel" else 0
    assert photo.objects.boxes.tolist() == [[0, 0, 40, 20], [50, 10, 80 - last, 60 - last]]
    assert photo.objects.class_ids.tolist() == [3, 4] and photo.objects.ignored.tolist() == [False, True]
    none = -1 if conventions.no_attribute == "none" else 12  # unknown to a network that has no row for it
    assert photo.objects.attribute_ids.tolist() == [[1, -1], [0, none]]
    mirrored = prepare_training_photo(IMAGE, objects, CONFIG, conventions, flip=True)
    assert torch.equal(mirrored.pixels, photo.pixels.flip(-1))
    assert mirrored.objects.boxes[0].tolist() == [40 - last, 0, 80 - last, 20]


@pytest.mark.parametrize("name, kept", [("hf", [1]), ("caffe", [0, 1, 2, 3])])
def test_objects_of_which_nothing_is_left_are_left_out(name, kept):
    # A line; a box; one beside the photo, which clips to its edge: empty, or the last column of pixels; a point.
    boxes = [[10, 10, 10, 50], [20, 20, 50, 50], [170, 0, 180, 40], [30, 30, 30, 30]]
    photo = prepare_training_photo(IMAGE, objects_of(boxes, [0, 1, 2, 3]), CONFIG, CONVENTIONS[name])
    assert photo.objects.class_ids.tolist() == kept


def test_batches_are_padded_and_move_together():
    tall = prepare_training_photo(np.zeros((90, 60, 3), np.uint8), objects_of([]), CONFIG, CONVENTIONS["hf"])
    wide = prepare_training_photo(IMAGE, objects_of([[0, 0, 9, 9]]), CONFIG, CONVENTIONS["hf"])
    batch = collate_training_photos([tall, wide], [5, 6])
    assert batch.pixels.shape == (2, 3, 96, 96), "whole steps of 32"
    assert batch.input_hw == ((90, 60), (60, 80)) and len(batch) == 2
    assert torch.equal(batch.pixels[1, :, :60, :80], wide.pixels)
    assert not batch.pixels[0, :, :, 60:].any() and not batch.pixels[1, :, 60:].any()
    assert [len(each.boxes) for each in batch.objects] == [0, 1] and batch.seeds == (5, 6)
    assert batch.factors == (1.0, 0.5)
    moved = batch.to("meta")
    assert moved.pixels.is_meta and moved.objects[1].ignored.is_meta and moved.input_hw == batch.input_hw
    with pytest.raises(ValueError, match="got 2 and 1"):
        collate_training_photos([tall, wide], [5])


BOX = [[0, 0, 9, 9]]


@pytest.mark.parametrize(
    "objects, words",
    [
        (objects_of([[9, 0, 0, 9]]), "given box 0 is"),
        (objects_of(BOX, [20]), r"labelled box 0 has class 20, the detector has classes 0..19"),
        (objects_of(BOX, [-1]), "has class -1"),
        (objects_of(BOX, [0], [[13, -1]]), r"has attributes \[13, -1\]; the detector has 0..11, 12 is no attribute"),
        (objects_of(BOX, [0], [[-2]]), r"has attributes \[-2\]"),
        (replace(objects_of(BOX), class_ids=np.zeros(2, np.int64)), r"class_ids \(1,\) integers.* got \(2,\) int64"),
        (replace(objects_of(BOX), class_ids=np.zeros(1)), "float64"),
        (replace(objects_of(BOX), attribute_ids=np.zeros(1, np.int64)), r"attribute_ids \(1, S\)"),
        (replace(objects_of(BOX), ignored=np.zeros(1, np.int64)), r"ignored \(1,\) bool"),
    ],
)
def test_labels_that_do_not_fit_are_refused(objects, words):
    with pytest.raises(ValueError, match=words):
        prepare_training_photo(IMAGE, objects, CONFIG, CONVENTIONS["hf"])


def test_classes_of_ignored_boxes_are_not_read():
    objects = objects_of(BOX, [-7], ignored=[True])
    assert len(prepare_training_photo(IMAGE, objects, CONFIG, CONVENTIONS["hf"]).objects.boxes) == 1


pytestmark = pytest.mark.usefixtures("one_thread")

TINY = DetectorConfig(
    depth=50, base_channels=4, num_classes=3, num_attributes=2, anchor_sizes=(16, 32), rpn_hidden_channels=16,
    proposals_before_nms=100, proposals_after_nms=30, short_edge=64, long_edge=96,
)  # fmt: skip
FEW = SamplingRules(
    anchors_per_image=32, regions_per_image=12, region_positive_fraction=0.5, proposals_before_nms=200,
    proposals_after_nms=60,
)  # fmt: skip
# What is drawn in each photo: x1, y1, x2, y2, class, attribute. Attribute 0 is a rectangle, 1 an ellipse.
SCENES = [[(6, 8, 30, 30, 0, 0), (44, 20, 76, 56, 1, 1)], [(10, 24, 42, 56, 2, 1)]]
COLOURS = [(230, 40, 40), (40, 220, 60), (40, 60, 230)]


def scene(index, width=None):
    """(64, width, 3) uint8 and its objects."""
    image = np.random.default_rng(index).integers(60, 90, (64, width or (88, 64)[index], 3), np.uint8)
    for x1, y1, x2, y2, class_id, attribute in SCENES[index]:
        if attribute:
            center, half_axes = ((x1 + x2) // 2, (y1 + y2) // 2), ((x2 - x1) // 2, (y2 - y1) // 2)
            cv2.ellipse(image, center, half_axes, 0, 0, 360, COLOURS[class_id], -1)
        else:
            image[y1:y2, x1:x2] = COLOURS[class_id]
    return image, labels_of(SCENES[index])


def labels_of(rows, ignored=()):
    table = np.array(rows, np.float32).reshape(-1, 6)
    return objects_of(table[:, :4], table[:, 4], table[:, 5:], [row in ignored for row in range(len(rows))])


def batch_of(conventions, photos=None, seeds=None):
    photos = [scene(0), scene(1)] if photos is None else photos
    prepared = [prepare_training_photo(image, objects, TINY, conventions) for image, objects in photos]
    return collate_training_photos(prepared, range(len(photos)) if seeds is None else seeds)


def random_training(conventions, **options):
    """The recipe's weights, which leave no part silent: made for pixels up to 255, in the scale of the convention."""
    detector = build_detector(TINY, weights="random:1", conventions=conventions)
    with torch.no_grad():
        detector.backbone.stem.conv1.weight.mul_(torch.tensor(conventions.pixel_std).view(3, 1, 1))
    return DetectorTraining(detector, sampling=FEW, **options)


def total(output):
    return sum((values.mean() for values in output.losses.values()), start=torch.zeros(()))


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_convention_trains_every_weight(name):
    training = random_training(CONVENTIONS[name])
    output = training(batch_of(CONVENTIONS[name]))
    assert list(output.losses) == list(LOSSES)
    for values in output.losses.values():
        assert values.shape == (2,) and bool((values > 0).all()) and bool(torch.isfinite(values).all())
    for hits, count in output.metrics.values():
        assert 0 <= int(hits) <= int(count) and int(count) > 0
    total(output).backward()
    for parameter in training.parameters():
        assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all())
        assert bool(parameter.grad.any())


def test_the_layout_of_the_weights_changes_no_loss():
    """Pairs or logits, background first or last, scaled or plain deltas: the same network is trained the same."""
    caffe = CONVENTIONS["caffe"]
    layout = {name: getattr(HF_LAYOUT, name) for name in vars(HF_LAYOUT)}
    hf_rows = replace(caffe, **layout)
    source = build_detector(TINY, weights="random:1", conventions=caffe)
    target = Detector(TINY, hf_rows)
    target.load_state_dict(relayout(source.state_dict(), CAFFE_LAYOUT, HF_LAYOUT, num_sizes=2, num_ratios=3))
    # Anchors in another order are other ones by number, so all are taken.
    rules = replace(FEW, anchors_per_image=10_000, anchor_positive_fraction=1)
    first, second = (DetectorTraining(each, sampling=rules) for each in (source, target))
    want, got = first(batch_of(caffe)), second(batch_of(hf_rows))
    for name in LOSSES:
        torch.testing.assert_close(got.losses[name], want.losses[name], rtol=1e-4, atol=1e-6)
    total(want).backward()
    total(got).backward()
    for one, other in zip(first.backbone.parameters(), second.backbone.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-3 * float(one.grad.abs().max()))


def test_it_trains_the_detectors_own_parameters_under_their_own_names():
    detector = build_detector(TINY, weights="random:1")
    training = DetectorTraining(detector)
    assert {name: tensor.data_ptr() for name, tensor in training.state_dict().items()} == {
        name: tensor.data_ptr() for name, tensor in detector.state_dict().items()
    }
    assert not any(".norm." in name for name, _ in training.named_parameters())


@pytest.mark.parametrize("name", ["hf", "caffe"])
def test_gradients_are_those_of_the_losses(name):
    """Along a random direction of one part, where proposals and samples stand still, against differences."""
    conventions = CONVENTIONS[name]
    batch, training = batch_of(conventions), random_training(conventions)
    parts = {
        "proposal_generator.rpn_head": ("objectness", "proposal_boxes"),
        "backbone.res4.5.conv3": ("objectness", "proposal_boxes"),
        "roi_heads.res5.2.conv3": ("classes", "region_boxes", "attributes"),
        "roi_heads.box_predictor": ("classes", "region_boxes", "attributes"),
    }

    def loss(names):
        losses = training(batch).losses
        return sum((losses[name].double().mean() for name in names), start=torch.zeros((), dtype=torch.float64))

    for part, names in parts.items():
        weights = list(training.get_submodule(part).parameters())
        gradients = torch.autograd.grad(loss(names), weights)
        # Along the gradient, where the slope is steepest and float32 loses least.
        norm = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt()
        step, values = 1e-2 / float(norm), []
        for sign in (1, -1):
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.add_(sign * step * gradient / norm)
                values.append(float(loss(names)))
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.sub_(sign * step * gradient / norm)
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(norm), rel=0.03), part


def test_a_photo_is_trained_the_same_whatever_else_is_in_the_batch():
    """For photos of one size: padding changes the map near its edge."""
    conventions = CONVENTIONS["hf"]
    training = random_training(conventions)
    photos = [scene(0, 80), scene(1, 80)]
    both = training(batch_of(conventions, photos, [5, 6]))
    turned = training(batch_of(conventions, photos[::-1], [6, 5]))
    alone = [training(batch_of(conventions, [photo], [seed])) for photo, seed in zip(photos, (5, 6), strict=True)]
    for name in LOSSES:
        want = torch.cat([each.losses[name] for each in alone])
        torch.testing.assert_close(both.losses[name], want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(turned.losses[name].flip(0), want, rtol=1e-4, atol=1e-5)
    for name, (hits, count) in both.metrics.items():
        assert [int(hits), int(count)] == [sum(int(each.metrics[name][which]) for each in alone) for which in (0, 1)]


def test_anchors_in_the_padding_take_no_part():
    conventions = CONVENTIONS["hf"]
    rules = replace(FEW, anchors_per_image=10_000)
    training = DetectorTraining(build_detector(TINY, weights="random:1"), sampling=rules)
    batch = batch_of(conventions, [scene(0), scene(1)])
    with torch.no_grad():
        logits, deltas = training.proposal_generator.rpn_head(training.backbone(batch.pixels))
    assert logits.shape[2:] == (4, 6)
    samples = [training._sample(logits, deltas, batch, index) for index in range(2)]
    cells = [sorted({int(row) // TINY.num_anchors for row in each.anchor_rows}) for each in samples]
    assert cells == [list(range(24)), [row * 6 + column for row in range(4) for column in range(4)]]
    logits[1, :, :, 4:] = 100.0  # as if the network saw objects there
    deltas[1, :, :, 4:] = 0.0
    again = training._sample(logits, deltas, batch, 1)
    assert torch.equal(again.regions.boxes, samples[1].regions.boxes)
    assert torch.equal(again.anchors.negative, samples[1].anchors.negative)


@pytest.mark.parametrize("name", ["hf", "caffe"])
def test_the_anchors_that_are_trained_are_those_that_propose(name):
    """On a map that is not square, where a mistaken order shows."""
    training = random_training(CONVENTIONS[name])
    generator = training.proposal_generator
    said = generator.rpn_head(training.backbone(batch_of(CONVENTIONS[name]).pixels[:1]))
    boxes, objectness = generator.score_anchors(*said)
    (logits,), (deltas,) = training._by_anchor(*said)
    anchors = grid_anchors(generator.cell_anchors, said[0].shape[2:], FEATURE_STRIDE)
    cap, plus_one = CONVENTIONS[name].delta_cap, name == "caffe"
    moved = decode_deltas(anchors, deltas, weights=(1, 1, 1, 1), delta_cap=cap, plus_one_sides=plus_one)
    torch.testing.assert_close(moved, boxes)
    torch.testing.assert_close(logits.sigmoid() if name == "caffe" else logits, objectness)


def test_samples_follow_the_seeds_alone():
    training = random_training(CONVENTIONS["hf"])
    torch.manual_seed(0)
    first = training(batch_of(CONVENTIONS["hf"], seeds=[1, 2]))
    torch.manual_seed(1)
    again = training(batch_of(CONVENTIONS["hf"], seeds=[1, 2]))
    other = training(batch_of(CONVENTIONS["hf"], seeds=[3, 4]))
    for name in LOSSES:
        assert torch.equal(first.losses[name], again.losses[name])
    assert not torch.equal(first.losses["classes"], other.losses["classes"])


@pytest.mark.parametrize("norm", [FrozenBatchNorm, nn.BatchNorm2d])
def test_photos_without_anything_to_learn_give_finite_losses_and_gradients(norm):
    conventions = CONVENTIONS["hf"]
    detector = build_trainable_detector(TINY, conventions, norm=norm)
    initialise(detector, torch.Generator().manual_seed(0))
    training = DetectorTraining(detector, sampling=FEW)
    image, _ = scene(0)
    box = np.array([[6, 8, 30, 30]], np.float32)
    unknown = PhotoObjects(box, np.array([1]), np.empty((1, 0), np.int64), np.array([False]))
    everywhere = labels_of([(0, 0, 88, 64, 0, 0)], ignored=[0])
    nothing = labels_of([])
    for photos in ([nothing], [everywhere], [unknown, nothing], [everywhere, nothing]):
        output = training(batch_of(conventions, [(image, labels) for labels in photos]))
        gradients = torch.autograd.grad(total(output), list(training.parameters()))
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        assert not output.losses["attributes"].any()
        for labels, *values in zip(photos, *output.losses.values(), strict=True):
            assert all(bool(torch.isfinite(value)) for value in values)
            if labels is everywhere:
                assert not any(bool(value) for value in values)
    for name, buffer in training.named_buffers():
        assert bool(torch.isfinite(buffer).all()), name


@pytest.mark.parametrize("name", ["hf", "caffe"])
def test_attributes_are_trained_beside_the_true_class(name):
    detector = build_detector(TINY, weights="random:1", conventions=name)
    predictor = detector.roi_heads.box_predictor
    features = torch.rand(40, TINY.feature_dim, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        said = predictor(features)
        best = said.class_logits.argmax(dim=1)
        assert len(best.unique()) > 1
        torch.testing.assert_close(trained_attribute_logits(predictor, features, best), said.attribute_logits)
        other = trained_attribute_logits(predictor, features, (best + 1) % (TINY.num_classes + 1))
        assert not torch.isclose(other, said.attribute_logits).all(dim=1).any()


def test_frozen_stages_have_no_gradients_and_keep_their_statistics():
    conventions = CONVENTIONS["hf"]
    detector = build_trainable_detector(TINY, conventions, norm=nn.BatchNorm2d)
    training = DetectorTraining(detector, sampling=FEW, frozen_stages=(1, 2))
    before = {name: buffer.clone() for name, buffer in training.named_buffers()}
    total(training.train()(batch_of(conventions))).backward()
    frozen = ("backbone.stem", "backbone.res2")
    for name, parameter in training.named_parameters():
        assert (parameter.grad is None) == name.startswith(frozen), name
    for name, buffer in training.named_buffers():
        if name.endswith("running_mean"):
            assert torch.equal(buffer, before[name]) == name.startswith(frozen), name


@pytest.mark.parametrize(
    "options, words",
    [
        ({"frozen_stages": (0, 2)}, r"frozen_stages has \[0\]"),
        ({"head": nn.Identity()}, "ProposalGenerator and Identity"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, words):
    detector = Detector(TINY, roi_heads=options.pop("head", None))
    with pytest.raises(ValueError, match=words):
        DetectorTraining(detector, **options)


def test_group_norm_is_trained_too():
    conventions = CONVENTIONS["caffe"]
    detector = build_trainable_detector(TINY, conventions, norm=group_norm)
    initialise(detector, torch.Generator().manual_seed(0))
    training = DetectorTraining(detector, sampling=FEW)
    total(training(batch_of(conventions))).backward()
    norms = [parameter for name, parameter in training.named_parameters() if ".norm." in name]
    assert norms and all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in norms)


def test_initial_weights_follow_the_generator():
    states = []
    for seed in (0, 0, 1):
        detector = build_trainable_detector(TINY, norm=nn.BatchNorm2d)
        initialise(detector, torch.Generator().manual_seed(seed))
        states.append(detector.state_dict())
    same = [all(torch.equal(one[name], other[name]) for name in one) for one, other in pairwise(states)]
    assert same == [True, False]
    assert float(states[0]["backbone.res4.1.conv2.weight"].std()) == pytest.approx((2 / (16 * 9)) ** 0.5, rel=0.1)
    assert not states[0]["roi_heads.box_predictor.cls_score.bias"].any()


def test_trained_batch_norm_is_a_weight_file_of_the_frozen_detector():
    conventions = CONVENTIONS["hf"]
    trained = build_trainable_detector(TINY, conventions, norm=nn.BatchNorm2d)
    shapes = {name: tuple(tensor.shape) for name, tensor in trained.state_dict().items() if is_weight(name)}
    trained.load_state_dict(random_state(shapes, 1), strict=False)
    weights = {name: tensor for name, tensor in trained.state_dict().items() if is_weight(name)}
    frozen = Detector(TINY, conventions)
    frozen.load_state_dict(weights)
    image, _ = scene(0)
    (want,), (got,) = frozen([image]), trained([image])
    assert len(got.boxes) == len(want.boxes) > 0
    np.testing.assert_array_equal(got.features, want.features)
    assert trained.describe() == frozen.describe()


@pytest.mark.slow
def test_two_photos_are_learned_by_heart():
    """From random weights, with batch norm and the 7x7 head. Other processors round otherwise and so take another path:
    of three seeds the least sure object ends at 0.88 with these steps, at 0.08 with 60 of a higher rate."""
    conventions = replace(CONVENTIONS["hf"], res5_stride=2, res5_dilation=1)
    keep_all = SelectionPolicy(min_score=0.0, min_regions=0, max_regions=30)
    detector = build_trainable_detector(TINY, conventions, keep_all, norm=nn.BatchNorm2d)
    initialise(detector, torch.Generator().manual_seed(0))
    training = DetectorTraining(detector, sampling=FEW)
    rate, steps = 2e-3, 150
    optimizer = torch.optim.AdamW(training.parameters(), lr=rate)
    history = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 6, 2 * (1 - step / steps))
        output = training(batch_of(conventions, seeds=[2 * step, 2 * step + 1]))
        loss = total(output)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append({name: float(values.mean().detach()) for name, values in output.losses.items()})
    for name in LOSSES:
        start, end = (np.mean([each[name] for each in part]) for part in (history[:5], history[-5:]))
        assert end < 0.5 * start, (name, start, end)
    assert np.mean([sum(each.values()) for each in history[-5:]]) < 0.2 * sum(history[0].values())
    training.eval()
    for index, rows in enumerate(SCENES):
        (regions,) = detector([scene(index)[0]])
        found = torch.from_numpy(regions.regressed_boxes)
        for *box, class_id, attribute in rows:
            overlap, _ = overlaps(found, torch.tensor([box], dtype=torch.float32), plus_one_sides=False)
            sure = (regions.class_ids == class_id) & (regions.class_scores > 0.5)
            right = sure & (overlap[:, 0].numpy() > 0.5) & (regions.attribute_ids == attribute)
            assert right.any(), (index, class_id, regions.class_scores[sure], overlap[sure])


def test_autocast_moves_no_box():
    """Half precision in convolutions and heads; boxes, pooling coordinates and losses stay float32."""
    conventions = CONVENTIONS["hf"]
    training, batch = random_training(conventions), batch_of(conventions)
    want = training(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = training(batch)
    total(got).backward()
    for name in LOSSES:
        assert got.losses[name].dtype == torch.float32
        torch.testing.assert_close(got.losses[name], want.losses[name], rtol=0.3, atol=0.02)
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in training.parameters())
