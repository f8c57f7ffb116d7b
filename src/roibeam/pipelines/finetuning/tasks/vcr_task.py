"""VCR as a task of the frame: the answer of a question, or the rationale of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.results.vcr_results import VcrScores, write_vcr_results
from roibeam.pipelines.finetuning.rows import CHOICE, TaskGroup
from roibeam.pipelines.finetuning.scored_tasks import find_file
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction, TaskSplit
from roibeam.pipelines.finetuning.tasks.vcr import ANSWER, VcrOptions, choice_measure, read_vcr_groups, vcr_scores
from roibeam.pipelines.finetuning.tasks.vcr_rules.outlines import region_masks
from roibeam.pipelines.finetuning.tasks.vcr_rules.pieces import EACH_ROW
from roibeam.pipelines.finetuning.tasks.vcr_rules.regions import DETECTED, NO_LOSS
from roibeam.pipelines.sources.datasets.vcr import NUM_CHOICES

TRAIN, VALIDATION = "train", "val"


def open_vcr(folder: Path, options: VcrOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """VCR with its official files in `folder`, found by their names; the store has the annotated boxes, in their order.

    Rationales are trained for the right answer. Elsewhere they are asked for each answer, as the leaderboard does, and
    judged for the right one.
    """
    _check(options)

    def read(split: str) -> TaskSplit:
        path = find_file(folder, f"{split}.jsonl")
        groups = list(read_vcr_groups(str(path), options, told=True))
        if options.problem != ANSWER and split != TRAIN:
            asked = read_vcr_groups(str(path), options, told=False)
            groups = [replace(every, facts=told.facts) for told, every in zip(groups, asked, strict=True)]
        return TaskSplit(groups, (path,))

    def judge(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Mapping[str, Measure]:
        told = [replace(group, target=group.facts[options.problem]) for group in groups]
        scores = [_of_right_answer(group, each.scores) for group, each in zip(told, said, strict=True)]
        measure = choice_measure(told, scores, options)
        return {measure.name: measure}

    def answers(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Iterator[tuple[str, VcrScores]]:
        found = {group.id: each.scores for group, each in zip(groups, said, strict=True)}
        names = [group.id for group in groups]
        return vcr_scores(found, None, names) if options.problem == ANSWER else vcr_scores(None, found, names)

    def regions(group: TaskGroup, image: int, record: RegionRecord) -> np.ndarray:
        if record.num_regions != len(group.facts["objects"]):
            raise ValueError(
                f"{group.id}: record {record.image_id!r} has {record.num_regions} regions, VCR names "
                f"{len(group.facts['objects'])} boxes; extract with --boxes, from VCR's own files"
            )
        return np.array(group.facts["shown"], np.int64)

    return DownstreamTask(
        name="vcr",
        form=CHOICE,
        loss=options.loss,
        read=read,
        train=TRAIN,
        validation=VALIDATION,
        judge=judge,
        answers=answers,
        write=_write,
        regions=regions,
        mirrored=lambda group: replace(group, mirrored=True),
        outlines=region_masks,
    )


def _write(path: Path, entries: Sequence[tuple[str, tuple[Sequence[float], Sequence[Sequence[float]]]]]) -> None:
    """Entries as they come back from the parts of a prediction: lists in place of tuples."""
    rows = ((name, VcrScores(tuple(own), tuple(map(tuple, reasons)))) for name, (own, reasons) in entries)
    write_vcr_results(path, rows)


def _of_right_answer(group: TaskGroup, scores: np.ndarray) -> np.ndarray:
    """(4,) of four scores, or of those of four rationales for each answer."""
    if len(scores) == NUM_CHOICES:
        return scores
    return scores.reshape(NUM_CHOICES, NUM_CHOICES)[group.facts[ANSWER]]


def _check(options: VcrOptions) -> None:
    """Raises ValueError for what runs on stored features cannot do."""
    if options.boxes == DETECTED:
        raise ValueError("boxes: detected regions of a second store are not joined yet; leave it at annotated")
    if options.object_loss != NO_LOSS:
        raise ValueError("object_loss: classes of regions are not yet learned beside the choice; leave it at none")
    if options.truncation != EACH_ROW or options.pieces_twice or options.max_pieces:
        raise ValueError(
            "truncation, pieces_twice and max_pieces: texts are not yet cut by the releases' rules; leave them and set "
            "layout.max_pieces"
        )
