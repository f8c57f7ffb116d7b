"""Data of a task's run: groups of both splits joined with one store of regions or two, and guarded against leaks.

A second store has a task's own boxes, as ViLBERT reads VCR's images. Groups without their regions, because the store
lacks one of their images, can still be predicted. Images that results are reported on are not trained on;
held_out_images.py has the rules.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.record.fingerprint import meaning_difference
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.captions.corpus import reader
from roibeam.pipelines.data.datasets.rows import MissingFileError
from roibeam.pipelines.data.image_identity import Key, image_keys
from roibeam.pipelines.data.image_table import ImageFinder
from roibeam.pipelines.finetuning.held_out_images import (
    PhotoNames,
    check_given_rules,
    check_own_splits,
    check_read_splits,
    other_tasks_leaks,
    photo_names,
    refuse_shared,
    seen_before,
)
from roibeam.pipelines.finetuning.metrics.measure import check_row_ids
from roibeam.pipelines.finetuning.requests import FinetuneRequest
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.run.task_start import TaskStart
from roibeam.pipelines.finetuning.scored_tasks import is_own
from roibeam.pipelines.finetuning.task import SPLITS, DownstreamTask, has_target

_NAMED = 3


@dataclass(frozen=True)
class JoinedGroups:
    """
    Attributes:
        groups: those whose images are all there, with the ids that the store has.
        missing: different images that are not there, by the names that the task has.
        num_images: number of different images that the task names.
        called: id in the store -> name in the task, of images with two names.
    """

    groups: Sequence[TaskGroup]
    missing: tuple[str, ...]
    num_images: int
    left_out: int
    called: Mapping[str, str] = field(default_factory=dict)

    def notes(self, what: str) -> list[str]:
        """A line for people if something is missing."""
        if not self.missing:
            return []
        names = ", ".join(printable(name, 60) for name in self.missing[:_NAMED])
        return [
            f"{what}: {plural(self.left_out, 'group')} left out: the store lacks {len(self.missing):,} of "
            f"{plural(self.num_images, 'image')}, such as {names}"
        ]

    def without(self, image_ids: Iterable[str]) -> JoinedGroups:
        dropped = set(image_ids)
        return replace(self, groups=[group for group in self.groups if not dropped & set(group.images)])

    def image_ids(self) -> list[str]:
        """Different images, in the order of the groups."""
        return list(dict.fromkeys(image for group in self.groups for image in group.images))


class StoreImages:
    """Finds the images of tasks in a store, by the rules that captions are joined by (`ImageFinder`)."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._finder: ImageFinder | None = None
        self._found: dict[str, str | None] = {}

    def join(self, groups: Sequence[TaskGroup], what: str, *, min_match: float, hint: str = "") -> JoinedGroups:
        """
        Args:
            min_match: least share of the images that the store must have, 0..1.
            hint: what else could be done, for the end of an error.
        Raises:
            ValueError: when it has fewer, or not one of them.
        """
        kept = []
        names = dict.fromkeys(image for group in groups if group.is_open for image in group.images)
        missing = tuple(name for name in names if self.id_of(name) is None)
        for group in groups:
            if not group.is_open:
                kept.append(group)
                continue
            ids = [self.id_of(image) for image in group.images]
            if None not in ids:
                kept.append(replace(group, images=tuple(str(each) for each in ids)))
        called = {own: name for name in names if (own := self.id_of(name)) is not None and own != name}
        joined = JoinedGroups(kept, missing, len(names), len(groups) - len(kept), called)
        found = len(names) - len(missing)
        if not kept or found < min_match * len(names):
            named = ", ".join(printable(name, 60) for name in missing[:_NAMED])
            raise ValueError(
                f"{what}: store {self._store.path} has {found:,} of {plural(len(names), 'image')}; missing are "
                f"{named}; extract them too{hint}"
            )
        return joined

    def id_of(self, name: str) -> str | None:
        """Id of an image in the store; None if it is missing."""
        if name not in self._found:
            if name in self._store:
                self._found[name] = name
            else:
                self._finder = self._finder or ImageFinder(self._store.ids())
                self._found[name] = self._finder.find(name)
        return self._found[name]


