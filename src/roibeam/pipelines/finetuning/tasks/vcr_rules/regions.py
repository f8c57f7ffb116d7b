"""Which regions of a VCR image are shown, and of which a class is to be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.task import JoinedImage

ANNOTATED, DETECTED, NAMED = "annotated", "detected", "named"
BOXES = (ANNOTATED, DETECTED, NAMED)
NO_LOSS, MASKED, SHOWN = "none", "masked", "shown"
OBJECT_LOSSES = (NO_LOSS, MASKED, SHOWN)
NOT_ASKED = -100  # as IGNORE_INDEX of model/inputs.py
BACKGROUND = 0  # class of the whole image


class JoinedRegions(NamedTuple):
    """Detected regions, then annotated ones.

    Attributes:
        features: (R, D) float32; boxes: (R, 4) float32, x1 y1 x2 y2 in pixels.
        num_detected: how many of them were detected.
        whole: (D,) float32, feature of the whole image.
    """

    features: np.ndarray
    boxes: np.ndarray
    num_detected: int
    whole: np.ndarray


def join_regions(
    detected: tuple[np.ndarray, np.ndarray], annotated: tuple[np.ndarray, np.ndarray], max_regions: int = 0
) -> JoinedRegions:
    """Regions of two stores as both ViLBERT releases and InterBERT join them (vcr_dataset.py:364).

    Args:
        detected, annotated: (R, D) features and (R, 4) boxes of each store.
        max_regions: the whole image counted; 0 = all. Detected regions are cut from the end, then annotated ones.
    Returns:
        The whole image's feature is the mean of both stores' means, each with its number of regions, plus one for the
        whole image itself, as weight; of all regions, those that are cut too.
    """
    means, weights = [], []
    for features, _ in (detected, annotated):
        weights.append(len(features) + 1)
        means.append(features.sum(axis=0, dtype=np.float64) / max(len(features), 1))
    whole = sum(mean * weight for mean, weight in zip(means, weights, strict=True)) / sum(weights)
    room = max_regions - 1 if max_regions else sum(len(features) for features, _ in (detected, annotated))
    kept = min(len(annotated[0]), room)
    first = min(len(detected[0]), room - kept)
    return JoinedRegions(
        np.concatenate([detected[0][:first], annotated[0][:kept]]).astype(np.float32),
        np.concatenate([detected[1][:first], annotated[1][:kept]]).astype(np.float32),
        first,
        np.asarray(whole, np.float32),
    )


def shown_boxes(max_regions: int) -> Callable[[TaskGroup, int, RegionRecord], np.ndarray]:
    """Of a store of annotated boxes, numbers of those that are shown, in their order.

    Args:
        max_regions: the whole image counted; 0 = all. Boxes are cut from the end.
    """

    def regions(group: TaskGroup, image: int, record: RegionRecord) -> np.ndarray:
        _check_boxes(group, record)
        shown = [number for number in group.facts["shown"] if number < record.num_regions]
        return np.array(shown[: max_regions - 1] if max_regions else shown, np.int64)

    return regions


def joined_image(max_regions: int) -> Callable[[TaskGroup, int, RegionRecord, RegionRecord], JoinedImage]:
    """Detected regions, then all annotated boxes, see `join_regions`."""

    def joined(group: TaskGroup, image: int, detected: RegionRecord, annotated: RegionRecord) -> JoinedImage:
        _check_boxes(group, annotated)
        own = annotated.features.astype(np.float32), annotated.boxes
        found = join_regions((detected.features.astype(np.float32), detected.boxes), own, max_regions)
        first, kept = found.num_detected, len(found.boxes) - found.num_detected
        record = replace(
            detected,
            boxes=found.boxes,
            features=found.features,
            class_ids=np.concatenate([detected.class_ids[:first], annotated.class_ids[:kept]]),
            class_scores=np.concatenate([detected.class_scores[:first], annotated.class_scores[:kept]]),
            attribute_ids=None,
            attribute_scores=None,
            class_distribution=None,
            image_feature=None if detected.image_feature is None else detected.image_feature.astype(np.float32),
        )
        named = {number: first + number for number in range(kept)}
        return JoinedImage(record, named, annotated.num_regions, found.whole)

    return joined


def _check_boxes(group: TaskGroup, record: RegionRecord) -> None:
    """Raises ValueError for a record of other boxes than the question's."""
    if record.num_regions != len(group.facts["objects"]) and not group.swapped:
        raise ValueError(
            f"{group.id}: record {record.image_id!r} has {record.num_regions} regions, VCR names "
            f"{len(group.facts['objects'])} boxes; extract with --boxes, from VCR's own files"
        )


def object_targets(classes: np.ndarray, loss: str, masked: np.ndarray | None = None) -> np.ndarray:
    """(1 + R,) int64, the class that is to be told of the whole image and of each region; NOT_ASKED for none.

    Args:
        classes: (R,), from `object_classes`.
        loss: MASKED: of the regions that are hidden (arXiv:1908.08530v1, section 4.2). SHOWN: of all regions and of the
            whole image, whose class is the background (VL-BERT's release, vcr/modules/resnet_vlbert_for_vcr.py:394).
        masked: (R,) bool, which are hidden; for MASKED.
    Raises:
        ValueError: for MASKED without `masked`.
    """
    every = np.concatenate([[BACKGROUND], classes])
    if loss == SHOWN:
        return every
    asked = np.zeros(len(every), bool)
    if loss == MASKED:
        if masked is None or np.shape(masked) != np.shape(classes):
            raise ValueError(f"object loss of masked regions: expected which of {len(classes)} are hidden")
        asked[1:] = masked
    return np.where(asked, every, NOT_ASKED)
