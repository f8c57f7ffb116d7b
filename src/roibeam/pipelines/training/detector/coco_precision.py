"""COCO's twelve numbers, by faster-coco-eval, on objects and detections in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

from roibeam.pipelines.data.datasets.labelled_image import LabelledImage

MAX_DETECTIONS = 100  # of a photo, as COCO's server takes them
# The evaluation holds an entry for each pair of photo and class: all 1600 of Visual Genome at once would be gigabytes.
_CLASSES_AT_ONCE = 100


@dataclass(frozen=True)
class CocoPrecision:
    """COCO's average precision and recall, 0..1, means over overlaps of 0.5 to 0.95 and over the classes that have
    objects (of that size); None where there are none.

    Attributes:
        ap: average precision. ap50, ap75: at an overlap of 0.5 and 0.75 alone.
        ap_small, ap_medium, ap_large: of objects of up to 32 x 32 and up to 96 x 96 pixels, and larger.
        ar1, ar10, ar100: average recall with that many detections of a photo and class.
        ar_small, ar_medium, ar_large: as `ar100`, by size.
    """

    ap: float | None
    ap50: float | None
    ap75: float | None
    ap_small: float | None
    ap_medium: float | None
    ap_large: float | None
    ar1: float | None
    ar10: float | None
    ar100: float | None
    ar_small: float | None
    ar_medium: float | None
    ar_large: float | None


class CocoCounter:
    """Collects objects and detections of a set of photos; at most 100 detections of each are kept.

    Objects that are ignored without being crowds are passed on as crowds: pycocotools forgets an annotation's "ignore".
    """

    def __init__(self) -> None:
        self._objects: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self._detections: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, image: LabelledImage, boxes: np.ndarray, class_ids: np.ndarray, scores: np.ndarray) -> None:
        """Adds one photo.

        Args:
            boxes, class_ids, scores: (N, 4), (N,) and (N,), its detections; the first of equal scores are the better.
        """
        best = np.argsort(-scores, kind="stable")[:MAX_DETECTIONS]
        self._objects.append((image.boxes, image.class_ids, image.areas, image.ignored))
        self._detections.append((boxes[best], class_ids[best], scores[best]))

    def result(self) -> CocoPrecision:
        occurring = sorted({int(each) for _, class_ids, _, ignored in self._objects for each in class_ids[~ignored]})
        if not occurring:
            return CocoPrecision(*[None] * 12)
        truth, found = self._datasets(occurring)
        precision, recall = [], []
        for start in range(0, len(occurring), _CLASSES_AT_ONCE):
            evaluation = COCOeval_faster(truth, found, "bbox")
            evaluation.params.catIds = occurring[start : start + _CLASSES_AT_ONCE]
            evaluation.evaluate()
            evaluation.accumulate()
            # (overlaps, recalls, classes, sizes, numbers of detections): the mean over recalls, -1 staying -1.
            precision.append(np.asarray(evaluation.eval["precision"]).mean(axis=1))
            recall.append(np.asarray(evaluation.eval["recall"]))
        return _summary(np.concatenate(precision, axis=1), np.concatenate(recall, axis=1))

    def _datasets(self, occurring: list[int]) -> tuple[COCO, COCO]:
        """The objects and the detections in COCO's form; detections of classes without objects count nowhere."""
        head = {
            "images": [{"id": number} for number in range(len(self._objects))],
            "categories": [{"id": class_id, "name": str(class_id)} for class_id in occurring],
        }
        known = set(occurring)
        objects = [
            {"bbox": box, "category_id": class_id, "image_id": number, "area": area, "iscrowd": int(ignored)}
            for number, (boxes, *columns) in enumerate(self._objects)
            for box, class_id, area, ignored in _rows(boxes, *columns)
            if class_id in known
        ]
        detections = [
            {"bbox": box, "category_id": class_id, "image_id": number, "area": box[2] * box[3], "score": score}
            for number, (boxes, *columns) in enumerate(self._detections)
            for box, class_id, score in _rows(boxes, *columns)
            if class_id in known
        ]
        for entries in (objects, detections):
            for number, entry in enumerate(entries, start=1):  # 0 means "none" in the evaluation
                entry["id"] = number
        return COCO({**head, "annotations": objects}), COCO({**head, "annotations": detections})


def _rows(boxes: np.ndarray, *columns: np.ndarray) -> zip:
    """x, y, width, height of each box and the entries of its columns, as Python numbers."""
    boxes = boxes.astype(np.float64)
    boxes[:, 2:] -= boxes[:, :2]
    return zip(boxes.tolist(), *(column.tolist() for column in columns), strict=True)


def _summary(precision: np.ndarray, recall: np.ndarray) -> CocoPrecision:
    """
    Args:
        precision, recall: (overlaps, classes, sizes, numbers of detections) float64; -1 where a class has no object.
    """
    half, three_quarters = slice(0, 1), slice(5, 6)
    every, small, medium, large = range(4)
    return CocoPrecision(
        ap=_mean(precision[:, :, every, 2]),
        ap50=_mean(precision[half, :, every, 2]),
        ap75=_mean(precision[three_quarters, :, every, 2]),
        ap_small=_mean(precision[:, :, small, 2]),
        ap_medium=_mean(precision[:, :, medium, 2]),
        ap_large=_mean(precision[:, :, large, 2]),
        ar1=_mean(recall[:, :, every, 0]),
        ar10=_mean(recall[:, :, every, 1]),
        ar100=_mean(recall[:, :, every, 2]),
        ar_small=_mean(recall[:, :, small, 2]),
        ar_medium=_mean(recall[:, :, medium, 2]),
        ar_large=_mean(recall[:, :, large, 2]),
    )


def _mean(values: np.ndarray) -> float | None:
    measured = values[values > -1]
    return float(measured.mean()) if measured.size else None