def shared_images(train: Iterable[str], validation: Iterable[str]) -> list[str]:
    """Images of the validation split that are trained on, under any name."""
    trained: set[Key] = {key for image in train for key in image_keys(image, None)}
    return [image for image in validation if trained & set(image_keys(image, None))]


def check_ids(task: DownstreamTask, groups: Sequence[TaskGroup], what: str) -> None:
    """Raises ValueError where two groups of a problem have one id: their predictions could not be distinguished."""
    ids = [group.id if task.turns is None else f"{group.id}, {task.turns(group)}" for group in groups]
    check_row_ids(what, ids, unit="id")


def check_labels(groups: Sequence[TaskGroup], has_label: Callable[[TaskGroup], bool], what: str, use: str) -> None:
    """Raises ValueError for a group without a label in a split that is trained on, or judged."""
    unlabelled = [group.id for group in groups if not has_label(group)]
    if unlabelled:
        raise ValueError(
            f"{what}: no label for {plural(len(unlabelled), 'row')} of {len(groups):,} (first: "
            f"{printable(unlabelled[0], 80)}), and this split is {use}"
        )


class StorePair:
    """Records of both stores, by the ids of the first.

    Args:
        annotated: of the task's boxes; its ids are found as those of captions are.
    Raises:
        ValueError: when features of the two mean different things.
    """

    def __init__(self, store: FeatureStore, annotated: FeatureStore) -> None:
        self.store, self.second = store, annotated
        self._read, self._read_second = reader(store), reader(annotated)
        self._images = StoreImages(annotated)
        if store.fingerprint.meaning != annotated.fingerprint.meaning:
            what = meaning_difference(store.fingerprint, annotated.fingerprint)
            raise ValueError(
                f"--annotated-store {annotated.path} has other features than --store {store.path}"
                f"{f' (different: {what})' if what else ''}; extract both with one detector, the second with --boxes"
            )

    def __getitem__(self, image_id: str) -> RegionRecord:
        return self._read(image_id)

    def annotated(self, image_id: str, own: RegionRecord) -> RegionRecord:
        """The record of an image's annotated boxes.

        Args:
            own: its record of the first store.
        Raises:
            ValueError: when the two records are of photos of different sizes.
        """
        found = self._read_second(self._images.id_of(image_id) or image_id)
        if (found.height, found.width) != (own.height, own.width):
            raise ValueError(
                f"--annotated-store: record {found.image_id!r} is of a photo of {found.width} x {found.height} pixels, "
                f"that of --store of {own.width} x {own.height}; extract both from the same photos"
            )
        return found

    def num_annotated(self, image_ids: Sequence[str]) -> np.ndarray:
        """(n,) int32, boxes of each image in the second store."""
        return self.second.num_regions_of([self._images.id_of(image) or image for image in image_ids])

    def with_both(self, joined: JoinedGroups, what: str, *, min_match: float, hint: str = "") -> JoinedGroups:
        """The groups of the first store whose images the second has too. Raises ValueError as `StoreImages.join`."""
        found = self._images.join(joined.groups, f"{what}, --annotated-store", min_match=min_match, hint=hint)
        kept = [
            group
            for group in joined.groups
            if not group.is_open or all(self._images.id_of(image) is not None for image in group.images)
        ]
        missing, left_out = (*joined.missing, *found.missing), joined.left_out + found.left_out
        return replace(joined, groups=kept, missing=missing, left_out=left_out)


@dataclass(frozen=True)
class BoxRecords:
    """Records of a store without their features: their boxes are read alone."""

    store: FeatureStore

    def __getitem__(self, image_id: str) -> RegionRecord:
        meta = self.store.meta(image_id)
        return RegionRecord(
            image_id=image_id,
            height=meta.height,
            width=meta.width,
            boxes=meta.boxes,
            features=np.zeros((meta.num_regions, 1), np.float16),
            class_ids=meta.class_ids,
            class_scores=meta.class_scores,
        )


