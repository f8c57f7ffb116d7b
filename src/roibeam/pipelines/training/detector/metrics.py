"""Metrics of a detector on labelled photos: average precision, accuracy of attributes, recall of regions, calibration.

Average precision at an overlap of 0.5 follows peteanderson80/bottom-up-attention lib/datasets/vg.py and vg_eval.py:
area under the precision curve after each precision has been raised to the best one at a higher recall (not the eleven
points of VOC 2007). Not as there: detections are not moved by a pixel and rounded to a tenth of one on their way
through a text file, nor their scores to three digits; and the plain mean is over the classes that occur, while there a
class without objects counts as 0. The mean weighted by objects is the same.
COCO's twelve numbers come from faster-coco-eval, on objects and detections in memory.
Calibration is that of Guo et al., arXiv:1706.04599: later losses train on the class probabilities of the regions, so a
0.7 in them should be right seven times in ten.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from faster_coco_eval import COCO, COCOeval_faster

from roibeam.extraction.training.targets import overlaps
from roibeam.pipelines.common.statistics.verdict import Bootstrap, Figure, mean_figure
from roibeam.pipelines.data.datasets.image_boxes import LabelledImage

NO_OBJECT = -1
_RESAMPLES = 400  # each goes through all detections, of which there may be millions
IGNORED = -2  # an ignored object or a crowd: neither right nor wrong
AT_LEAST_HALF = float(np.nextafter(0.5, 0.0))  # what is above it is at or above 0.5


def matched_objects(
    boxes: np.ndarray,
    object_boxes: np.ndarray,
    ignored: np.ndarray,
    crowds: np.ndarray,
    *,
    above: float,
    plus_one_sides: bool,
    comparable: np.ndarray | None = None,
) -> np.ndarray:
    """The object that each box overlaps best, independent of other boxes.

    Ignored objects are compared as the others, by intersection over union (the "difficult" ones of py-faster-rcnn
    lib/datasets/voc_eval.py). A crowd outlines many objects, so a box that matches none of the others and lies in a
    crowd with more than `above` of its own area matches the crowd (pycocotools cocoeval.py).

    Args:
        boxes: (N, 4) numbers, x1 y1 x2 y2 in photo pixels.
        object_boxes: (K, 4) numbers, the same, none empty.
        ignored: (K,) bool, crowds among them.
        crowds: (K,) bool.
        above: an overlap counts when it is larger, 0..1; `AT_LEAST_HALF` for 0.5 and more.
        plus_one_sides: whether a box is x2 - x1 + 1 wide.
        comparable: (N, K) bool, which objects a box is compared with; None for all.
    Returns:
        (N,) int64, the object's row (the first of equals), `NO_OBJECT` or `IGNORED`.
    """
    if not len(object_boxes):
        return np.full(len(boxes), NO_OBJECT, np.int64)
    first, second = (torch.from_numpy(np.asarray(each, np.float64)) for each in (boxes, object_boxes))
    iou, covered = (each.numpy() for each in overlaps(first, second, plus_one_sides=plus_one_sides))
    allowed = np.ones(iou.shape, bool) if comparable is None else comparable
    iou = np.where(allowed & ~crowds, iou, -1.0)
    rows = iou.argmax(axis=1)
    is_matched = iou[np.arange(len(rows)), rows] > above
    in_crowd = (allowed & crowds & (covered > above)).any(axis=1)
    otherwise = np.where(in_crowd, IGNORED, NO_OBJECT)
    return np.where(is_matched, np.where(ignored[rows], IGNORED, rows), otherwise)


def match_detections(
    boxes: np.ndarray,
    class_ids: np.ndarray,
    scores: np.ndarray,
    object_boxes: np.ndarray,
    object_class_ids: np.ndarray,
    ignored: np.ndarray,
    crowds: np.ndarray,
) -> np.ndarray:
    """The object that each detection of one photo found, by the rules of Visual Genome and PASCAL VOC.

    Best score first, equals in their order, a detection finds the object of its class that it overlaps most, if by more
    than 0.5. An object is found once: a second detection of it is wrong, even where it overlaps another object too. An
    ignored object takes any number of detections (peteanderson80/bottom-up-attention lib/datasets/vg_eval.py). Boxes
    are x2 - x1 + 1 wide, as there.

    Args:
        boxes, class_ids, scores: (N, 4), (N,) and (N,), the detections.
        object_boxes, object_class_ids, ignored, crowds: (K, 4) and (K,), see `matched_objects`.
    Returns:
        (N,) int64: the row of the object that was found, `NO_OBJECT` for a wrong detection, `IGNORED` for one that does
        not count.
    """
    comparable = class_ids[:, None] == object_class_ids[None, :]
    matched = matched_objects(
        boxes, object_boxes, ignored, crowds, above=0.5, plus_one_sides=True, comparable=comparable
    )
    order = np.argsort(-scores, kind="stable")
    by_score = matched[order]
    _, firsts = np.unique(by_score, return_index=True)
    is_first = np.zeros(len(order), bool)
    is_first[firsts] = True
    by_score[(by_score >= 0) & ~is_first] = NO_OBJECT
    found = np.empty_like(matched)
    found[order] = by_score
    return found


@dataclass(frozen=True, eq=False)
class AveragePrecisions:
    """
    Attributes:
        values: (C,) float64, 0..1; NaN for a class without objects.
        num_objects: (C,) int64, ignored ones not counted.
    """

    values: np.ndarray
    num_objects: np.ndarray

    @property
    def mean(self) -> float | None:
        """Mean over the classes that occur; None if none does."""
        occurring = self.num_objects > 0
        return float(self.values[occurring].mean()) if occurring.any() else None

    @property
    def weighted_mean(self) -> float | None:
        """Mean weighted by the objects of each class; None if there are none."""
        occurring = self.num_objects > 0
        if not occurring.any():
            return None
        return float(np.average(self.values[occurring], weights=self.num_objects[occurring]))


class PrecisionCounter:
    """Collects the detections of a set of photos: 9 bytes of each are kept, and the classes of all objects."""

    def __init__(self, num_classes: int) -> None:
        self.num_objects = np.zeros(num_classes, np.int64)
        self._scores: list[np.ndarray] = []
        self._class_ids: list[np.ndarray] = []
        self._right: list[np.ndarray] = []
        self._objects: list[np.ndarray] = []

    def add(self, scores: np.ndarray, class_ids: np.ndarray, found: np.ndarray, object_class_ids: np.ndarray) -> None:
        """Adds one photo: its (N,) detections, the (N,) result of `match_detections`, and the (K,) classes of its
        objects that are not ignored."""
        counts = found != IGNORED
        self._scores.append(scores[counts].astype(np.float32))
        self._class_ids.append(class_ids[counts].astype(np.int32))
        self._right.append(found[counts] >= 0)
        self._objects.append(object_class_ids)
        self.num_objects += np.bincount(object_class_ids, minlength=len(self.num_objects))

    def _ordered(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Detections by class, best score first: whether each is right, its photo, and where each class begins."""
        scores = np.concatenate([np.empty(0, np.float32), *self._scores])
        class_ids = np.concatenate([np.empty(0, np.int32), *self._class_ids])
        right = np.concatenate([np.empty(0, bool), *self._right])
        photos = np.repeat(np.arange(len(self._scores)), list(map(len, self._scores)))
        order = np.lexsort((-scores, class_ids))  # stable
        return right[order], photos[order], np.searchsorted(class_ids[order], np.arange(len(self.num_objects) + 1))

    def result(self) -> AveragePrecisions:
        """Result of all photos so far; detections of equal score stand in the order of the photos."""
        right, _, bounds = self._ordered()
        values = np.full(len(self.num_objects), np.nan)
        for class_id in np.flatnonzero(self.num_objects):
            of_class = right[bounds[class_id] : bounds[class_id + 1]]
            values[class_id] = area_under_curve(of_class, int(self.num_objects[class_id]))
        return AveragePrecisions(values, self.num_objects.copy())

    def ends(self) -> tuple[float | None, float | None]:
        """Ends of the 95 % interval of the mean over photos; None for one photo or none."""
        right, photos, bounds = self._ordered()
        objects = np.array([np.bincount(ids, minlength=len(self.num_objects)) for ids in self._objects])
        if len(objects) < 2 or not objects.any():
            return None, None

        def means(weights_NR: np.ndarray) -> np.ndarray:
            """A detection counts as often as its photo was drawn; behind the detections are the photos themselves."""
            counts_NC = weights_NR[:, len(right) :] @ objects
            sums = np.zeros(len(weights_NR))
            for class_id in np.flatnonzero(self.num_objects):
                part = slice(bounds[class_id], bounds[class_id + 1])
                found = weights_NR[:, part] * right[part]
                precision = found.cumsum(axis=1) / np.maximum(weights_NR[:, part].cumsum(axis=1), 1)
                raised = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
                sums += (raised * found).sum(axis=1) / np.maximum(counts_NC[:, class_id], 1)
            occurring = (counts_NC > 0).sum(axis=1)
            return np.divide(sums, occurring, out=np.full(len(sums), np.nan), where=occurring > 0)

        rows = np.concatenate([photos, np.arange(len(objects))])
        return Bootstrap(len(objects), resamples=_RESAMPLES).whole(means, rows)


