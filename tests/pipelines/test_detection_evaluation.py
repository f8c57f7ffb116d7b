"""A detector judged on photos: detections by class, the whole way through, a perfect and a blind detector, refusals."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from labelled_examples import labelled, random_boxes, slow_overlap
from torch import Tensor, nn

from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS, Conventions
from roibeam.extraction.network.roi_heads import RegionOutputs
from roibeam.extraction.network.rpn import Proposals
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.data.datasets.image_boxes import LabelledImage
from roibeam.pipelines.training.detector.evaluation import class_detections, evaluate_detector
from roibeam.pipelines.training.detector.report import DetectionReport, report_lines

NUM_CLASSES, NUM_ATTRIBUTES = 20, 12
CLASSES = tuple(f"class {number}" for number in range(NUM_CLASSES))
ATTRIBUTES = tuple(f"attribute {number}" for number in range(NUM_ATTRIBUTES))
HEIGHT, WIDTH = 96, 128


def tiny(conventions: str) -> Detector:
    torch.set_num_threads(1)
    config = replace(CONFIGS["small"], base_channels=4, short_edge=72, long_edge=120, proposals_after_nms=24)
    return build_detector(config, weights="random:1", conventions=conventions)


def write_photo(folder: Path, name: str, seed: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    photo = np.asarray(cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC))
    photo[0, 0] = seed  # what the perfect detector knows its photos by
    assert cv2.imwrite(str(folder / name), photo)
    return photo


@pytest.fixture
def photos(tmp_path: Path) -> list[LabelledImage]:
    """Four photos in `tmp_path`: objects apart from each other, ignored ones, a crowd, no object."""
    apart, three = [[4, 4, 40, 40], [60, 10, 120, 50]], [[10, 50, 60, 90], [70, 5, 100, 30], [2, 2, 40, 40]]
    rows = [
        labelled(apart, [0, 1], ((0,), (3,)), file_name="0.png", image_hw=(HEIGHT, WIDTH)),
        labelled(three, [2, 1, 0], ((1,), (), (2,)), ignored=[0, 0, 1], file_name="1.png"),
        labelled(file_name="2.png", image_hw=(HEIGHT, WIDTH)),
        labelled([[0, 0, 128, 96], [20, 20, 70, 80]], [0, 3], ((), (5,)), crowds=[1, 0], file_name="3.png"),
    ]
    for seed, row in enumerate(rows):
        write_photo(tmp_path, row.file_name, seed)
    return rows


class Part(nn.Module):
    """A part of a detector that answers as a function does."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.forward = function


def knowing_detector(photos: list[LabelledImage], *, blind: bool = False) -> Detector:
    """Its map is the photo. It proposes the boxes of all objects that are not ignored, or none; it is certain of the
    class and first attribute of an object's box, and of other boxes that they are background."""

    def seen(feature_map: Tensor) -> LabelledImage:
        return photos[round(float(feature_map[0, 0, 0, 0]) + CONVENTIONS["hf"].pixel_mean[0])]

    def proposals(feature_map: Tensor, input_hw: tuple[int, int], factor: float) -> Proposals:
        image = seen(feature_map)
        boxes = torch.from_numpy(image.boxes[~image.ignored])[: 0 if blind else None]
        return Proposals(boxes, torch.ones(len(boxes)))

    def heads(feature_map: Tensor, boxes: Tensor) -> RegionOutputs:
        image = seen(feature_map)
        classes, attributes = (torch.zeros(len(boxes), count + 1) for count in (NUM_CLASSES, NUM_ATTRIBUTES))
        for row, box in enumerate(boxes.numpy()):
            objects = np.flatnonzero((image.boxes == box).all(axis=1))
            classes[row, image.class_ids[objects[0]] if len(objects) else -1] = 1e4
            known = image.attribute_ids[objects[0]] if len(objects) else np.empty(0, np.int64)
            attributes[row, known[0] if known.size else -1] = 1e4
        deltas = torch.zeros(len(boxes), NUM_CLASSES, 4)
        return RegionOutputs(torch.zeros(len(boxes), 2), classes, attributes, deltas)

    sizes = {"num_classes": NUM_CLASSES, "num_attributes": NUM_ATTRIBUTES, "short_edge": HEIGHT}
    return built(DetectorConfig(**sizes, long_edge=2 * HEIGHT), CONVENTIONS["hf"], proposals, heads)


def built(
    config: DetectorConfig, conventions: Conventions | None, proposals: Callable[..., Proposals],
    heads: Callable[..., RegionOutputs],
) -> Detector:  # fmt: skip
    parts = {"proposal_generator": Part(proposals), "roi_heads": Part(heads)}
    return Detector(config, conventions, SELECTIONS["butd-10-100"], backbone=Part(lambda pixels: pixels), **parts)


