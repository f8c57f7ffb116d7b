"""Which of the boxes of a photo a sentence is given, as published codes choose among detections.

Boxes are x, y, width, height in pixels; detections come in the order of their det_id. Of equal scores the first wins.
"""

from __future__ import annotations

from collections.abc import Sequence

from roibeam.pipelines.finetuning.metrics.referring import Box
from roibeam.pipelines.finetuning.metrics.vcr import best_choice


def among_detections(detections: Sequence[Box], scores: Sequence[float]) -> Box | None:
    """MAttNet and UNITER: a detection; None where there is none, which is a miss."""
    return detections[best_choice(scores)] if len(detections) else None


def among_clamped(
    detections: Sequence[Box], scores: Sequence[float], whole_image: float, *, image_hw: tuple[int, int]
) -> Box:
    """VL-BERT: the whole photo (0, 0, w - 1, h - 1) first, then detections whose corners are clamped to it."""
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
    """ViLBERT: slot 0 is the whole photo (0, 0, w, h), the others are detections; the slot chosen, and its box."""
    height, width = image_hw
    slot = best_choice([whole_image, *scores])
    return slot, detections[slot - 1] if slot else (0.0, 0.0, float(width), float(height))