def area_under_curve(right: np.ndarray, num_objects: int) -> float:
    """Average precision of one class, 0..1; right: (n,) bool, whether each detection found an object, best
    score first."""
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    raised = np.maximum.accumulate(precision[::-1])[::-1]
    return float(raised[right].sum() / num_objects)


@dataclass(frozen=True)
class AttributeAccuracy:
    """Share of the objects whose best attribute is one of their known ones. Objects without a known attribute, and
    ignored ones, do not count.

    Attributes:
        matched_boxes: 0..1, of the objects that a detection of their class found, at an overlap above 0.5, with the
            attribute of that detection; None if none was found. Missed objects do not count, so read it beside
            `num_matched`.
        given_boxes: 0..1, with the attribute that the heads give the object's true box: does not depend on how well
            objects are found. None without such objects.
        num_given: number of these objects: all with a known attribute.
        given_low, given_high: ends of the 95 % interval of `given_boxes` over photos; None if there is none.
        given_chance: 0..1, of always the attribute that most of these objects have; None without such objects.
    """

    matched_boxes: float | None
    num_matched: int
    given_boxes: float | None
    num_given: int
    given_low: float | None = None
    given_high: float | None = None
    given_chance: float | None = None

    @property
    def figure(self) -> Figure:
        """`given_boxes` beside chance."""
        ends = self.given_low, self.given_high
        return Figure("attribute_accuracy", self.given_boxes, *ends, self.given_chance, None, self.num_given)