def judged(detector: Detector, photos: list[LabelledImage], folder: Path, **options: object) -> DetectionReport:
    names = {"class_names": CLASSES, "attribute_names": ATTRIBUTES}
    return evaluate_detector(detector, photos, str(folder), **names | options)  # type: ignore[arg-type]


def test_a_perfect_detector_is_perfect_in_everything(tmp_path: Path, photos: list[LabelledImage]) -> None:
    report = judged(knowing_detector(photos), photos, tmp_path)
    assert (report.num_images, report.num_objects, report.num_ignored, report.num_detections) == (4, 5, 2, 5)
    assert (report.objects.mean, report.objects.weighted_mean) == (1, 1)
    assert report.coco.ap == report.coco.ap50 == report.coco.ap75 == report.coco.ar100 == pytest.approx(1)
    assert (report.attribute_accuracy.matched_boxes, report.attribute_accuracy.num_matched) == (1, 4)
    assert (report.attribute_accuracy.given_boxes, report.attribute_accuracy.num_given) == (1, 4)
    assert (report.attributes.mean, report.region_recall.recall, report.region_recall.mean_regions) == (1, 1, 1.25)
    # The object in the crowd shows itself, so nothing is left out.
    assert (report.calibration.num_regions, report.calibration.accuracy) == (5, 1)
    assert (report.calibration.expected_error, report.calibration.negative_log_likelihood) == (0, 0)
    occurring = {each.name: each.num_objects for each in report.objects.classes if each.average_precision is not None}
    assert occurring == {"class 0": 1, "class 1": 2, "class 2": 1, "class 3": 1}


def test_a_blind_detector_finds_nothing_but_knows_attributes(tmp_path: Path, photos: list[LabelledImage]) -> None:
    report = judged(knowing_detector(photos, blind=True), photos, tmp_path)
    assert (report.num_detections, report.objects.mean, report.coco.ap, report.region_recall.recall) == (0, 0, 0, 0)
    assert (report.attribute_accuracy.matched_boxes, report.attribute_accuracy.num_matched) == (None, 0)
    assert (report.attribute_accuracy.given_boxes, report.attributes.mean) == (1, 1)
    assert (report.calibration.num_regions, report.calibration.expected_error) == (0, None)
    assert all(report_lines(report))


def test_a_random_network_the_whole_way(tmp_path: Path, photos: list[LabelledImage]) -> None:
    detector, done = tiny("hf"), []
    report = judged(detector, photos, tmp_path, score_threshold=0.02, progress=done.append)
    assert done == [1, 2, 3, 4]
    assert report.num_detections > 20
    assert report.objects.mean is not None and 0 <= report.objects.mean < 0.5
    regions = [len(detector([cv2.imread(str(tmp_path / row.file_name))])[0].boxes) for row in photos]
    assert report.region_recall.mean_regions == np.mean(regions)
    assert 0 < report.calibration.num_regions <= sum(regions)
    assert json.loads(json.dumps(report.as_json())) == report.as_json()
    assert report.as_json()["objects"]["classes"][0]["name"] == "class 0"
    assert judged(detector, photos, tmp_path, score_threshold=0.02) == report
    two = judged(detector, photos, tmp_path, max_images=2)
    assert (two.num_images, two.num_objects) == (2, 4)


def test_lines_for_a_terminal(tmp_path: Path, photos: list[LabelledImage]) -> None:
    lines = report_lines(judged(tiny("hf"), photos, tmp_path, score_threshold=0.02))
    assert lines[0].startswith("4 photos, 5 objects (and 2 ignored), ")
    assert any(line.startswith("mAP@0.5 ") for line in lines)
    assert max(map(len, lines)) <= 120
    worst = lines.index("worst classes:")
    assert {line.split("  ")[1] for line in lines[worst + 1 : worst + 5]} == {f"class {number}" for number in range(4)}


def test_photos_without_attributes(tmp_path: Path, photos: list[LabelledImage]) -> None:
    bare = [replace(row, attribute_ids=np.empty((len(row.boxes), 0), np.int64)) for row in photos]
    for names in ((), ATTRIBUTES):
        report = judged(knowing_detector(photos), bare, tmp_path, attribute_names=names)
        assert (report.attributes.mean, report.attribute_accuracy.given_boxes, report.objects.mean) == (None, None, 1)
        assert "worst attributes:" not in report_lines(report)
        assert any(line.startswith("attribute mAP") for line in report_lines(report)) is bool(names)


