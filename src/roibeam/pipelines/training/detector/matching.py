"""Which labelled object a box shows: the question that every measure of a detector asks."""

from __future__ import annotations

import numpy as np
import torch

from roibeam.extraction.training.targets import overlaps

NO_OBJECT = -1
IGNORED = -2  # an ignored object or a crowd: neither right nor wrong
AT_LEAST_HALF = float(np.nextafter(0.5, 0.0))  # what is above it is at or above 0.5


def shown_objects(
    boxes: np.ndarray,
    object_boxes: np.ndarray,
    ignored: np.ndarray,
    crowds: np.ndarray,
    *,
    above: float,
    plus_one_sides: bool,
    comparable: np.ndarray | None = None,
) -> np.ndarray:
    """The object that each box overlaps best, whatever other boxes show.

    Ignored objects are compared as the others, by intersection over union (the "difficult" ones of py-faster-rcnn
    lib/datasets/voc_eval.py). A crowd outlines many objects, so a box that shows none of the others and lies in a crowd
    with more than `above` of its own area shows the crowd (pycocotools cocoeval.py).

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
    ours, theirs = (torch.from_numpy(np.asarray(each, np.float64)) for each in (boxes, object_boxes))
    iou, covered = (each.numpy() for each in overlaps(ours, theirs, plus_one_sides=plus_one_sides))
    allowed = np.ones(iou.shape, bool) if comparable is None else comparable
    iou = np.where(allowed & ~crowds, iou, -1.0)
    rows = iou.argmax(axis=1)
    is_shown = iou[np.arange(len(rows)), rows] > above
    in_crowd = (allowed & crowds & (covered > above)).any(axis=1)
    otherwise = np.where(in_crowd, IGNORED, NO_OBJECT)
    return np.where(is_shown, np.where(ignored[rows], IGNORED, rows), otherwise)


def match_detections(
    boxes: np.ndarray,
    class_ids: np.ndarray,
    scores: np.ndarray,
    object_boxes: np.ndarray,
    object_class_ids: np.ndarray,
    ignored: np.ndarray,
    crowds: np.ndarray,
) -> np.ndarray:
    """What each detection of one photo found, as Visual Genome and PASCAL VOC count it.

    Best score first, equals in their order, a detection finds the object of its class that it overlaps most, if by more
    than 0.5. An object is found once: a second detection of it is wrong, even where it overlaps another object too. An
    ignored object takes any number of detections (peteanderson80/bottom-up-attention lib/datasets/vg_eval.py). Boxes
    are x2 - x1 + 1 wide, as there.

    Args:
        boxes, class_ids, scores: (N, 4), (N,) and (N,), the detections.
        object_boxes, object_class_ids, ignored, crowds: (K, 4) and (K,), see `shown_objects`.
    Returns:
        (N,) int64: the row of the object that was found, `NO_OBJECT` for a wrong detection, `IGNORED` for one that does
        not count.
    """
    comparable = class_ids[:, None] == object_class_ids[None, :]
    shown = shown_objects(boxes, object_boxes, ignored, crowds, above=0.5, plus_one_sides=True, comparable=comparable)
    order = np.argsort(-scores, kind="stable")
    by_score = shown[order]
    _, firsts = np.unique(by_score, return_index=True)
    is_first = np.zeros(len(order), bool)
    is_first[firsts] = True
    by_score[(by_score >= 0) & ~is_first] = NO_OBJECT
    found = np.empty_like(shown)
    found[order] = by_score
    return found
