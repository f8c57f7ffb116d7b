"""Report of a detector's evaluation: as data, as JSON, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from roibeam.extraction.regions import plain_json
from roibeam.pipelines.common.statistics.verdict import verdict_of
from roibeam.pipelines.training.detector.metrics import (
    AttributeAccuracy,
    AveragePrecisions,
    Calibration,
    CocoPrecision,
    RegionRecall,
)


@dataclass(frozen=True)
class ClassPrecision:
    """One class or attribute: its average precision, 0..1 (None without objects), and how many objects it has."""

    name: str
    average_precision: float | None
    num_objects: int


@dataclass(frozen=True)
class NamedPrecisions:
    """Average precision at an overlap of 0.5, the Visual Genome way (`metrics`).

    Attributes:
        mean: over the classes that occur; None where none does.
        weighted_mean: weighted by the objects of each class; None likewise.
        low, high: ends of the 95 % interval of `mean` over photos; None where it was not measured.
        classes: in the order of their ids, those that do not occur too.
    """

    mean: float | None
    weighted_mean: float | None
    classes: tuple[ClassPrecision, ...]
    low: float | None = None
    high: float | None = None

    def worst(self, count: int) -> list[ClassPrecision]:
        """The `count` classes of the lowest average precision, lowest first, among those that occur."""
        occurring = [each for each in self.classes if each.average_precision is not None]
        return sorted(occurring, key=lambda each: (each.average_precision, each.name))[:count]


def named_precisions(
    result: AveragePrecisions, names: Sequence[str], ends: tuple[float | None, float | None] = (None, None)
) -> NamedPrecisions:
    classes = tuple(
        ClassPrecision(name, value if count else None, count)
        for name, value, count in zip(names, result.values.tolist(), result.num_objects.tolist(), strict=True)
    )
    return NamedPrecisions(result.mean, result.weighted_mean, classes, *ends)


@dataclass(frozen=True)
class DetectionSettings:
    """Settings of the detections, see `class_detections`."""

    score_threshold: float
    nms_iou: float
    max_per_image: int

    def __post_init__(self) -> None:
        if not self.score_threshold < 1:
            raise ValueError(f"score_threshold is {self.score_threshold}; it must be below 1, below 0 takes everything")
        if not 0 < self.nms_iou <= 1:
            raise ValueError(f"nms_iou is {self.nms_iou}; it must be above 0 and at most 1")
        if self.max_per_image < 1:
            raise ValueError(f"max_per_image is {self.max_per_image}; it must be at least 1")


@dataclass(frozen=True)
class DetectionReport:
    """Measurements of a detector on a set of photos. None for those that could not be made.

    Attributes:
        num_objects: their objects, ignored ones not counted.
        num_ignored: ignored objects, crowds among them.
        num_detections: detections that `objects` evaluates.
        objects: average precision of the classes.
        coco: COCO's numbers, on the best 100 of the same detections of each photo.
        attributes: average precision of the attributes, predicted for the true boxes.
        attribute_accuracy: how often the best attribute is a known one.
        region_recall: of the regions that a store would hold, by the detector's selection.
        calibration: of the class distribution of the same regions.
    """

    num_images: int
    num_objects: int
    num_ignored: int
    num_detections: int
    settings: DetectionSettings
    objects: NamedPrecisions
    coco: CocoPrecision
    attributes: NamedPrecisions
    attribute_accuracy: AttributeAccuracy
    region_recall: RegionRecall
    calibration: Calibration

    def as_json(self) -> dict[str, Any]:
        """The report as plain dicts, lists, numbers and None, under the names of the attributes."""
        return plain_json(asdict(self))


def report_lines(report: DetectionReport) -> list[str]:
    """The report for a terminal: one line for each number, then the five worst classes and attributes.

    Attributes are left out where the photos have none; "-" stands for what could not be measured.
    """
    settings, recall, coco, calibration = report.settings, report.region_recall, report.coco, report.calibration
    regions = "no" if recall.mean_regions is None else f"{recall.mean_regions:.1f}"
    of_regions = f"of {_objects(recall.num_objects)}, overlap 0.5, by {regions} regions a photo"
    low, high = report.objects.low, report.objects.high
    interval = "" if low is None or high is None else f"{100 * low:.1f} .. {100 * high:.1f} over photos (95 %); "
    rows = [
        ("mAP@0.5", _share(report.objects.mean), f"{interval}Visual Genome's way, mean over classes"),
        ("  weighted by objects", _share(report.objects.weighted_mean), ""),
        ("COCO AP", _share(coco.ap), "overlaps 0.50 to 0.95"),
        ("  AP50, AP75", _shares(coco.ap50, coco.ap75), ""),
        ("  small, medium, large", _shares(coco.ap_small, coco.ap_medium, coco.ap_large), ""),
        ("  AR 1, 10, 100", _shares(coco.ar1, coco.ar10, coco.ar100), ""),
        *(_attribute_rows(report) if report.attributes.classes else ()),
        ("recall of the selection", _share(recall.recall), of_regions),
        ("class right", _share(calibration.accuracy), f"of {calibration.num_regions} regions, background is a class"),
        ("calibration error", _number(calibration.expected_error), "ECE, 15 bins, same regions"),
        ("negative log-likelihood", _number(calibration.negative_log_likelihood), "nats, same regions"),
    ]
    return [
        f"{report.num_images:,} photos, {_objects(report.num_objects)} (and {report.num_ignored} ignored), "
        f"{report.num_detections} detections (score above {settings.score_threshold:g}, NMS at {settings.nms_iou:g}, "
        f"at most {settings.max_per_image} each)",
        *_aligned(rows),
        *_worst_lines("classes", report.objects),
        *_worst_lines("attributes", report.attributes),
    ]


def _attribute_rows(report: DetectionReport) -> list[tuple[str, str, str]]:
    accuracy, precisions = report.attribute_accuracy, report.attributes
    of_objects = f"right of {_objects(accuracy.num_given)}"
    if verdict := verdict_of(accuracy.figure):
        of_objects += f"; {verdict}, which is {_share(accuracy.given_chance)}"
    return [
        ("attributes, found boxes", _share(accuracy.matched_boxes), f"right of {_objects(accuracy.num_matched)} found"),
        ("attributes, true boxes", _share(accuracy.given_boxes), of_objects),
        ("attribute mAP", _share(precisions.mean), "true boxes, mean over the attributes that occur"),
        ("  weighted by objects", _share(precisions.weighted_mean), ""),
    ]


def _worst_lines(kind: str, precisions: NamedPrecisions) -> list[str]:
    worst = precisions.worst(5)
    if not worst:
        return []
    rows = [(f"  {each.name}", _share(each.average_precision), _objects(each.num_objects)) for each in worst]
    return [f"worst {kind}:", *_aligned(rows)]


def _objects(count: int) -> str:
    return f"{count} object" if count == 1 else f"{count} objects"


def _aligned(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{name:<{widths[0]}}  {value:<{widths[1]}}  {note}".rstrip() for name, value, note in rows]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _shares(*values: float | None) -> str:
    return " ".join(map(_share, values))
