"""The family "metrics_refcoco": overlap, threshold, and the choice among detections of four codes."""

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from harness.metrics.metric_case import MetricCase, Ours, caught, metric_family
from harness.tolerances import METRICS
from roibeam.pipelines.data.datasets.refer import ReferringSentence, read_refer
from roibeam.pipelines.finetuning.metrics.referring import BOX_RULES, Box, corner_iou, corner_iou_float32, pixel_iou
from roibeam.pipelines.finetuning.metrics.vcr import best_choice


def plain_iou(first: Box, second: Box) -> float:
    """IoU of boxes as areas of the plane, nothing added. Raises ValueError for two boxes without area."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = first, second
    wide, high = min(x1 + w1, x2 + w2) - max(x1, x2), min(y1 + h1, y2 + h2) - max(y1, y2)
    shared = max(wide, 0.0) * max(high, 0.0)
    union = w1 * h1 + w2 * h2 - shared
    if union == 0:
        raise ValueError("two boxes without area have no overlap that can be measured")
    return float(shared / union)


def among_clamped(
    detections: Sequence[Box], scores: Sequence[float], whole_image: float, *, image_hw: tuple[int, int]
) -> Box:
    """The chosen box by VL-BERT: of the whole photo (0, 0, w - 1, h - 1) and detections clamped to it."""
    height, width = image_hw
    candidates: list[Box] = [(0.0, 0.0, width - 1.0, height - 1.0)]
    for x, y, w, h in detections:
        left, right = (min(max(each, 0.0), width - 1.0) for each in (x, x + w))
        top, bottom = (min(max(each, 0.0), height - 1.0) for each in (y, y + h))
        candidates.append((left, top, right - left, bottom - top))
    return candidates[best_choice([whole_image, *scores])]


def among_slots(
    detections: Sequence[Box], scores: Sequence[float], whole_image: float, *, image_hw: tuple[int, int]
) -> tuple[int, Box]:
    """The chosen slot and its box by ViLBERT: slot 0 is the whole photo (0, 0, w, h), the others are detections."""
    height, width = image_hw
    slot = best_choice([whole_image, *scores])
    return slot, detections[slot - 1] if slot else (0.0, 0.0, float(width), float(height))


_OVERLAPS = {
    "refer_mattnet_uniter_float64": pixel_iou,
    "vlbert_evaluation_float64": corner_iou,
    "vlbert_training_label_float32": corner_iou_float32,
    "vilbert_float32": corner_iou_float32,
    "plain_no_plus_one": plain_iou,
}
_THRESHOLDS = {
    "refer_demo_ge": "refer",
    "mattnet_ge": "refer",
    "uniter_gt": "uniter",
    "vlbert_evaluation_ge": "vl-bert",
    "vlbert_training_label_gt": "vl-bert-label",
    "vilbert_gt": "vilbert",
}
_CODES = ("mattnet", "uniter", "vlbert", "vilbert")


def _overlaps_and_hits(case: MetricCase) -> Ours:
    boxes = case.content("boxes")
    pairs = list(zip(boxes["a_xywh"], boxes["b_xywh"], strict=True))
    overlaps = {n: [caught(functools.partial(iou, *pair)) for pair in pairs] for n, iou in _OVERLAPS.items()}
    hits = {name: [BOX_RULES[rule].hits(*pair) for pair in pairs] for name, rule in _THRESHOLDS.items()}
    return {**overlaps, **hits, "accuracy": {name: sum(each) / len(each) for name, each in hits.items()}}


def _detected(case: MetricCase) -> Ours:
    sentences = list(read_refer(str(case.file("refs")), str(case.file("instances"))))
    images = {each["id"]: (each["height"], each["width"]) for each in case.content("instances")["images"]}
    detections: dict[int, list[Box]] = defaultdict(list)
    for each in sorted(case.content("detections"), key=lambda each: each["det_id"]):
        detections[each["image_id"]].append(each["box"])
    scores = case.content("scores")
    rows, bounds = [], []
    for each in sentences:
        boxes = detections[each.image_id]
        rows.append(_row(each, boxes, scores[str(each.sent_id)], images[each.image_id]))
        bounds.append(any(BOX_RULES["refer"].hits(box, each.box) for box in boxes))
    splits = [*dict.fromkeys(each.split for each in sentences), "all"]
    by_split = {split: [row for row in rows if split in (row["split"], "all")] for split in splits}
    return {
        "sentences": {split: len(each) for split, each in by_split.items()},
        "accuracy": {
            code: {s: sum(row[f"{code}_hit"] for row in each) / len(each) for s, each in by_split.items()}
            for code in _CODES
        },
        "upper_bound_any_detection_mattnet_rule": sum(bounds) / len(bounds),
        "rows": rows,
    }


def _row(each: ReferringSentence, boxes: Sequence[Box], scores: dict[str, Any], hw: tuple[int, int]) -> dict[str, Any]:
    whole, of_boxes = scores["whole_image"], scores["detections"]
    detected = boxes[best_choice(of_boxes)] if len(boxes) else None  # by MAttNet and UNITER; None is a miss
    clamped = among_clamped(boxes, of_boxes, whole, image_hw=hw)
    slot, in_slot = among_slots(boxes, of_boxes, whole, image_hw=hw)
    x, y, width, height = clamped
    return {
        "sent_id": each.sent_id,
        "ref_id": each.ref_id,
        "split": each.split,
        "mattnet_box": None if detected is None else list(detected),
        "mattnet_hit": detected is not None and BOX_RULES["refer"].hits(detected, each.box),
        "uniter_hit": detected is not None and BOX_RULES["uniter"].hits(detected, each.box),
        "vlbert_box_xyxy": [x, y, x + width, y + height],
        "vlbert_hit": BOX_RULES["vl-bert"].hits(clamped, each.box),
        "vilbert_slot": slot,
        "vilbert_iou": corner_iou_float32(in_slot, each.box),
        "vilbert_hit": BOX_RULES["vilbert"].hits(in_slot, each.box),
    }


_KINDS_OF_CASE: dict[str, Callable[[MetricCase], Ours]] = {"boxes": _overlaps_and_hits, "detections": _detected}


def _tolerance(name: str) -> float:
    if name == "accuracy":
        return METRICS.box_accuracies
    return METRICS.float32 if name.endswith("float32") or name == "rows" else METRICS.exact


BOX_METRICS = metric_family("metrics_refcoco", _KINDS_OF_CASE, _tolerance, marks=frozenset({"boxes", "detections"}))