def random_outputs(detector: Detector, photo: np.ndarray) -> HeadOutputs:
    """A random network's proposals, but scores and movements that differ more than those of its heads."""
    outputs, generator = detector.head_outputs(photo), torch.Generator().manual_seed(0)
    regions = outputs.regions
    rules = detector.conventions
    logits = 3 * torch.randn(regions.class_logits.shape, generator=generator)
    deltas = 0.2 * torch.randn(regions.box_deltas.shape, generator=generator) * torch.tensor(rules.region_delta_weights)
    return replace(outputs, regions=replace(regions, class_logits=logits, box_deltas=deltas))


def slow_detections(
    outputs: HeadOutputs, rules: Conventions, score_threshold: float, nms_iou: float
) -> list[tuple[float, int, int, list[float]]]:
    """(score, class, proposal, box), best first: one class after the other, boxes in float64, as the originals do."""
    extra = 1.0 if rules.box_sides == "x2-x1+1" else 0.0
    scores = outputs.regions.class_logits.softmax(dim=1)[:, :-1].numpy()
    deltas = outputs.regions.box_deltas.double().numpy() / rules.region_delta_weights
    proposals, (height, width) = outputs.proposals.boxes, outputs.network_input.input_hw
    if rules.regression_pixels == "photo":
        proposals, (height, width) = outputs.network_input.scale.to_photo(proposals), (HEIGHT, WIDTH)
    far = np.array([width, height]) - (1 if rules.box_clip == "last-pixel" else 0)
    results = []
    for class_id in range(scores.shape[1]):
        candidates = []
        for row, box in enumerate(proposals.double().numpy()):
            if scores[row, class_id] > score_threshold:
                sides = box[2:] - box[:2] + extra
                center = box[:2] + sides / 2 + deltas[row, class_id, :2] * sides
                sides = sides * np.exp(np.minimum(deltas[row, class_id, 2:], rules.delta_cap or np.inf))
                moved = np.concatenate([np.clip(center - sides / 2, 0, far), np.clip(center + sides / 2, 0, far)])
                candidates.append((float(scores[row, class_id]), class_id, row, moved))
        kept: list[tuple[float, int, int, np.ndarray]] = []
        for candidate in sorted(candidates, key=lambda each: (-each[0], each[2])):
            if all(slow_overlap(candidate[3], other[3], extra)[0] <= nms_iou for other in kept):
                kept.append(candidate)
        results += kept
    results.sort(key=lambda each: (-each[0], each[2], each[1]))
    to_photo = outputs.network_input.scale.to_photo if rules.regression_pixels == "network" else (lambda boxes: boxes)
    return [(*each[:3], to_photo(torch.tensor(each[3], dtype=torch.float32)).tolist()) for each in results]


@pytest.mark.parametrize("conventions, delta_cap", [("hf", 0.1), ("caffe", None)])  # a cap that many movements pass
@pytest.mark.parametrize("nms_iou", [0.3, 0.5])
def test_detections_are_those_of_a_slow_count(
    tmp_path: Path, conventions: str, delta_cap: float | None, nms_iou: float
) -> None:
    detector = tiny(conventions)
    rules = replace(detector.conventions, delta_cap=delta_cap)
    outputs = random_outputs(detector, write_photo(tmp_path, "a.png", 5))
    expected = slow_detections(outputs, rules, 0.03, nms_iou)
    found = class_detections(outputs, rules, score_threshold=0.03, nms_iou=nms_iou)
    assert 50 < len(found) == len(expected) < (outputs.regions.class_logits.softmax(dim=1)[:, :-1] > 0.03).sum()
    assert len(set(found.class_ids.tolist())) > 5
    np.testing.assert_allclose(found.scores, [each[0] for each in expected], rtol=1e-5)
    assert found.class_ids.tolist() == [each[1] for each in expected]
    assert found.proposal_ids.tolist() == [each[2] for each in expected]
    np.testing.assert_allclose(found.boxes, [each[3] for each in expected], atol=1e-3)
    assert (found.boxes >= 0).all() and (found.boxes <= [WIDTH, HEIGHT, WIDTH, HEIGHT]).all()
    with_none = outputs.regions.attribute_logits.softmax(dim=1)[:, :-1]
    alone = outputs.regions.attribute_logits[:, :-1].softmax(dim=1)
    attributes = with_none if conventions == "caffe" else alone
    np.testing.assert_allclose(found.attribute_probabilities, attributes[found.proposal_ids], rtol=1e-6)
    few = class_detections(outputs, rules, score_threshold=0.03, nms_iou=nms_iou, max_per_image=7)
    assert few.scores.tolist() == found.scores[:7].tolist()


def test_classes_do_not_suppress_each_other_and_equal_scores_stand_by_proposal() -> None:
    boxes = torch.tensor([[10.0, 10, 50, 50], [10, 10, 50, 51], [70, 10, 120, 60]])
    logits = torch.full((3, 3), -1e4)
    logits[:2, :2] = 0  # both boxes: 0.5 of class 0, 0.5 of class 1
    logits[2, 1] = 0
    found = class_detections(outputs_of(boxes, logits), CONVENTIONS["hf"])
    assert list(zip(found.proposal_ids.tolist(), found.class_ids.tolist(), strict=True)) == [(2, 1), (0, 0), (0, 1)]
    assert found.scores.tolist() == [1, 0.5, 0.5]


