"""Which regions of an image are shown: those at the task's boxes, those that the task chooses, or the layout's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.objects.regions_at_boxes import regions_at_boxes
from roibeam.pipelines.data.shown_regions import strongest_regions
from roibeam.pipelines.finetuning.frame.shown.store_pair import BoxRecords, StorePair, boxes_alone
from roibeam.pipelines.finetuning.frame.shown.unseen import NoRegions
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.systems.layout_options import IN_FILE, LayoutOptions
from roibeam.pipelines.finetuning.task import DownstreamTask, JoinedImage


@dataclass(frozen=True, eq=False)
class ChosenRegions:
    """
    Attributes:
        record: the image's own, or one that is made of it.
        regions: (R,) int64, their numbers in the record, in the order in which they are shown.
        named: number of a box, as words name it -> its place among these.
        num_boxes: that words may name.
        whole: (D,) feature of the whole image where it is of more than the record.
    """

    record: RegionRecord
    regions: np.ndarray
    named: Mapping[int, int]
    num_boxes: int
    whole: np.ndarray | None = None


class RegionChoice:
    """
    Args:
        store: of all images, or their records by their names; None for texts alone.
        task: that may choose; None leaves all to the options.
    """

    def __init__(
        self,
        store: FeatureStore | BoxRecords | NoRegions | StorePair | Mapping[str, RegionRecord] | None,
        task: DownstreamTask | None,
        options: LayoutOptions,
    ) -> None:
        self._store, self._task, self._options = store, task, options

    def of(self, group: TaskGroup, number: int, record: RegionRecord, *, from_photos: bool = False) -> ChosenRegions:
        """Of an image of a group.

        Args:
            record: of the image.
            from_photos: whether features are made of the photo, at whatever boxes the task gives.
        Raises:
            ValueError: for a box of the task that the store does not have.
        """
        given = group.boxes[number] if len(group.boxes) else None
        joined = None if from_photos else self._joined(group, number, record)
        if joined is not None:
            record, named, num_boxes, whole = joined
            return ChosenRegions(record, np.arange(record.num_regions), named, num_boxes, whole)
        if given is None:
            regions = self._stored(group, number, record)
            places = dict(zip(regions.tolist(), range(len(regions)), strict=True))
            return ChosenRegions(record, regions, places, record.num_regions)
        if from_photos:
            record = _at_boxes(record, given)
            regions = np.arange(record.num_regions)
        else:
            regions = regions_at_boxes(record, np.asarray(given, np.float32).reshape(-1, 4))
        return ChosenRegions(record, regions, {place: place for place in range(len(regions))}, len(regions))

    def check(self, groups: Iterable[TaskGroup]) -> None:
        """Looks once at the boxes of every image whose regions the task gives or joins, without any feature.

        Groups that no model is asked about need no record.

        Raises:
            ValueError: naming the first group whose boxes a store lacks, or whose records in two stores are of photos
                of different sizes.
        """
        if self._store is None:
            return
        assert not isinstance(self._store, BoxRecords | NoRegions | Mapping), "boxes are asked of stores alone"
        light = boxes_alone(self._store)
        choice = RegionChoice(light, self._task, self._options)
        seen = set[tuple[str, int]]()
        for group in groups:
            if not group.is_open:
                continue
            for number, image in enumerate(group.images):
                place = (image, id(group.boxes[number]) if len(group.boxes) else 0)
                if place in seen or not (len(group.boxes) or isinstance(light, StorePair)):
                    continue
                seen.add(place)
                try:
                    choice.of(group, number, light[image])
                except ValueError as error:
                    raise ValueError(f"{group.id}: {error}") from None

    def _joined(self, group: TaskGroup, number: int, record: RegionRecord) -> JoinedImage | None:
        if self._task is None or self._task.joined is None:
            return None
        assert isinstance(self._store, StorePair)
        return self._task.joined(group, number, record, self._store.annotated(group.images[number], record))

    def _stored(self, group: TaskGroup, number: int, record: RegionRecord) -> np.ndarray:
        if self._task is not None and self._task.regions is not None:
            return self._task.regions(group, number, record)
        most = self._options.max_regions
        if self._options.region_order == IN_FILE:
            return np.arange(min(record.num_regions, most or record.num_regions))
        return strongest_regions(record, most)


def _at_boxes(record: RegionRecord, boxes: Any) -> RegionRecord:
    """The record of the same photo with these boxes (n, 4), cut to it, without features."""
    limits = np.array([record.width, record.height] * 2, np.float32)
    placed = np.clip(np.asarray(boxes, np.float32).reshape(-1, 4), 0, limits)
    count, kind = len(placed), record.features.dtype
    return RegionRecord(
        image_id=record.image_id,
        height=record.height,
        width=record.width,
        boxes=placed,
        features=np.zeros((count, 1), kind),
        class_ids=np.zeros(count, np.uint16),
        class_scores=np.zeros(count, np.float32),
        image_feature=record.image_feature,
    )