class AttributeCounter:
    """Counts objects whose best attribute is a known one, photo by photo, and how many have each attribute."""

    def __init__(self) -> None:
        self._right: list[int] = []
        self._objects: list[int] = []
        self._known = Counter[int]()

    def add(self, best_ids: np.ndarray, known_ids: np.ndarray) -> None:
        """Adds one photo: (K,) the best attribute of each object, and (K, A) its known ones, filled with NO_ATTRIBUTE
        (-1)."""
        self._objects.append(int((known_ids >= 0).any(axis=1).sum()))
        self._right.append(int((known_ids == best_ids[:, None]).any(axis=1).sum()))
        for ids in known_ids.tolist():
            self._known.update({each for each in ids if each >= 0})

    @property
    def num_objects(self) -> int:
        return sum(self._objects)

    @property
    def accuracy(self) -> float | None:
        return sum(self._right) / self.num_objects if self.num_objects else None

    def figure(self) -> Figure:
        """The accuracy with its interval over photos, beside always the commonest attribute."""
        chance = max(self._known.values()) / self.num_objects if self._known else None
        right, objects = np.array(self._right, np.float64), np.array(self._objects)
        return mean_figure("attribute_accuracy", right, objects, Bootstrap(len(objects)), chance=chance)


def count_attribute_detections(
    counter: PrecisionCounter,
    probabilities: np.ndarray,
    boxes: np.ndarray,
    known_ids: np.ndarray,
    *,
    max_per_image: int = 400,
) -> None:
    """Adds one photo's attributes to a count of average precision whose classes are the attributes.

    As in bottom-up attention (lib/fast_rcnn/test.py::test_net_with_gt_boxes, vg_eval.py with eval_attributes): the
    heads read the true boxes; every attribute of every box is a detection, without suppression, the best
    `max_per_image` of a photo are kept; an object is a target for each of its attributes. So an object without a known
    attribute makes wrong detections only, as there.

    Args:
        probabilities: (K, A) float32, of the true boxes.
        boxes: (K, 4) float32, the true boxes of objects that are not ignored.
        known_ids: (K, M) their attributes, filled with NO_ATTRIBUTE (-1).
    """
    scores = probabilities.reshape(-1)
    best = np.argsort(-scores, kind="stable")[:max_per_image]
    rows, attribute_ids = np.divmod(best, probabilities.shape[1])
    objects, columns = np.nonzero(known_ids >= 0)
    object_attributes = known_ids[objects, columns]
    nothing = np.zeros(len(objects), bool)
    found = match_detections(
        boxes[rows], attribute_ids, scores[best], boxes[objects], object_attributes, ignored=nothing, crowds=nothing
    )
    counter.add(scores[best], attribute_ids, found, object_attributes)


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
        """Adds one photo with its detections, (N, 4), (N,) and (N,); the first of equal scores are the better."""
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
    """precision, recall: (overlaps, classes, sizes, numbers of detections) float64; -1 where a class has no object."""
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


@dataclass(frozen=True)
class RegionRecall:
    """
    Attributes:
        recall: share of the objects that are not ignored that some region overlaps by 0.5 or more, of any class;
            None without such an object.
        mean_regions: mean number of regions of a photo; None without a photo.
    """

    recall: float | None
    num_objects: int
    mean_regions: float | None


