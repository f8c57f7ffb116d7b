"""What a fine-tuning run trains on and is judged on: the groups of both splits, joined with the store and guarded.

Images that results are reported on are not trained on; trained_photos.py has the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.task_files import MissingFileError
from roibeam.pipelines.finetuning.frame.finetune_request import FinetuneRequest
from roibeam.pipelines.finetuning.frame.shown.joined_groups import (
    JoinedGroups,
    StoreImages,
    check_ids,
    check_told,
    shared_images,
)
from roibeam.pipelines.finetuning.frame.shown.store_pair import StorePair, check_num_boxes
from roibeam.pipelines.finetuning.frame.start.task_start import TaskStart
from roibeam.pipelines.finetuning.own_task_file import is_own
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.task import SPLITS, DownstreamTask, has_target
from roibeam.pipelines.finetuning.trained_photos import (
    PhotoNames,
    check_given_rules,
    check_own_splits,
    check_read_splits,
    other_tasks_leaks,
    photo_names,
    seen_before,
)


@dataclass(frozen=True)
class TaskData:
    """
    Attributes:
        train: groups that are trained on.
        train_files: that they were read from.
        validation: groups that are asked about; None for a task that judges nothing.
        notes: for people.
        names: what images are known by.
    """

    train: JoinedGroups
    train_files: tuple[Path, ...]
    validation: JoinedGroups | None
    notes: tuple[str, ...]
    names: PhotoNames = field(default_factory=PhotoNames)

    @property
    def asked(self) -> Sequence[TaskGroup]:
        return () if self.validation is None else self.validation.groups


def joined_data(
    task: DownstreamTask, store: FeatureStore | None, shown: FeatureStore | StorePair | None, min_match: float
) -> TaskData:
    """The groups of both splits, those whose images the stores have; without a store all of them.

    Raises:
        ValueError: when too few are there, ids come twice, or nobody tells what is right.
    """
    images = None if store is None else StoreImages(store)
    found, files, notes = {}, dict[str, tuple[Path, ...]](), []
    hint = ", or leave them out with a lower --min-match"
    for split in (task.train, *([task.validation] if task.validation else [])):
        what = f"{task.name}, {split}"
        with waiting(f"joining {split} with the store"):
            read = task.read(split)
            files[split] = read.files
            check_ids(task, read.groups, what)
            told, use = (has_target, "trained on") if split == task.train else (task.is_told, "judged")
            check_told(read.groups, told, what, use)
            asked = [group for group in read.groups if group.is_open or split != task.train]
            if images is None:
                found[split] = JoinedGroups(asked, (), 0, 0)
            else:
                found[split] = images.join(asked, what, min_match=min_match, hint=hint)
            if isinstance(shown, StorePair):
                found[split] = shown.with_both(found[split], what, min_match=min_match, hint=hint)
        check_num_boxes(task, found[split].groups, shown)
        notes += [*read.notes, *found[split].notes(what)]
    judged = found.get(task.validation or "")
    if judged is not None and task.judged is not None:
        judged = replace(judged, groups=[task.judged(group) for group in judged.groups])
    return TaskData(found[task.train], files[task.train], judged, tuple(notes))


def guarded_data(
    request: FinetuneRequest,
    task: DownstreamTask,
    store: FeatureStore,
    data: TaskData,
    start: TaskStart,
    *,
    allowed: bool,
) -> tuple[TaskData, list[str]]:
    """The data without images that are to be left out, and notes on what is not held out.

    Args:
        allowed: whether images may be trained on that results are reported on.
    Raises:
        ValueError: where they may not, and one would be.
    """
    called = {**data.train.called, **({} if data.validation is None else data.validation.called)}
    names, trained = photo_names(request.held_out, store, called), data.train.image_ids()
    report = check_given_rules(request.held_out, trained, names, f"{task.name}, {task.train}")
    notes = [] if report is None else report.lines()
    if report is not None and report.leaked:
        before = len(data.train.groups)
        data = replace(data, train=data.train.without(report.leaked))
        notes.append(f"{counted(before - len(data.train.groups), 'group')} of held-out images left out")
        trained = data.train.image_ids()
    notes += _validation_leaks(data, names, start, allowed=allowed)
    rule = task.reported_by or request.task
    notes += other_tasks_leaks(rule, request.data, data.train_files, trained, names)
    if is_own(request.task) or task.reported_by == SPLITS:
        notes += check_read_splits(_other_splits(task), trained, names, allowed=allowed)
    else:
        notes += check_own_splits(rule, request.data, data.train_files, trained, names, allowed=allowed)
    return replace(data, names=names), notes


def _other_splits(task: DownstreamTask) -> dict[str, list[str]]:
    """Images of the splits that a run does not look at otherwise, as far as their files are there."""
    found: dict[str, list[str]] = {}
    for split in task.splits:
        if split not in (task.train, task.validation):
            try:
                found[split] = [image for group in task.read(split).groups for image in group.images]
            except MissingFileError:
                continue  # a split whose file is not there cannot be judged on either
    return found


def _validation_leaks(data: TaskData, names: PhotoNames, start: TaskStart, *, allowed: bool) -> list[str]:
    """What of the validation images was trained on before, by the run that this one starts from.

    Raises:
        ValueError: when this run would train on some.
    """
    if data.validation is None:
        return []
    asked = data.validation.image_ids()
    shared = shared_images(data.train.image_ids(), asked)
    told = f"{len(shared):,} of {counted(len(asked), 'validation image')}" if shared else ""
    if shared and not allowed:
        raise ValueError(
            f"{told} are in the training split too, such as {printable(shared[0], 80)}: what is measured on them is "
            f"not held out; take them out of one split, or say --set data.shared_images=true"
        )
    notes = [f"{told} are trained on: what is measured is not held out"] if shared else []
    return [*notes, *seen_before(start.run, asked, names).notes(start.source, "validation")]
