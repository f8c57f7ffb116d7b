"""Calibration and recall of regions, on regions made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from labelled_examples import labelled

from roibeam.pipelines.training.detector.metrics import NUM_BINS, CalibrationCounter, RecallCounter


def probabilities(*rows: tuple[int, float], num_classes: int = 3) -> np.ndarray:
    """For each (class, p) a distribution with p there and the rest spread evenly; the last class is background."""
    table = np.empty((len(rows), num_classes + 1), np.float32)
    for row, (class_id, probability) in zip(table, rows, strict=True):
        row[:] = (1 - probability) / num_classes
        row[class_id] = probability
    return table


def test_calibration_by_hand() -> None:
    image = labelled([[0, 0, 40, 40], [100, 0, 140, 40]], [0, 2])
    boxes = np.array([[0, 0, 40, 38], [100, 0, 140, 40], [300, 0, 340, 40], [301, 0, 340, 40]], np.float32)
    counter = CalibrationCounter()
    # Right at 0.9, wrong at 0.9 (says 1, is 2), background said at 0.5, an object said at 0.7 where there is none.
    counter.add(image, boxes, probabilities((0, 0.9), (1, 0.9), (3, 0.5), (0, 0.7)))
    result = counter.result()
    assert (result.num_regions, result.num_background, result.accuracy) == (4, 2, 0.5)
    by_hand = (abs(1.8 - 1) + abs(0.5 - 1) + abs(0.7 - 0)) / 4
    assert result.expected_error == pytest.approx(by_hand, abs=1e-6)
    likelihoods = [0.9, 0.1 / 3, 0.5, 0.1]
    assert result.negative_log_likelihood == pytest.approx(-np.log(likelihoods).mean(), rel=1e-5)
    filled = [each for each in result.bins if each.num_regions]
    assert [each.num_regions for each in filled] == [1, 1, 2]
    assert [each.accuracy for each in filled] == [1, 0, 0.5]
    assert [each.confidence for each in filled] == pytest.approx([0.5, 0.7, 0.9])
    assert all(each.lower < each.confidence <= each.upper for each in filled if each.confidence)
    assert (len(result.bins), result.bins[0].lower, result.bins[-1].upper) == (NUM_BINS, 0, 1)
    assert all(each.accuracy is each.confidence is None for each in result.bins if not each.num_regions)


def test_calibration_of_certainty_is_exact() -> None:
    image = labelled([[0, 0, 40, 40]], [1])
    boxes = np.array([[0, 0, 40, 40], [200, 0, 240, 40]], np.float32)
    counter = CalibrationCounter()
    counter.add(image, boxes, probabilities((1, 1.0), (3, 1.0)))
    right = counter.result()
    assert (right.expected_error, right.negative_log_likelihood, right.accuracy) == (0, 0, 1)
    counter = CalibrationCounter()
    counter.add(image, boxes, probabilities((3, 1.0), (1, 1.0)))
    wrong = counter.result()
    assert (wrong.expected_error, wrong.accuracy) == (1, 0)
    assert wrong.negative_log_likelihood == pytest.approx(87.3, abs=0.1)  # -ln of the smallest float32, not infinity


def test_regions_of_ignored_objects_and_in_crowds_are_left_out_of_calibration() -> None:
    image = labelled([[0, 0, 40, 40], [100, 0, 200, 100]], [0, 0], ignored=[1, 0], crowds=[0, 1])
    boxes = np.array([[0, 0, 40, 40], [110, 10, 130, 30], [0, 0, 20, 20]], np.float32)
    counter = CalibrationCounter()
    counter.add(image, boxes, probabilities((1, 0.9), (1, 0.9), (3, 0.8)))
    result = counter.result()
    assert (result.num_regions, result.num_background) == (1, 1)  # a quarter of an ignored object is background


def test_an_overlap_of_exactly_half_shows_the_object() -> None:
    image = labelled([[0, 0, 40, 40]], [0])
    half = np.array([[0, 0, 40, 20]], np.float32)
    calibration, recall = CalibrationCounter(), RecallCounter()
    calibration.add(image, half, probabilities((0, 0.9)))
    recall.add(image, half)
    assert calibration.result().accuracy == recall.result().recall == 1
    less = half - np.array([0, 0, 0, 0.1], np.float32)
    calibration.add(image, less, probabilities((0, 0.9)))
    recall.add(image, less)
    assert calibration.result().accuracy == recall.result().recall == 0.5


def test_nothing_measured_is_none() -> None:
    result = CalibrationCounter().result()
    assert (result.accuracy, result.expected_error, result.negative_log_likelihood) == (None, None, None)
    counter = RecallCounter()
    assert (counter.result().recall, counter.result().mean_regions) == (None, None)
    counter.add(labelled(), np.empty((0, 4), np.float32))
    counter.add(labelled([[0, 0, 9, 9]], [0], ignored=[1]), np.zeros((3, 4), np.float32))
    assert (counter.result().recall, counter.result().mean_regions) == (None, 1.5)
    counter.add(labelled([[0, 0, 9, 9]], [0]), np.empty((0, 4), np.float32))
    assert (counter.result().recall, counter.result().num_objects) == (0, 1)


def test_one_region_may_show_several_objects() -> None:
    counter = RecallCounter()
    counter.add(labelled([[0, 0, 10, 10], [0, 0, 10, 9], [50, 0, 60, 10]], [0, 1, 0]), np.array([[0, 0, 10, 10.0]]))
    assert counter.result().recall == pytest.approx(2 / 3)
