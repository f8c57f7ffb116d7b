"""COCO's numbers: ours against pycocotools on random objects and detections."""

from __future__ import annotations

import contextlib
import io
from dataclasses import astuple

import numpy as np
import pytest
from labelled_examples import Found, labelled, random_photo
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from roibeam.pipelines.data.datasets.image_boxes import LabelledImage
from roibeam.pipelines.training.detector import metrics
from roibeam.pipelines.training.detector.metrics import CocoCounter, CocoPrecision


def ours(photos: list[tuple[LabelledImage, Found]]) -> CocoPrecision:
    counter = CocoCounter()
    for image, found in photos:
        counter.add(image, *found)
    return counter.result()


def pycocotools_numbers(photos: list[tuple[LabelledImage, Found]], num_classes: int) -> list[float | None]:
    """The twelve numbers; None for its -1."""
    objects, results = [], []
    for number, (image, found) in enumerate(photos):
        for box, class_id, area, ignored in zip(image.boxes, image.class_ids, image.areas, image.ignored, strict=True):
            x1, y1, x2, y2 = map(float, box)
            objects.append(
                {
                    "id": len(objects) + 1,
                    "image_id": number,
                    "category_id": int(class_id) + 1,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": float(area),
                    "iscrowd": int(ignored),
                }
            )
        for box, class_id, score in zip(*found, strict=True):
            x1, y1, x2, y2 = map(float, box)
            entry = {"image_id": number, "category_id": int(class_id) + 1, "bbox": [x1, y1, x2 - x1, y2 - y1]}
            results.append({**entry, "score": float(score)})
    truth = COCO()
    truth.dataset = {
        "images": [{"id": number} for number in range(len(photos))],
        "categories": [{"id": number + 1} for number in range(num_classes)],
        "annotations": objects,
        "info": {},
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [None if value == -1 else value for value in evaluation.stats.tolist()]


def assert_equal(got: CocoPrecision, expected: list[float | None]) -> None:
    for value, reference in zip(astuple(got), expected, strict=True):
        assert (value is None) == (reference is None)
        if value is not None:
            assert value == pytest.approx(reference, rel=0, abs=1e-12)  # a mean of means: the last digits


@pytest.mark.parametrize("seed", range(12))
def test_equals_pycocotools_on_random_detections(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_classes = int(rng.integers(1, 6))
    photos = [random_photo(rng, num_classes, side=int(rng.choice([40, 200]))) for _ in range(12)]
    photos.append(
        (labelled([[1, 1, 30, 30]], [0]), Found(np.array([[1, 1, 30, 30.0]]), np.array([0]), np.array([0.5])))
    )
    assert_equal(ours(photos), pycocotools_numbers(photos, num_classes))


def test_classes_are_taken_in_portions_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    photos = [random_photo(rng, 7) for _ in range(10)]
    whole = ours(photos)
    monkeypatch.setattr(metrics, "_CLASSES_AT_ONCE", 2)
    assert astuple(ours(photos)) == pytest.approx(astuple(whole), rel=0, abs=1e-12)


def test_the_best_hundred_of_a_photo_count() -> None:
    rng = np.random.default_rng(2)
    image = labelled([[0, 0, 50, 50], [20, 20, 90, 60], [100, 100, 180, 190]], [0, 1, 0])
    boxes = np.tile(image.boxes, (50, 1)) + rng.integers(-5, 6, (150, 4))
    found = Found(boxes, rng.integers(0, 2, 150), rng.random(150).astype(np.float32))
    best = np.argsort(-found.scores)[:100]
    expected = pycocotools_numbers([(image, Found(*(each[best] for each in found)))], 2)
    assert_equal(ours([(image, found)]), expected)


def test_nothing_to_find_or_nothing_found() -> None:
    nothing = Found(np.empty((0, 4), np.float32), np.empty(0, np.int64), np.empty(0, np.float32))
    assert astuple(ours([(labelled(), nothing)])) == (None,) * 12
    only_crowds = labelled([[0, 0, 50, 50]], [0], crowds=[True])
    assert astuple(ours([(only_crowds, nothing)])) == (None,) * 12
    missed = ours([(labelled([[0, 0, 50, 50]], [0]), nothing)])
    assert (missed.ap, missed.ap50, missed.ar100, missed.ap_medium) == (0, 0, 0, 0)
    assert (missed.ap_small, missed.ap_large, missed.ar_small) == (None, None, None)


def test_a_crowd_and_an_ignored_object_take_any_number_of_detections() -> None:
    image = labelled(
        [[0, 0, 20, 20], [50, 50, 90, 90], [100, 0, 140, 40]], [0, 0, 0], crowds=[0, 1, 0], ignored=[0, 0, 1]
    )
    boxes = np.array(
        [[50, 50, 70, 70], [70, 70, 90, 90], [100, 0, 139, 40], [101, 0, 140, 40], [0, 0, 20, 20]], np.float32
    )
    found = Found(boxes, np.zeros(5, np.int64), np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32))
    assert ours([(image, found)]).ap == pytest.approx(1)