def bare_record(record: RegionRecord, boxes: np.ndarray, *, width: int = 1) -> RegionRecord:
    """The record of the same photo with other boxes (n, 4), whose features are zeros of a width."""
    return RegionRecord(
        image_id=record.image_id,
        height=record.height,
        width=record.width,
        boxes=boxes,
        features=np.zeros((len(boxes), width), record.features.dtype),
        class_ids=np.zeros(len(boxes), np.uint16),
        class_scores=np.zeros(len(boxes), np.float32),
        image_feature=record.image_feature,
    )


def boxes_alone(store: FeatureStore | StorePair) -> BoxRecords | StorePair:
    """The same images without their features."""
    if isinstance(store, FeatureStore):
        return BoxRecords(store)
    pair = copy.copy(store)
    pair._read, pair._read_second = BoxRecords(store.store).__getitem__, BoxRecords(store.second).__getitem__
    return pair


def check_num_boxes(task: DownstreamTask, groups: Sequence[TaskGroup], source: FeatureStore | StorePair | None) -> None:
    """Checks the numbers of boxes, before anything is written. Raises ValueError naming the first group whose image has
    another number of boxes in the store than in the task."""
    if task.num_boxes is None or source is None:
        return
    images = [group.images[0] for group in groups]
    counts = source.num_annotated(images) if isinstance(source, StorePair) else source.num_regions_of(images)
    for group, count in zip(groups, counts.tolist(), strict=True):
        if count != task.num_boxes(group):
            raise ValueError(
                f"{group.id}: the store has {count} boxes of image {group.images[0]!r}, the task "
                f"{task.num_boxes(group)}; extract with --boxes, from the task's own files"
            )


def opened_store(path: str | None) -> AbstractContextManager[FeatureStore | None]:
    """The store of a path; None for none."""
    return nullcontext() if path is None else FeatureStore(path)


def check_annotated(task: DownstreamTask, annotated: object, *, from_photos: bool = False) -> None:
    """Raises ValueError when a task that takes a second store has none, or another one has one; from photos when its
    boxes come from two stores, since those of one are cut out."""
    if from_photos:
        if task.joined is not None and not task.gives_boxes:
            raise ValueError(
                f"--end-to-end: with these settings {task.name} takes regions of two stores, and photos are cut by the "
                f"boxes of one; take its own boxes alone"
            )
        return
    if task.joined is not None and annotated is None:
        raise ValueError(
            f"--annotated-store is missing: with these settings {task.name} takes detected regions of --store and its "
            f"own boxes of a second store"
        )
    if task.joined is None and annotated is not None:
        raise ValueError(f"--annotated-store: with these settings {task.name} reads one store; leave it out")


