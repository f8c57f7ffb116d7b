"""Photos with objects -> a batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_networks import NARROW

from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.training.batch import PhotoObjects, collate_training_photos, prepare_training_photo

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
    assert photo.objects.attribute_ids.tolist() == [[1, -1], [0, 12]]
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