class RecallCounter:
    """Counts objects and regions; keeps four numbers."""

    def __init__(self) -> None:
        self._num_found = self._num_objects = self._num_regions = self._num_images = 0

    def add(self, image: LabelledImage, boxes: np.ndarray) -> None:
        """Adds one photo with its regions' boxes: (K, 4) float32, photo pixels, x2 - x1 wide."""
        objects = image.boxes[~image.ignored]
        self._num_images += 1
        self._num_regions += len(boxes)
        self._num_objects += len(objects)
        if len(objects) and len(boxes):
            first, second = (torch.from_numpy(np.asarray(each, np.float64)) for each in (boxes, objects))
            iou, _ = overlaps(first, second, plus_one_sides=False)
            self._num_found += int((iou.amax(dim=0) >= 0.5).sum())

    def result(self) -> RegionRecall:
        return RegionRecall(
            recall=self._num_found / self._num_objects if self._num_objects else None,
            num_objects=self._num_objects,
            mean_regions=self._num_regions / self._num_images if self._num_images else None,
        )


NUM_BINS = 15  # as in section 4 of the paper


@dataclass(frozen=True)
class CalibrationBin:
    """Regions whose confidence is above `lower` and at most `upper`; the means are None where there is none."""

    lower: float
    upper: float
    num_regions: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """Calibration of the class distribution (background included) of the regions that a store would hold.

    Attributes:
        num_background: those of them without an object.
        accuracy: share of them whose most probable class is right; None, as the next two, without a region.
        expected_error: expected calibration error, 0..1: the distance of confidence from accuracy in a bin, averaged
            over the bins by their regions.
        negative_log_likelihood: mean of -ln of the probability of the region's true class, in nats.
        bins: of equal width, ascending.
    """

    num_regions: int
    num_background: int
    accuracy: float | None
    expected_error: float | None
    negative_log_likelihood: float | None
    bins: tuple[CalibrationBin, ...]


class CalibrationCounter:
    """Sums over regions; its size does not depend on their number."""

    def __init__(self) -> None:
        self._counts = np.zeros(NUM_BINS, np.int64)
        self._confidence = np.zeros(NUM_BINS)
        self._right = np.zeros(NUM_BINS, np.int64)
        self._log_likelihood = 0.0
        self._num_background = 0

    def add(self, image: LabelledImage, boxes: np.ndarray, class_probabilities: np.ndarray) -> None:
        """Adds one photo's regions.

        The true class of a region is that of the object that it overlaps most, if by 0.5 or more, else background. A
        region on an ignored object or in a crowd is left out: its true class is unknown.

        Args:
            boxes: (K, 4) float32, photo pixels, x2 - x1 wide.
            class_probabilities: (K, C + 1) float32, foreground first, background last.
        """
        matched = matched_objects(
            boxes, image.boxes, image.ignored, image.crowds, above=AT_LEAST_HALF, plus_one_sides=False
        )
        counts = matched != IGNORED
        matched, probabilities = matched[counts], class_probabilities[counts].astype(np.float64)
        background = probabilities.shape[1] - 1
        truth = np.full(len(matched), background)
        truth[matched >= 0] = image.class_ids[matched[matched >= 0]]
        confidence = probabilities.max(axis=1)
        right = probabilities.argmax(axis=1) == truth
        bins = np.clip(np.ceil(confidence * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
        self._counts += np.bincount(bins, minlength=NUM_BINS)
        self._confidence += np.bincount(bins, weights=confidence, minlength=NUM_BINS)
        self._right += np.bincount(bins[right], minlength=NUM_BINS)
        # A probability too small for float32 counts as its smallest number (1e-38, so 87 nats), not as infinity.
        of_truth = np.maximum(probabilities[np.arange(len(truth)), truth], np.finfo(np.float32).tiny)
        self._log_likelihood += float(np.log(of_truth).sum())
        self._num_background += int((truth == background).sum())

    def result(self) -> Calibration:
        total = int(self._counts.sum())
        bins = []
        for index, (count, confidence, right) in enumerate(
            zip(self._counts.tolist(), self._confidence.tolist(), self._right.tolist(), strict=True)
        ):
            edges = index / NUM_BINS, (index + 1) / NUM_BINS
            bins.append(
                CalibrationBin(*edges, count, *((confidence / count, right / count) if count else (None, None)))
            )
        if not total:
            return Calibration(0, 0, None, None, None, tuple(bins))
        return Calibration(
            num_regions=total,
            num_background=self._num_background,
            accuracy=float(self._right.sum() / total),
            expected_error=float(np.abs(self._confidence - self._right).sum() / total),
            negative_log_likelihood=-self._log_likelihood / total,
            bins=tuple(bins),
        )
