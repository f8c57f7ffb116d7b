"""What a detector finds in a photo, class by class: detections as detection metrics take them.

The regions of a store are something else: one box for each proposal, and at least ten of them (`SelectionPolicy`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.detector import HeadOutputs
from roibeam.extraction.network.boxes import clip_boxes, decode_deltas
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.suppression import suppress


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
    """Detections as py-faster-rcnn's test makes them (lib/fast_rcnn/test.py::test_net of
    peteanderson80/bottom-up-attention; detectron2 modeling/roi_heads/fast_rcnn.py does the same).

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
    """(n, A + 1) logits with "no attribute" last -> (n, A) probabilities, beside "no attribute" or without it, as
    `Conventions.attribute_softmax` says."""
    if conventions.attribute_softmax == "all":
        return logits.softmax(dim=1)[:, :-1]
    return logits[:, :-1].softmax(dim=1)


def _moved_boxes(outputs: HeadOutputs, conventions: Conventions, proposal_ids: Tensor, class_ids: Tensor) -> Tensor:
    """(n, 4) the proposals moved by the deltas of these classes, clipped, in the pixels of the regression."""
    network_input = outputs.network_input
    boxes, image_hw = outputs.proposals.boxes, network_input.input_hw
    if conventions.regression_pixels == "photo":
        boxes, image_hw = network_input.scale.to_photo(boxes), network_input.image_hw
    moved = decode_deltas(
        boxes[proposal_ids],
        outputs.regions.box_deltas[proposal_ids, class_ids],
        weights=conventions.region_delta_weights,
        delta_cap=conventions.delta_cap,
        plus_one_sides=conventions.box_sides == "x2-x1+1",
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
