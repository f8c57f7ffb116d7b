"""Average precision as a slow count that follows the definition has it, COCO's numbers as those of pycocotools, and
calibration and recall by hand."""

import contextlib
import io
from dataclasses import astuple

import numpy as np
import pytest
from labelled_examples import Found, coco_annotations, labelled, random_photo, slow_overlap
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from roibeam.pipelines.common.statistics.verdict import verdict_of
from roibeam.pipelines.data.datasets.image_boxes import LabelledImage
from roibeam.pipelines.training.detector import metrics
from roibeam.pipelines.training.detector.metrics import IGNORED, NO_OBJECT

# Average precision


def matched(image: LabelledImage, found: Found) -> np.ndarray:
    return metrics.match_detections(*found, image.boxes, image.class_ids, ignored=image.ignored, crowds=image.crowds)


def measured(photos: list[tuple[LabelledImage, Found]], num_classes: int) -> metrics.AveragePrecisions:
    counter = metrics.PrecisionCounter(num_classes)
    for image, found in photos:
        counter.add(found.scores, found.class_ids, matched(image, found), image.class_ids[~image.ignored])
    return counter.result()


def slow_average_precision(photos: list[tuple[LabelledImage, Found]], class_id: int) -> float | None:
    """One class, one detection after the other, precision looked up at each recall that is reached."""
    candidates = []
    for number, (_, found) in enumerate(photos):
        for row in np.flatnonzero(found.class_ids == class_id):
            candidates.append((-float(found.scores[row]), number, int(row)))
    taken: set[tuple[int, int]] = set()
    verdicts = []
    for _, number, row in sorted(candidates):
        image, found = photos[number]
        box = found.boxes[row]
        best, best_row, in_crowd = 0.5, None, False
        for other in np.flatnonzero(image.class_ids == class_id).tolist():
            overlap, share = slow_overlap(box, image.boxes[other], extra=1)
            if image.crowds[other]:
                in_crowd |= share > 0.5
            elif overlap > best:
                best, best_row = overlap, other
        if best_row is None:
            verdicts += [] if in_crowd else [False]
        elif not image.ignored[best_row]:
            verdicts.append((number, best_row) not in taken)
            taken.add((number, best_row))
    total = sum(int(((image.class_ids == class_id) & ~image.ignored).sum()) for image, _ in photos)
    if not total:
        return None
    precisions = [(sum(verdicts[: n + 1]), sum(verdicts[: n + 1]) / (n + 1)) for n in range(len(verdicts))]
    return sum(max((p for hits, p in precisions if hits >= rank), default=0) for rank in range(1, total + 1)) / total