def test_no_candidate_gives_no_detection() -> None:
    logits = torch.tensor([[0.0, 0.0, 1e4]])
    found = class_detections(outputs_of(torch.tensor([[10.0, 10, 50, 50]]), logits), CONVENTIONS["hf"])
    assert (len(found), found.boxes.shape, found.attribute_probabilities.shape) == (0, (0, 4), (0, NUM_ATTRIBUTES))


@pytest.mark.parametrize("comparison, kept", [(">", 2), (">=", 1)])
def test_the_comparison_of_the_conventions_decides_at_the_threshold(comparison: str, kept: int) -> None:
    boxes = torch.tensor([[0.0, 0, 40, 40], [0, 0, 40, 20]])
    logits = torch.tensor([[1.0, -1e4, 0.0], [0.5, -1e4, 0.0]])
    rules = replace(CONVENTIONS["hf"], nms_comparison=comparison)
    assert len(class_detections(outputs_of(boxes, logits, rules), rules, nms_iou=0.5)) == kept


def outputs_of(boxes: Tensor, class_logits: Tensor, conventions: Conventions | None = None) -> HeadOutputs:
    """Head outputs of a photo of 128 x 96 that is not resized, with these boxes and logits and no movement."""
    count, num_classes = len(boxes), class_logits.shape[1] - 1

    def heads(feature_map: Tensor, boxes: Tensor) -> RegionOutputs:
        deltas, attributes = torch.zeros(count, num_classes, 4), torch.zeros(count, NUM_ATTRIBUTES + 1)
        return RegionOutputs(torch.zeros(count, 2), class_logits, attributes, deltas)

    config = DetectorConfig(num_classes=num_classes, short_edge=HEIGHT, long_edge=2 * HEIGHT)
    detector = built(config, conventions, lambda *_: Proposals(boxes, torch.ones(count)), heads)
    return detector.head_outputs(np.zeros((HEIGHT, WIDTH, 3), np.uint8))


def test_refusals_name_the_photo_and_what_was_expected(tmp_path: Path, photos: list[LabelledImage]) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    for change, words in (
        ({"file_name": "not-there.png"}, r"not-there\.png: No such file"),
        ({"file_name": "broken.jpg"}, r"broken\.jpg: no known image format"),
        ({"image_hw": (WIDTH, HEIGHT)}, r"0\.png: 128x96 pixels, its labels were made for 96x128"),
        ({"class_ids": np.array([0, 20])}, r"0\.png': class 20 of an object has no name; there are 20"),
        ({"attribute_ids": np.array([[0], [12]])}, r"0\.png': attribute 12 of an object has no name; there are 12"),
        (None, "there are none"),
    ):
        with pytest.raises(ValueError, match=words):
            judged(knowing_detector(photos), [] if change is None else [replace(photos[0], **change)], tmp_path)


@pytest.mark.parametrize("name, value", [("score_threshold", 1.0), ("nms_iou", 0.0), ("max_per_image", 0)])
def test_settings_out_of_range(tmp_path: Path, photos: list[LabelledImage], name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}; it must be"):
        judged(knowing_detector(photos), photos, tmp_path, **{name: value})


def test_detectors_that_cannot_be_judged(tmp_path: Path, photos: list[LabelledImage]) -> None:
    detector = knowing_detector(photos)
    with pytest.raises(ValueError, match="the photos have 3 classes, the detector has 20"):
        judged(detector, photos, tmp_path, class_names=CLASSES[:3])
    with pytest.raises(ValueError, match="the photos have 3 attributes, the detector has 12"):
        judged(detector, photos, tmp_path, attribute_names=ATTRIBUTES[:3])
    with pytest.raises(ValueError, match=r"training mode.* call its eval\(\) first"):
        judged(knowing_detector(photos).train(), photos, tmp_path)
    diverged = tiny("hf")
    with torch.no_grad():
        diverged.roi_heads.box_predictor.cls_score.bias[3] = float("nan")
    with pytest.raises(ValueError, match=r"0\.png': the detector's class scores are not finite"):
        judged(diverged, photos, tmp_path)


def test_random_boxes_of_these_tests_are_boxes() -> None:
    boxes = random_boxes(np.random.default_rng(0), 500, 100, whole=True)
    assert (boxes[:, 2:] > boxes[:, :2]).all() and boxes.min() >= 0 and boxes.max() <= 100
    assert (boxes == 0).any() and (boxes == 100).any()
