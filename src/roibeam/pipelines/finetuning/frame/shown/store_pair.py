"""A store of detected regions with one of a task's own boxes, as ViLBERT shows VCR's images."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from roibeam.features.comparison.feature_spaces import meaning_difference
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captioned.corpus import reader
from roibeam.pipelines.finetuning.frame.shown.joined_groups import JoinedGroups, StoreImages
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.task import DownstreamTask


class StorePair:
    """Records of both stores, by the ids of the first.

    Args:
        store: of detected regions.
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
        """The record of its boxes.

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
        """The groups of the first store whose images the second has too.

        Raises:
            ValueError: as `StoreImages.join`.
        """
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


def boxes_alone(store: FeatureStore | StorePair) -> BoxRecords | StorePair:
    """The same images without their features."""
    if isinstance(store, FeatureStore):
        return BoxRecords(store)
    pair = copy.copy(store)
    pair._read, pair._read_second = BoxRecords(store.store).__getitem__, BoxRecords(store.second).__getitem__
    return pair


def check_num_boxes(task: DownstreamTask, groups: Sequence[TaskGroup], shown: FeatureStore | StorePair | None) -> None:
    """Before anything is written.

    Raises:
        ValueError: naming the first group whose image has another number of boxes in the store than the task says.
    """
    if task.num_boxes is None or shown is None:
        return
    images = [group.images[0] for group in groups]
    counts = shown.num_annotated(images) if isinstance(shown, StorePair) else shown.num_regions_of(images)
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
                f"--end-to-end: with these settings {task.name} shows regions of two stores, and photos are cut by the "
                f"boxes of one; take its own boxes alone"
            )
        return
    if task.joined is not None and annotated is None:
        raise ValueError(
            f"--annotated-store is missing: with these settings {task.name} shows detected regions of --store and its "
            f"own boxes of a second store"
        )
    if task.joined is None and annotated is not None:
        raise ValueError(f"--annotated-store: with these settings {task.name} reads one store; leave it out")
