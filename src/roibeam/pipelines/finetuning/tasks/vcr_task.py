"""VCR as a task of the frame: the answer of a question, the rationale of an answer, or both in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from roibeam.pipelines.data.datasets.vcr import NUM_CHOICES
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.metrics.vcr import ChosenRow, best_choice, vcr_measures
from roibeam.pipelines.finetuning.results.vcr_results import VcrScores, write_vcr_results
from roibeam.pipelines.finetuning.rows import CHOICE, PartPieces, PieceCoder, TaskGroup
from roibeam.pipelines.finetuning.scored_tasks import find_file
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction, TaskSplit
from roibeam.pipelines.finetuning.tasks.vcr import (
    ANSWER,
    BOTH,
    RATIONALE,
    VcrOptions,
    group_lengths,
    group_pieces,
    read_vcr_groups,
    vcr_scores,
)
from roibeam.pipelines.finetuning.tasks.vcr_rules.beside import vcr_beside, vcr_told_classes
from roibeam.pipelines.finetuning.tasks.vcr_rules.outlines import region_masks
from roibeam.pipelines.finetuning.tasks.vcr_rules.pieces import EACH_ROW
from roibeam.pipelines.finetuning.tasks.vcr_rules.regions import DETECTED, joined_image, shown_boxes

TRAIN, VALIDATION = "train", "val"
_MAIN = ("Q->AR", "Q->A", "QA->R")  # the first that is there is what a run is judged by


def open_vcr(folder: Path, options: VcrOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """VCR with its official files in `folder`, found by their names; the store has the annotated boxes, in their order.

    Rationales are trained for the right answer. Elsewhere they are asked for each answer, as the leaderboard does, and
    judged for the right one.
    """
    check_vcr(options)
    beside, told = vcr_beside(options), vcr_told_classes(options)
    of_boxes = (None if beside is None else beside.classes, None if told is None else told.of)

    def read(split: str) -> TaskSplit:
        path = find_file(folder, f"{split}.jsonl")
        by_problem = [_groups(path, replace(options, problem=problem), split) for problem in options.problems]
        groups = [group for question in zip(*by_problem, strict=True) for group in question]
        for classes in filter(None, of_boxes):
            for group in groups:
                classes(group)  # an object of an unknown class is told before anything is trained
        return TaskSplit(groups, (path,))

    def judged_rows(group: TaskGroup) -> tuple[slice, int | None]:
        first = 0 if len(group.rows) == NUM_CHOICES else NUM_CHOICES * group.facts[ANSWER]
        return slice(first, first + NUM_CHOICES), _right(group)

    def answers(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Iterator[tuple[str, VcrScores]]:
        for group, each in zip(groups, said, strict=True):
            found = {group.id: each.scores}
            chosen, reasons = (found, None) if group.facts["problem"] == ANSWER else (None, found)
            yield from vcr_scores(chosen, reasons, [group.id])

    def pieces(group: TaskGroup, coder: PieceCoder, separator: int | None) -> list[list[PartPieces]]:
        return group_pieces(group, coder, options, separator=separator)

    def lengths(group: TaskGroup, coder: PieceCoder, separator: int | None) -> list[tuple[int, int]]:
        return group_lengths(group, coder, options, separator=separator)

    most = max(map(options.pieces_of, options.problems))
    is_cut = bool(most or options.pieces_twice)
    has_two_stores = options.boxes == DETECTED
    return DownstreamTask(
        name="vcr",
        form=CHOICE,
        loss=options.loss,
        read=read,
        train=TRAIN,
        validation=VALIDATION,
        judge=judge_vcr,
        answers=answers,
        write=write_vcr_entries,
        is_told=lambda group: _right(group) is not None and group.facts[ANSWER] is not None,
        judged_rows=judged_rows,
        regions=None if has_two_stores else shown_boxes(options.max_boxes),
        joined=joined_image(options.max_boxes) if has_two_stores else None,
        num_boxes=lambda group: len(group.facts["objects"]),
        pieces=pieces if is_cut else None,
        lengths=lengths if is_cut else None,
        max_pieces=most,
        turns=(lambda group: str(group.facts["problem"])) if options.problem == BOTH else None,
        updates=options.updates,
        loss_scales=dict(zip((ANSWER, RATIONALE), options.loss_scales, strict=True)),
        judged=rows_of_right_answer,
        tells=options.problems,
        beside=beside,
        whole_region=options.whole_region,
        grounding=options.grounding,
        told_classes=told,
        mirrored=lambda group: replace(group, mirrored=True),
        outlines=region_masks,
    )


def _right(group: TaskGroup) -> int | None:
    """The number of the choice that is right; None where nobody tells."""
    right: int | None = group.facts[group.facts["problem"]]
    return right


def rows_of_right_answer(group: TaskGroup) -> TaskGroup:
    """The group with the four rationales that are judged, where it asks for those of each answer."""
    right = group.facts[ANSWER]
    if len(group.rows) == NUM_CHOICES or right is None:
        return group
    return replace(group, rows=group.rows[right * NUM_CHOICES : (right + 1) * NUM_CHOICES])


def judge_vcr(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Mapping[str, Measure]:
    """The measures of what is told, the main one first; "Q->AR" over questions of which both problems are asked."""
    taken: dict[str, dict[str, int]] = {}
    facts: dict[str, TaskGroup] = {}
    for group, each in zip(groups, said, strict=True):
        if None in (group.facts[ANSWER], group.facts[RATIONALE]):
            raise ValueError(f"{group.id}: no label; nothing is known to be right in a split without labels")
        scores = each.scores
        if len(scores) != NUM_CHOICES:  # of four rationales for each answer
            scores = scores.reshape(NUM_CHOICES, NUM_CHOICES)[group.facts[ANSWER]]
        taken.setdefault(group.id, {})[group.facts["problem"]] = best_choice(scores.tolist())
        facts[group.id] = group
    rows = (
        ChosenRow(
            own.get(ANSWER), own.get(RATIONALE), facts[name].facts[ANSWER], facts[name].facts[RATIONALE],
            facts[name].images[0],
        )
        for name, own in taken.items()
    )  # fmt: skip
    measures = vcr_measures(rows)
    return {name: measures[name] for name in _MAIN if name in measures}


def write_vcr_entries(
    path: Path, entries: Sequence[tuple[str, tuple[Sequence[float], Sequence[Sequence[float]]]]]
) -> None:
    """Entries of one model or of two, as they come back from the parts of a prediction: lists in place of tuples.

    Raises:
        ValueError: as `write_vcr_results`.
    """
    answers: dict[str, tuple[float, ...]] = {}
    rationales: dict[str, tuple[tuple[float, ...], ...]] = {}
    for name, (own, reasons) in entries:
        if own:
            answers[name] = tuple(own)
        if reasons:
            rationales[name] = tuple(map(tuple, reasons))
    names = dict.fromkeys(name for name, _ in entries)
    write_vcr_results(path, ((name, VcrScores(answers.get(name, ()), rationales.get(name, ()))) for name in names))


def _groups(path: Path, options: VcrOptions, split: str) -> list[TaskGroup]:
    """Of one problem."""
    groups = list(read_vcr_groups(str(path), options, told=True))
    if options.problem == ANSWER or split == TRAIN:
        return groups
    asked = read_vcr_groups(str(path), options, told=False)
    return [replace(every, facts=told.facts) for told, every in zip(groups, asked, strict=True)]


def check_vcr(options: VcrOptions) -> None:
    """Raises ValueError for a setting that would change nothing."""
    if options.rationale_pieces and (options.problem == ANSWER or not options.max_pieces):
        raise ValueError("rationale_pieces is of rationales beside answers of max_pieces; set vcr.max_pieces alone")
    if not options.max_pieces and (options.truncation != EACH_ROW or not options.cut_untold):
        raise ValueError("truncation and cut_untold say how vcr.max_pieces is kept; set that too, such as 61 of 64")
    if options.updates != "step" and options.problem != BOTH:
        raise ValueError(f"updates '{options.updates}': only with problem 'both'; leave it at step")
    if set(options.loss_scales) != {1.0} and options.problem != BOTH:
        raise ValueError("loss_scales are of both problems beside each other; set vcr.problem=both, or leave them out")