class MissingImages(NamedTuple):
    """
    Attributes:
        ids: of groups that lack images in the store.
        images: missing ones, by the names that the task has.
    """

    ids: frozenset[str] = frozenset()
    images: tuple[str, ...] = ()

    def note(self, what: str) -> str:
        """A line for people."""
        names = ", ".join(printable(name, 60) for name in self.images[:_NAMED])
        return (
            f"{what}: {plural(len(self.ids), 'row')} answered without regions: the store lacks "
            f"{plural(len(self.images), 'image')}, such as {names}"
        )

    def described(self) -> dict[str, Any]:
        """Facts for the card; empty if nothing is missing."""
        if not self.ids:
            return {}
        return {"unseen": {"rows": len(self.ids), "images": len(self.images), "such_as": list(self.images[:_NAMED])}}

    def without_images(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """The summary of a part (`summarize_predictions`), without images of such rows."""
        rows = {
            name: [{**row, "images": []} if row["id"] in self.ids else row for row in own]
            for name, own in summary["rows"].items()
        }
        return {**summary, "rows": rows}


def with_missing(groups: Sequence[TaskGroup], joined: JoinedGroups) -> tuple[list[TaskGroup], MissingImages]:
    """All groups in their order, those that a store has with its ids; and those that lack images.

    Args:
        groups: of different ids, as the task has them.
    """
    found = {group.id: group for group in joined.groups}
    unseen = frozenset(group.id for group in groups if group.id not in found)
    every = [found.get(group.id) or replace(group, swapped=True) for group in groups]
    return every, MissingImages(unseen, joined.missing)


@dataclass(frozen=True)
class TaskData:
    """
    Attributes:
        validation: groups for evaluations; None for a task that judges nothing.
    """

    train: JoinedGroups
    train_files: tuple[Path, ...]
    validation: JoinedGroups | None
    notes: tuple[str, ...]
    names: PhotoNames = field(default_factory=PhotoNames)

    @property
    def evaluated(self) -> Sequence[TaskGroup]:
        return () if self.validation is None else self.validation.groups


def joined_data(
    task: DownstreamTask, store: FeatureStore | None, source: FeatureStore | StorePair | None, min_match: float
) -> TaskData:
    """The groups of both splits, those whose images the stores have; without a store all of them. Raises ValueError
    when too few are there, ids come twice, or labels are missing."""
    images = None if store is None else StoreImages(store)
    found, files, notes = {}, dict[str, tuple[Path, ...]](), []
    hint = ", or leave them out with a lower --min-match"
    for split in (task.train, *([task.validation] if task.validation else [])):
        what = f"{task.name}, {split}"
        with waiting(f"joining {split} with the store"):
            read = task.read(split)
            files[split] = read.files
            check_ids(task, read.groups, what)
            has_label, use = (has_target, "trained on") if split == task.train else (task.has_label, "judged")
            check_labels(read.groups, has_label, what, use)
            groups = [group for group in read.groups if group.is_open or split != task.train]
            if images is None:
                found[split] = JoinedGroups(groups, (), 0, 0)
            else:
                found[split] = images.join(groups, what, min_match=min_match, hint=hint)
            if isinstance(source, StorePair):
                found[split] = source.with_both(found[split], what, min_match=min_match, hint=hint)
        check_num_boxes(task, found[split].groups, source)
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
        allowed: whether the run may train on images that results are reported on.
    """
    called = {**data.train.called, **({} if data.validation is None else data.validation.called)}
    names, trained = photo_names(request, store, called), data.train.image_ids()
    report = check_given_rules(request, trained, names, f"{task.name}, {task.train}")
    notes = [] if report is None else report.lines()
    if report is not None and report.leaked:
        before = len(data.train.groups)
        data = replace(data, train=data.train.without(report.leaked))
        notes.append(f"{plural(before - len(data.train.groups), 'group')} of held-out images left out")
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
    """Images of the splits that a run does not use, as far as their files are there."""
    found: dict[str, list[str]] = {}
    for split in task.splits:
        if split not in (task.train, task.validation):
            with suppress(MissingFileError):  # a split whose file is not there cannot be judged on either
                found[split] = [image for group in task.read(split).groups for image in group.images]
    return found


def _validation_leaks(data: TaskData, names: PhotoNames, start: TaskStart, *, allowed: bool) -> list[str]:
    """Notes on validation images that this run or the one that it starts from trains on. Raises ValueError when this
    run would train on some, and may not."""
    if data.validation is None:
        return []
    validation = data.validation.image_ids()
    shared = shared_images(data.train.image_ids(), validation)
    notes = []
    if shared:
        words = f"{len(shared):,} of {plural(len(validation), 'validation image')}"
        refuse_shared(words, shared, allowed=allowed)
        notes.append(f"{words} are trained on: the results are not held-out results")
    return [*notes, *seen_before(start.run, validation, names).notes(start.source, "validation")]
