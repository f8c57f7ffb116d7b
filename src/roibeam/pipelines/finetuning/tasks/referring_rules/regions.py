"""Candidates of a sentence as regions of records: of one store, or of two, detected ones and annotated ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.objects.regions_at_boxes import regions_at_boxes
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.task import JoinedImage
from roibeam.pipelines.finetuning.tasks.candidate_boxes import ANNOTATED, DETECTED
from roibeam.pipelines.finetuning.tasks.referring import STORED_BOXES, ReferringOptions, candidates_for


def stored_regions(group: TaskGroup, boxes: np.ndarray, options: ReferringOptions) -> np.ndarray:
    """(R,) int64, which regions of a record are candidates, of boxes (n, 4) that come from the store."""
    found = candidates_for(group, options, boxes)
    return found.numbers[found.kinds == DETECTED]


def joined_candidates(
    group: TaskGroup, detected: RegionRecord, annotated: RegionRecord, options: ReferringOptions
) -> JoinedImage:
    """Detected candidates, then annotated ones, where a split has these, as ViLBERT's releases join two stores.

    The feature of the whole image is the mean of all detected regions, those that are cut too.

    Args:
        detected, annotated: the records of the photo in the two stores.
    Raises:
        ValueError: for a box of the task that its store does not have.
    """
    from_store = options.boxes == STORED_BOXES
    found = candidates_for(group, options, detected.boxes if from_store else None)
    own, added = found.kinds == DETECTED, found.kinds == ANNOTATED
    first = found.numbers[own] if from_store else regions_at_boxes(detected, found.boxes[own])
    second = regions_at_boxes(annotated, found.boxes[added])
    both = replace(
        detected,
        boxes=np.concatenate([detected.boxes[first], annotated.boxes[second]]),
        features=np.concatenate([detected.features[first], annotated.features[second]]),
        class_ids=np.concatenate([detected.class_ids[first], annotated.class_ids[second]]),
        class_scores=np.concatenate([detected.class_scores[first], annotated.class_scores[second]]),
        attribute_ids=None,
        attribute_scores=None,
        class_distribution=None,
    )
    total = detected.features.astype(np.float32).sum(axis=0)
    whole = total / max(1, detected.num_regions)
    return JoinedImage(both, {place: place for place in range(both.num_regions)}, both.num_regions, whole)
