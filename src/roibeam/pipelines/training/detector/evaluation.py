"""Evaluation of a detector on labelled photos: photos in, one report out.

photo -> head_outputs -> class_detections -> mAP, COCO AP, attributes of found boxes
                      -> postprocess -----> recall and calibration of the regions that a store would hold
photo, true boxes -> head_outputs --------> attributes of true boxes

`class_detections` are the input of detection metrics. The regions of a store differ: one box for each proposal, and at
least ten of them (`SelectionPolicy`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.engine.detector_calls import exif_orientation
from roibeam.extraction.network.boxes import clip_boxes, move_boxes, suppress
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.regions import Regions
from roibeam.extraction.weights.detector_choice import read_detector_folder
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.common.console.progress import PHOTOS, Progress, waiting
from roibeam.pipelines.data.datasets.image_boxes import NO_ATTRIBUTE, LabelledImage
from roibeam.pipelines.data.labelled_photos import LabelledPhotos, check_same_names, read_photo
from roibeam.pipelines.training.detector.metrics import (
    AttributeAccuracy,
    AttributeCounter,
    CalibrationCounter,
    CocoCounter,
    PrecisionCounter,
    RecallCounter,
    count_attribute_detections,
    match_detections,
)
from roibeam.pipelines.training.detector.report import DetectionReport, DetectionSettings, named_precisions


@dataclass(frozen=True, eq=False)
class ClassDetections:
    """The N detections of one photo, best score first, equals by proposal and then by class.

    Attributes:
        boxes: (N, 4) float32, x1 y1 x2 y2 in photo pixels, inside the photo: the proposal moved by this class.
        scores: (N,) float32, probability of the class.
        class_ids: (N,) int64, foreground, from 0.
        proposal_ids: (N,) int64: a proposal may be a detection of several classes.
        attribute_probabilities: (N, A) float32, of the proposal: its attributes do not depend on the class of the
            detection, for the attribute head sees the embedding of the proposal's best class.
    """

    boxes: np.ndarray
    scores: np.ndarray
    class_ids: np.ndarray
    proposal_ids: np.ndarray
    attribute_probabilities: np.ndarray

    def __len__(self) -> int:
        return len(self.scores)


@torch.inference_mode()
def class_detections(
    outputs: HeadOutputs,
    conventions: Conventions,
    *,
    score_threshold: float = 0.05,
    nms_iou: float = 0.3,
    max_per_image: int = 400,
) -> ClassDetections:
    """Detections as of py-faster-rcnn's test (lib/fast_rcnn/test.py::test_net of peteanderson80/bottom-up-attention;
    detectron2 modeling/roi_heads/fast_rcnn.py does the same).

    Every class of every proposal is a candidate, with the box moved by that class and clipped. Those of one class
    suppress each other.

    Args:
        outputs: of `Detector.head_outputs`.
        conventions: of the same detector; its rules for the sides of boxes and for the comparison in the NMS hold here.
        score_threshold: probability that a candidate must exceed. Bottom-up attention takes all of them (-1), which
            costs a second for each photo with 1600 classes and changes the end of the precision curve only.
        nms_iou: 0.3 in bottom-up attention, 0.5 in detectron2.
        max_per_image: the best over all classes: 400 in bottom-up attention, 100 in COCO.
    """
    scores = outputs.regions.class_logits.softmax(dim=1)[:, :-1]
    proposal_ids, class_ids = torch.nonzero(scores > score_threshold, as_tuple=True)
    scores = scores[proposal_ids, class_ids]
    moved = _moved_boxes(outputs, conventions, proposal_ids, class_ids)
    keep = _suppress_by_class(moved, scores, class_ids, nms_iou, conventions)
    keep = keep[torch.argsort(scores[keep], descending=True, stable=True)[:max_per_image]]
    boxes = moved[keep]
    if conventions.regression_pixels == "network":
        boxes = outputs.network_input.scale.to_photo(boxes)
    # The far edge times the scale may round to just outside the photo.
    boxes = clip_boxes(boxes, outputs.network_input.image_hw)
    attributes = attribute_probabilities(outputs.regions.attribute_logits[proposal_ids[keep]], conventions)
    return ClassDetections(
        boxes.cpu().numpy(),
        scores[keep].cpu().numpy(),
        class_ids[keep].cpu().numpy(),
        proposal_ids[keep].cpu().numpy(),
        attributes.cpu().numpy(),
    )


def attribute_probabilities(logits: Tensor, conventions: Conventions) -> Tensor:
    """(n, A + 1) logits with "no attribute" last -> (n, A) probabilities, beside "no attribute" or without it, by
    `Conventions.attribute_softmax`."""
    if conventions.attribute_softmax == "all":
        return logits.softmax(dim=1)[:, :-1]
    return logits[:, :-1].softmax(dim=1)


def _moved_boxes(outputs: HeadOutputs, conventions: Conventions, proposal_ids: Tensor, class_ids: Tensor) -> Tensor:
    """(n, 4) the proposals moved by the deltas of these classes, clipped, in the pixels of the regression."""
    network_input = outputs.network_input
    boxes, image_hw = outputs.proposals.boxes, network_input.input_hw
    if conventions.regression_pixels == "photo":
        boxes, image_hw = network_input.scale.to_photo(boxes), network_input.image_hw
    moved = move_boxes(
        boxes[proposal_ids],
        outputs.regions.box_deltas[proposal_ids, class_ids],
        conventions,
        weights=conventions.region_delta_weights,
    )
    return clip_boxes(moved, image_hw, last_pixel=conventions.box_clip == "last-pixel")


def _suppress_by_class(
    boxes: Tensor, scores: Tensor, class_ids: Tensor, nms_iou: float, conventions: Conventions
) -> Tensor:
    """Ids of the candidates that are kept, ascending.

    Class by class, but only those that have a candidate: at a threshold of 0.05 a proposal has at most 19. Moving the
    classes apart to run one NMS over all of them, as torchvision's batched_nms does, would cost the coordinates of the
    1600th class their last three binary digits after the point, and with them decisions near the threshold.
    """
    by_class = torch.argsort(class_ids, stable=True)
    counts = torch.unique_consecutive(class_ids[by_class], return_counts=True)[1].tolist()
    kept = [by_class[:0]]
    for ids in torch.split(by_class, counts):
        if len(ids) > 1:
            survivors = suppress(
                boxes[ids],
                scores[ids],
                nms_iou,
                comparison=conventions.nms_comparison,
                plus_one_sides=conventions.box_sides == "x2-x1+1",
            )
            ids = ids[survivors]
        kept.append(ids)
    return torch.cat(kept).sort().values


def evaluate_detector(
    detector: Detector,
    images: Iterable[LabelledImage],
    image_root: str,
    *,
    class_names: Sequence[str],
    attribute_names: Sequence[str] = (),
    score_threshold: float = 0.05,
    nms_iou: float = 0.3,
    max_per_image: int = 400,
    max_images: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> DetectionReport:
    """Runs a detector on labelled photos, one after the other, and measures its detections.

    Ignored objects and crowds are no targets, and a detection of one is neither right nor wrong. Boxes are x2 - x1 + 1
    wide for Visual Genome's numbers (`objects`, `attributes`, `attribute_accuracy`) and x2 - x1 wide everywhere else.

    Memory grows by some 20 bytes for each detection and object, and by about 1.5 kB for each of the at most 100
    detections of a photo while COCO's numbers are made at the end.

    Args:
        detector: in evaluation mode, on any device; its `selection` chooses the regions of a store.
        images: read once, in their order.
        image_root: folder that `LabelledImage.file_name` starts from.
        class_names: one for each class of the detector, in the order of the ids in `images`.
        attribute_names: likewise; none if the photos have no attributes.
        score_threshold, nms_iou, max_per_image: how detections are made, see `class_detections`.
        max_images: number of photos to take; None for all.
        progress: called after each photo with the number of photos done.
    Raises:
        ValueError: for a photo that cannot be read or decoded or has not the stated size, for ids without a name,
            for names that do not fit the detector, for a detector in training mode or whose outputs are not finite, and
            without any photo.
    """
    _check_detector(detector, class_names, attribute_names)
    counter = DetectionCounter(class_names, attribute_names)
    settings = DetectionSettings(score_threshold, nms_iou, max_per_image)
    num_images = 0
    for image in itertools.islice(images, max_images):
        counter.check(image)
        photo = read_photo(image, image_root, exif_orientation(detector))
        outputs = detector.head_outputs(photo)
        _check_finite(outputs, image)
        detections = class_detections(outputs, detector.conventions, **asdict(settings))
        given = _given_attributes(detector, photo, image) if attribute_names else None
        counter.add(image, detections, detector.postprocess(outputs), given)
        num_images += 1
        if progress is not None:
            progress(num_images)
    if not num_images:
        raise ValueError("a detector is evaluated on labelled photos, and there are none; does the split name any?")
    return counter.report(settings)


class DetectionCounter:
    """All measurements, added up photo by photo.

    Args:
        class_names, attribute_names: see `evaluate_detector`.
    """

    def __init__(self, class_names: Sequence[str], attribute_names: Sequence[str] = ()) -> None:
        self.class_names = tuple(class_names)
        self.attribute_names = tuple(attribute_names)
        self._num_images = self._num_objects = self._num_ignored = self._num_detections = 0
        self._objects = PrecisionCounter(len(self.class_names))
        self._attributes = PrecisionCounter(len(self.attribute_names))
        self._matched_boxes, self._given_boxes = AttributeCounter(), AttributeCounter()
        self._coco = CocoCounter()
        self._recall = RecallCounter()
        self._calibration = CalibrationCounter()

    def check(self, image: LabelledImage) -> None:
        """Raises ValueError if the photo has an object of a class or attribute without a name."""
        counted = ~image.ignored
        labels = [("class", image.class_ids[counted], self.class_names, 0)]
        if self.attribute_names:
            labels.append(("attribute", image.attribute_ids[counted], self.attribute_names, NO_ATTRIBUTE))
        for kind, ids, names, lowest in labels:
            outside = ids[(ids < lowest) | (ids >= len(names))]
            if outside.size:
                raise ValueError(
                    f"{image.file_name!r}: {kind} {outside[0]} of an object has no name; there are {len(names)}, "
                    f"numbered from 0"
                )

    def add(
        self, image: LabelledImage, detections: ClassDetections, regions: Regions, given_attributes: np.ndarray | None
    ) -> None:
        """Adds one photo.

        Args:
            regions: regions that a store would hold of it.
            given_attributes: (K, A) float32, attribute probabilities of the true boxes of its K objects that are
                not ignored; None if attributes are not evaluated.
        """
        counted = ~image.ignored
        self._num_images += 1
        self._num_objects += int(counted.sum())
        self._num_ignored += int(image.ignored.sum())
        self._num_detections += len(detections)
        boxes, class_ids, scores = detections.boxes, detections.class_ids, detections.scores
        found = match_detections(
            boxes, class_ids, scores, image.boxes, image.class_ids, ignored=image.ignored, crowds=image.crowds
        )
        self._objects.add(scores, class_ids, found, image.class_ids[counted])
        self._coco.add(image, boxes, class_ids, scores)
        self._recall.add(image, regions.boxes)
        self._calibration.add(image, regions.boxes, regions.class_probabilities)
        if given_attributes is not None:
            right = found >= 0
            best = detections.attribute_probabilities[right].argmax(axis=1)
            self._matched_boxes.add(best, image.attribute_ids[found[right]])
            known_ids = image.attribute_ids[counted]
            self._given_boxes.add(given_attributes.argmax(axis=1), known_ids)
            count_attribute_detections(self._attributes, given_attributes, image.boxes[counted], known_ids)

    def report(self, settings: DetectionSettings) -> DetectionReport:
        """The report of all photos so far."""
        given = self._given_boxes.figure()
        return DetectionReport(
            num_images=self._num_images,
            num_objects=self._num_objects,
            num_ignored=self._num_ignored,
            num_detections=self._num_detections,
            settings=settings,
            objects=named_precisions(self._objects.result(), self.class_names, self._objects.ends()),
            coco=self._coco.result(),
            attributes=named_precisions(self._attributes.result(), self.attribute_names),
            attribute_accuracy=AttributeAccuracy(
                self._matched_boxes.accuracy,
                self._matched_boxes.num_objects,
                given.value,
                given.items,
                given.low,
                given.high,
                given.chance,
            ),
            region_recall=self._recall.result(),
            calibration=self._calibration.result(),
        )


def _check_detector(detector: Detector, class_names: Sequence[str], attribute_names: Sequence[str]) -> None:
    if any(module.training for module in detector.modules()):
        raise ValueError("the detector is in training mode, in which it gives other results; call its eval() first")
    if len(class_names) != detector.num_classes:
        raise ValueError(
            f"the photos have {len(class_names)} classes, the detector has {detector.num_classes}: it was trained on "
            f"another vocabulary"
        )
    if attribute_names and len(attribute_names) != detector.num_attributes:
        raise ValueError(
            f"the photos have {len(attribute_names)} attributes, the detector has {detector.num_attributes}: it was "
            f"trained on another vocabulary"
        )


def _check_finite(outputs: HeadOutputs, image: LabelledImage) -> None:
    """Raises for NaN of a diverged network: no threshold passes it, so it would look like finding nothing."""
    regions = outputs.regions
    for name, values in (
        ("class scores", regions.class_logits),
        ("box deltas", regions.box_deltas),
        ("attribute scores", regions.attribute_logits),
    ):
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{image.file_name!r}: the detector's {name} are not finite; are its weights damaged?")


@torch.inference_mode()
def _given_attributes(detector: Detector, photo: np.ndarray, image: LabelledImage) -> np.ndarray:
    """(K, A) float32, attribute probabilities of the true boxes of the objects that are not ignored."""
    boxes = image.boxes[~image.ignored]
    if not len(boxes):
        return np.empty((0, detector.num_attributes), np.float32)
    outputs = detector.head_outputs(photo, boxes=boxes)
    _check_finite(outputs, image)
    return attribute_probabilities(outputs.regions.attribute_logits, detector.conventions).cpu().numpy()


def evaluate_photos(detector: Detector, photos: LabelledPhotos, **options: Any) -> DetectionReport:
    """`evaluate_detector` on photos, by the names of their labels."""
    names: dict[str, Any] = {"class_names": photos.class_names, "attribute_names": photos.attribute_names}
    return evaluate_detector(detector, photos.images, photos.root, **names, **options)


def evaluate_folder(
    detector: str,
    photos: LabelledPhotos,
    *,
    device: str = "cpu",
    nms_iou: float = 0.3,
    conventions: Conventions | None = None,
) -> DetectionReport:
    """Evaluates the detector of a folder, see `read_detector_folder` and `evaluate_detector`."""
    folder = read_detector_folder(detector)
    check_same_names(photos, folder.class_names, folder.attribute_names, detector)
    with waiting("loading the detector"):
        model = build_detector(
            folder.config, weights=folder.weights, conventions=conventions or folder.conventions, device=device
        )
    with Progress("judging", len(photos.images), PHOTOS) as progress:
        return evaluate_photos(model, photos, nms_iou=nms_iou, progress=progress.to)