@pytest.mark.parametrize("seed", range(40))
def test_equals_a_slow_count(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_classes = int(rng.integers(1, 5))
    photos = [random_photo(rng, num_classes, max_found=15) for _ in range(rng.integers(1, 6))]
    result = measured(photos, num_classes)
    expected = [slow_average_precision(photos, class_id) for class_id in range(num_classes)]
    np.testing.assert_allclose(result.values, [np.nan if each is None else each for each in expected], atol=1e-12)
    occurring = [(value, count) for value, count in zip(expected, result.num_objects, strict=True) if value is not None]
    if occurring:
        assert result.mean == pytest.approx(np.mean([value for value, _ in occurring]))
        weighted = sum(value * count for value, count in occurring) / sum(count for _, count in occurring)
        assert result.weighted_mean == pytest.approx(weighted)


@pytest.mark.parametrize(
    "right, num_objects, expected",
    [
        ([], 3, 0.0),  # nothing found
        ([True, True], 2, 1.0),
        ([False, True], 1, 0.5),
        ([True, False, True, False], 4, (1 + 2 / 3) / 4),  # two of four are missed
        ([False, True, True], 2, 2 / 3),  # the precision at the first hit, 1/2, is raised to that of the second
    ],
)
def test_area_under_curve(right: list[bool], num_objects: int, expected: float) -> None:
    assert metrics.area_under_curve(np.array(right, bool), num_objects) == pytest.approx(expected)


def test_an_object_is_found_once_and_by_the_best_score() -> None:
    image = labelled([[0, 0, 99, 99], [200, 0, 299, 99]], [0, 0])
    boxes = np.array([[0, 0, 99, 90], [0, 0, 99, 99], [200, 0, 299, 99], [400, 0, 450, 50]], np.float32)
    found = matched(image, Found(boxes, np.array([0, 0, 1, 0]), np.array([0.9, 0.8, 0.7, 0.6], np.float32)))
    assert found.tolist() == [0, NO_OBJECT, NO_OBJECT, NO_OBJECT]  # another class finds nothing
    later = matched(image, Found(boxes[:2], np.array([0, 0]), np.array([0.8, 0.9], np.float32)))
    assert later.tolist() == [NO_OBJECT, 0]
    equal = matched(image, Found(boxes[:2], np.array([0, 0]), np.array([0.5, 0.5], np.float32)))
    assert equal.tolist() == [0, NO_OBJECT]


def test_overlap_counts_the_last_pixel_and_must_be_above_half() -> None:
    image = labelled([[0, 0, 9, 9]], [0])  # 10 x 10 pixels this way
    boxes = np.array([[0, 0, 9, 4], [0, 0, 9, 5]], np.float32)  # 10 x 5: exactly half; 10 x 6
    assert matched(image, Found(boxes, np.zeros(2, np.int64), np.ones(2, np.float32))).tolist() == [
        NO_OBJECT,
        0,
    ]


def test_ignored_objects_and_crowds_take_any_number_of_detections() -> None:
    objects = [[0, 0, 40, 40], [100, 0, 200, 100], [300, 0, 340, 40]]
    image = labelled(objects, [0, 0, 0], ignored=[1, 0, 0], crowds=[0, 1, 0])
    boxes = [[0, 0, 40, 40], [0, 0, 38, 40], [0, 0, 20, 20], [110, 10, 130, 30], [150, 50, 190, 90], [300, 0, 340, 40]]
    found = Found(np.array(boxes, np.float32), np.zeros(6, np.int64), np.linspace(0.9, 0.4, 6).astype(np.float32))
    # The third lies in an ignored object, which is no crowd, and shows a quarter of it: wrong.
    assert matched(image, found).tolist() == [
        IGNORED,
        IGNORED,
        NO_OBJECT,
        IGNORED,
        IGNORED,
        2,
    ]
    assert measured([(image, found)], 1).values.tolist() == [0.5]


def test_an_object_in_a_crowd_is_found_before_the_crowd() -> None:
    image = labelled([[0, 0, 100, 100], [10, 10, 30, 30]], [0, 0], crowds=[1, 0])
    box = np.array([[10, 10, 30, 30]], np.float32)
    shown = metrics.matched_objects(box, image.boxes, image.ignored, image.crowds, above=0.5, plus_one_sides=False)
    assert shown.tolist() == [1]
    none = labelled()
    shown = metrics.matched_objects(box, none.boxes, none.ignored, none.crowds, above=0.5, plus_one_sides=False)
    assert shown.tolist() == [NO_OBJECT]


def test_classes_without_objects_are_left_out_of_the_mean() -> None:
    image = labelled([[0, 0, 40, 40]], [1])
    found = Found(np.array([[0, 0, 40, 40], [0, 0, 40, 40]], np.float32), np.array([0, 1]), np.array([0.9, 0.8]))
    result = measured([(image, found)], 3)
    assert (result.mean, result.weighted_mean) == (1.0, 1.0)
    assert np.isnan(result.values).tolist() == [True, False, True]
    empty = measured([(labelled(), found)], 3)
    assert (empty.mean, empty.weighted_mean) == (None, None)


def test_equal_scores_stand_in_the_order_of_the_photos() -> None:
    found = Found(np.array([[0, 0, 40, 40.0]]), np.array([0]), np.array([0.5]))
    right, wrong = (labelled([[0, 0, 40, 40]], [0]), found), (labelled(), found)
    assert measured([right, wrong], 1).values.tolist() == [1.0]
    assert measured([wrong, right], 1).values.tolist() == [0.5]


def test_the_interval_of_the_mean_is_that_of_photos_drawn_with_replacement() -> None:
    """By drawing photos and measuring each draw anew."""
    random = np.random.default_rng(0)
    photos = [
        (
            labelled([[0, 0, 40, 40]], [int(random.integers(3))]),
            Found(np.array([[0, 0, 40, 40.0]]), random.integers(3, size=1), random.random(1)),
        )
        for _ in range(12)
    ]
    counter = metrics.PrecisionCounter(3)
    for row, found in photos:
        counter.add(found.scores, found.class_ids, matched(row, found), row.class_ids)
    draws = np.random.default_rng(0).integers(12, size=(400, 12))  # as `Bootstrap` draws
    means = [measured([photos[n] for n in drawn], 3).mean for drawn in draws]
    np.testing.assert_allclose(counter.ends(), np.quantile(np.array(means, float), [0.025, 0.975]), atol=1e-9)
    assert metrics.PrecisionCounter(3).ends() == (None, None)


def test_attributes_are_detections_on_true_boxes() -> None:
    boxes = np.array([[0, 0, 40, 40], [100, 0, 140, 40]], np.float32)
    known = np.array([[0, 2], [1, -1]])
    probabilities = np.array([[0.6, 0.1, 0.3], [0.7, 0.2, 0.1]], np.float32)
    counter = metrics.PrecisionCounter(4)
    metrics.count_attribute_detections(counter, np.pad(probabilities, ((0, 0), (0, 1))), boxes, known)
    result = counter.result()
    assert result.num_objects.tolist() == [1, 1, 1, 0]
    # Attribute 0: the second box says it louder and has it not. Attributes 1 and 2: the right box says it louder.
    np.testing.assert_allclose(result.values, [0.5, 1, 1, np.nan])


def test_only_the_best_attributes_of_a_photo_count() -> None:
    boxes, known = np.array([[0, 0, 40, 40]], np.float32), np.array([[0, 1]])
    counter = metrics.PrecisionCounter(2)
    metrics.count_attribute_detections(counter, np.array([[0.6, 0.4]], np.float32), boxes, known, max_per_image=1)
    assert counter.result().values.tolist() == [1.0, 0.0]


def test_attribute_accuracy_asks_only_objects_with_known_attributes() -> None:
    counter = metrics.AttributeCounter()
    assert counter.accuracy is None
    counter.add(np.array([2, 0, 1]), np.array([[1, 2], [1, -1], [-1, -1]]))
    assert (counter.num_objects, counter.accuracy) == (2, 0.5)
    counter.add(np.empty(0, np.int64), np.empty((0, 0), np.int64))
    assert counter.num_objects == 2 and counter.figure().chance == 1.0  # both objects have attribute 1
    assert counter.figure().value == 0.5 and metrics.AttributeCounter().figure().chance is None
    for _ in range(20):
        counter.add(np.array([2, 2, 1]), np.array([[2, -1], [1, -1], [1, 2]]))
    figure = counter.figure()
    assert figure.chance == pytest.approx(42 / 62) and figure.items == 62
    assert verdict_of(figure) == "below chance"  # 41 of 62, and nearly all photos are alike


# COCO's numbers


def ours(photos: list[tuple[LabelledImage, Found]]) -> metrics.CocoPrecision:
    counter = metrics.CocoCounter()
    for image, found in photos:
        counter.add(image, *found)
    return counter.result()


def pycocotools_numbers(photos: list[tuple[LabelledImage, Found]], num_classes: int) -> list[float | None]:
    """The twelve numbers; None for its -1."""
    results = []
    for number, (_, found) in enumerate(photos):
        for (x1, y1, x2, y2), class_id, score in zip(*(each.tolist() for each in found), strict=True):
            entry = {"image_id": number, "category_id": class_id + 1, "bbox": [x1, y1, x2 - x1, y2 - y1]}
            results.append({**entry, "score": score})
    truth = COCO()
    truth.dataset = {
        "images": [{"id": number} for number in range(len(photos))],
        "categories": [{"id": number + 1} for number in range(num_classes)],
        "annotations": coco_annotations(image for image, _ in photos), "info": {},
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [None if value == -1 else value for value in evaluation.stats.tolist()]


def assert_equal(got: metrics.CocoPrecision, expected: list[float | None]) -> None:
    for value, reference in zip(astuple(got), expected, strict=True):
        assert (value is None) == (reference is None)
        if value is not None:
            assert value == pytest.approx(reference, rel=0, abs=1e-12)  # a mean of means: the last digits


@pytest.mark.parametrize("seed", range(12))
def test_equals_pycocotools_on_random_detections(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_classes = int(rng.integers(1, 6))
    photos = [random_photo(rng, num_classes, side=int(rng.choice([40, 200]))) for _ in range(12)]
    last = Found(np.array([[1, 1, 30, 30.0]]), np.array([0]), np.array([0.5]))
    photos.append((labelled([[1, 1, 30, 30]], [0]), last))
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
    assert astuple(ours([(labelled([[0, 0, 50, 50]], [0], crowds=[True]), nothing)])) == (None,) * 12
    missed = ours([(labelled([[0, 0, 50, 50]], [0]), nothing)])
    assert (missed.ap, missed.ap50, missed.ar100, missed.ap_medium) == (0, 0, 0, 0)
    assert (missed.ap_small, missed.ap_large, missed.ar_small) == (None, None, None)


def test_a_crowd_and_an_ignored_object_take_any_number_of_detections() -> None:
    objects = [[0, 0, 20, 20], [50, 50, 90, 90], [100, 0, 140, 40]]
    image = labelled(objects, [0, 0, 0], crowds=[0, 1, 0], ignored=[0, 0, 1])
    boxes = [[50, 50, 70, 70], [70, 70, 90, 90], [100, 0, 139, 40], [101, 0, 140, 40], [0, 0, 20, 20]]
    found = Found(np.array(boxes, np.float32), np.zeros(5, np.int64), np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32))
    assert ours([(image, found)]).ap == pytest.approx(1)


# Calibration and recall of regions


def probabilities(*rows: tuple[int, float], num_classes: int = 3) -> np.ndarray:
    """For each (class, p) a distribution with p there and the rest spread evenly; the last class is background."""
    table = np.empty((len(rows), num_classes + 1), np.float32)
    for row, (class_id, probability) in zip(table, rows, strict=True):
        row[:] = (1 - probability) / num_classes
        row[class_id] = probability
    return table


def calibrated(image: LabelledImage, boxes: list[list[int]], *rows: tuple[int, float]) -> metrics.Calibration:
    counter = metrics.CalibrationCounter()
    counter.add(image, np.array(boxes, np.float32), probabilities(*rows))
    return counter.result()


def test_calibration_by_hand() -> None:
    image = labelled([[0, 0, 40, 40], [100, 0, 140, 40]], [0, 2])
    boxes = [[0, 0, 40, 38], [100, 0, 140, 40], [300, 0, 340, 40], [301, 0, 340, 40]]
    # Right at 0.9, wrong at 0.9 (says 1, is 2), background said at 0.5, an object said at 0.7 where there is none.
    result = calibrated(image, boxes, (0, 0.9), (1, 0.9), (3, 0.5), (0, 0.7))
    assert (result.num_regions, result.num_background, result.accuracy) == (4, 2, 0.5)
    by_hand = (abs(1.8 - 1) + abs(0.5 - 1) + abs(0.7 - 0)) / 4
    assert result.expected_error == pytest.approx(by_hand, abs=1e-6)
    assert result.negative_log_likelihood == pytest.approx(-np.log([0.9, 0.1 / 3, 0.5, 0.1]).mean(), rel=1e-5)
    filled = [each for each in result.bins if each.num_regions]
    assert [each.num_regions for each in filled] == [1, 1, 2]
    assert [each.accuracy for each in filled] == [1, 0, 0.5]
    assert [each.confidence for each in filled] == pytest.approx([0.5, 0.7, 0.9])
    assert all(each.lower < each.confidence <= each.upper for each in filled if each.confidence)
    assert (len(result.bins), result.bins[0].lower, result.bins[-1].upper) == (metrics.NUM_BINS, 0, 1)
    assert all(each.accuracy is each.confidence is None for each in result.bins if not each.num_regions)


def test_calibration_of_certainty_is_exact() -> None:
    image, boxes = labelled([[0, 0, 40, 40]], [1]), [[0, 0, 40, 40], [200, 0, 240, 40]]
    right = calibrated(image, boxes, (1, 1.0), (3, 1.0))
    assert (right.expected_error, right.negative_log_likelihood, right.accuracy) == (0, 0, 1)
    wrong = calibrated(image, boxes, (3, 1.0), (1, 1.0))
    assert (wrong.expected_error, wrong.accuracy) == (1, 0)
    assert wrong.negative_log_likelihood == pytest.approx(87.3, abs=0.1)  # -ln of the smallest float32, not infinity


def test_regions_of_ignored_objects_and_in_crowds_are_left_out_of_calibration() -> None:
    image = labelled([[0, 0, 40, 40], [100, 0, 200, 100]], [0, 0], ignored=[1, 0], crowds=[0, 1])
    result = calibrated(image, [[0, 0, 40, 40], [110, 10, 130, 30], [0, 0, 20, 20]], (1, 0.9), (1, 0.9), (3, 0.8))
    assert (result.num_regions, result.num_background) == (1, 1)  # a quarter of an ignored object is background


def test_an_overlap_of_exactly_half_shows_the_object() -> None:
    image = labelled([[0, 0, 40, 40]], [0])
    half = np.array([[0, 0, 40, 20]], np.float32)
    calibration, recall = metrics.CalibrationCounter(), metrics.RecallCounter()
    calibration.add(image, half, probabilities((0, 0.9)))
    recall.add(image, half)
    assert calibration.result().accuracy == recall.result().recall == 1
    less = half - np.array([0, 0, 0, 0.1], np.float32)
    calibration.add(image, less, probabilities((0, 0.9)))
    recall.add(image, less)
    assert calibration.result().accuracy == recall.result().recall == 0.5


def test_nothing_measured_is_none() -> None:
    result = metrics.CalibrationCounter().result()
    assert (result.accuracy, result.expected_error, result.negative_log_likelihood) == (None, None, None)
    counter = metrics.RecallCounter()
    assert (counter.result().recall, counter.result().mean_regions) == (None, None)
    counter.add(labelled(), np.empty((0, 4), np.float32))
    counter.add(labelled([[0, 0, 9, 9]], [0], ignored=[1]), np.zeros((3, 4), np.float32))
    assert (counter.result().recall, counter.result().mean_regions) == (None, 1.5)
    counter.add(labelled([[0, 0, 9, 9]], [0]), np.empty((0, 4), np.float32))
    assert (counter.result().recall, counter.result().num_objects) == (0, 1)


def test_one_region_may_show_several_objects() -> None:
    counter = metrics.RecallCounter()
    counter.add(labelled([[0, 0, 10, 10], [0, 0, 10, 9], [50, 0, 60, 10]], [0, 1, 0]), np.array([[0, 0, 10, 10.0]]))
    assert counter.result().recall == pytest.approx(2 / 3)
