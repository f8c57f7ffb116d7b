"""RefCOCO, RefCOCO+ and RefCOCOg as tasks of a run, with candidates from regions of one store or two.

Of two stores one has detected regions, the other annotated ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.record_regions import regions_at_boxes
from roibeam.pipelines.finetuning.metrics.referring import result_entry, write_referring_results
from roibeam.pipelines.finetuning.rows import REGION, TaskGroup
from roibeam.pipelines.finetuning.task import DownstreamTask, JoinedImage, TaskSplit
from roibeam.pipelines.finetuning.tasks.referring import (
    ANNOTATED,
    DETECTED,
    INPUT,
    NONE,
    SHOWN_REGIONS,
    SPLITS,
    STORED_BOXES,
    TRAIN,
    ReferringOptions,
    candidates_for,
    chosen_boxes,
    mirrored_group,
    missed_objects,
    read_referring,
    referring_groups,
    referring_scores,
)


def stored_regions(group: TaskGroup, boxes: np.ndarray, options: ReferringOptions) -> np.ndarray:
    """(R,) int64, regions of a record that are candidates, for boxes (n, 4) of the store."""
    found = candidates_for(group, options, boxes)
    return found.numbers[found.kinds == DETECTED]


def joined_candidates(
    group: TaskGroup, detected: RegionRecord, annotated: RegionRecord, options: ReferringOptions
) -> JoinedImage:
    """Joins detected candidates and, if the split has some, annotated ones, as ViLBERT's releases join two stores.

    The feature of the whole image is the mean of all detected regions, those that are cut too.

    Args:
        detected, annotated: the records of the photo in the two stores.
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


def open_referring(name: str) -> Callable[[Path, ReferringOptions, Sequence[str] | None], DownstreamTask]:
    """Function that opens the data set of a name, a key of `SPLITS`."""

    def open_task(folder: Path, options: ReferringOptions, labels: Sequence[str] | None) -> DownstreamTask:
        files = read_referring(folder, name, options)

        def read(split: str) -> TaskSplit:
            groups = referring_groups(files, split, options)
            missed = missed_objects(groups, options)
            return TaskSplit(groups, notes=(*files.notes, *((f"{split}: {missed}",) if missed else ())))

        return DownstreamTask(
            name=name,
            form=REGION,
            joined=(lambda group, image, record, annotated: joined_candidates(group, record, annotated, options))
            if options.annotated_in_training
            else None,
            joins_training_alone=True,
            gives_boxes=options.boxes != STORED_BOXES,
            whole_image=options.whole_image != NONE,
            measured_in_input=options.overlap_in == INPUT,
            regions=(lambda group, image, record: stored_regions(group, record.boxes, options))
            if options.boxes == STORED_BOXES and options.max_boxes
            else None,
            loss=options.loss,
            read=read,
            train=TRAIN,
            validation="val",
            judge=lambda groups, predictions: referring_scores(groups, predictions, options),
            answers=lambda groups, predictions: map(result_entry, chosen_boxes(groups, predictions)),
            write=write_referring_results,
            splits=SPLITS[name],
            mirrored=lambda group: replace(mirrored_group(group, options), mirrored=True),
        )

    return open_task


def check_referring(options: ReferringOptions) -> None:
    """Raises ValueError for settings that no run can use."""
    if options.image_feature != SHOWN_REGIONS:
        raise ValueError(
            "image_feature: leave it at shown; on stored features --set layout.whole_image=all makes the mean of all "
            "regions of --store, and from photos --set end_to_end.whole_image chooses the whole image"
        )


def check_stored_referring(options: ReferringOptions) -> None:
    """Raises ValueError for settings that a run on stored features cannot use."""
    if options.overlap_in == INPUT:
        raise ValueError(
            "overlap_in: stored features have no network input to measure in; leave it at photo, or train from photos "
            "with --end-to-end"
        )
