"""RefCOCO, RefCOCO+ and RefCOCOg as tasks of the frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.results.referring_results import result_entry, write_referring_results
from roibeam.pipelines.finetuning.rows import REGION, TaskGroup
from roibeam.pipelines.finetuning.task import DownstreamTask, JoinedImage, Prediction, TaskSplit
from roibeam.pipelines.finetuning.tasks.candidate_boxes import NONE
from roibeam.pipelines.finetuning.tasks.referring import (
    INPUT,
    SHOWN_REGIONS,
    SPLITS,
    STORED_BOXES,
    TRAIN,
    ReferringOptions,
    chosen_boxes,
    mirrored_group,
    missed_objects,
    read_referring,
    referring_groups,
    referring_scores,
)
from roibeam.pipelines.finetuning.tasks.referring_rules.regions import joined_candidates, stored_regions


def open_referring(name: str) -> Callable[[Path, ReferringOptions, Sequence[str] | None], DownstreamTask]:
    """What opens the data set of this name, one of `SPLITS`."""

    def open_task(folder: Path, options: ReferringOptions, labels: Sequence[str] | None) -> DownstreamTask:
        files = read_referring(folder, name, options)

        def read(split: str) -> TaskSplit:
            groups = referring_groups(files, split, options)
            missed = missed_objects(groups, options)
            return TaskSplit(groups, notes=(*files.notes, *((f"{split}: {missed}",) if missed else ())))

        def judge(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Mapping[str, Measure]:
            return referring_scores(groups, said, options)

        def answers(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
            return map(result_entry, chosen_boxes(groups, said))

        def regions(group: TaskGroup, image: int, record: RegionRecord) -> np.ndarray:
            return stored_regions(group, record.boxes, options)

        def joined(group: TaskGroup, image: int, record: RegionRecord, annotated: RegionRecord) -> JoinedImage:
            return joined_candidates(group, record, annotated, options)

        return DownstreamTask(
            name=name,
            form=REGION,
            joined=joined if options.annotated_in_training else None,
            joins_training_alone=True,
            gives_boxes=options.boxes != STORED_BOXES,
            whole_image=options.whole_image != NONE,
            measured_in_input=options.overlap_in == INPUT,
            regions=regions if options.boxes == STORED_BOXES and options.max_boxes else None,
            loss=options.loss,
            read=read,
            train=TRAIN,
            validation="val",
            judge=judge,
            answers=answers,
            write=write_referring_results,
            splits=SPLITS[name],
            mirrored=lambda group: replace(mirrored_group(group, options), mirrored=True),
        )

    return open_task


def check_referring(options: ReferringOptions) -> None:
    """Raises ValueError for what no run can do."""
    if options.image_feature != SHOWN_REGIONS:
        raise ValueError(
            "image_feature: leave it at shown; on stored features --set layout.whole_image=all makes the mean of all "
            "regions of --store, and from photos --set end_to_end.whole_image says what the whole image is"
        )


def check_stored_referring(options: ReferringOptions) -> None:
    """Raises ValueError for what a run on stored features cannot do."""
    if options.overlap_in == INPUT:
        raise ValueError(
            "overlap_in: stored features have no network input to measure in; leave it at photo, or train from photos "
            "with --end-to-end"
        )
