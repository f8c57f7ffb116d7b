"""Groups that are asked about without their regions, because the store lacks an image of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.finetuning.frame.shown.joined_groups import JoinedGroups
from roibeam.pipelines.finetuning.rows import TaskGroup

_SHOWN = 3


class Unseen(NamedTuple):
    """
    Attributes:
        ids: of such groups.
        images: that the store lacks, by the names that the task has.
    """

    ids: frozenset[str] = frozenset()
    images: tuple[str, ...] = ()

    def note(self, what: str) -> str:
        """For people."""
        shown = ", ".join(printable(name, 60) for name in self.images[:_SHOWN])
        return (
            f"{what}: {counted(len(self.ids), 'row')} answered without regions: the store lacks "
            f"{counted(len(self.images), 'image')}, such as {shown}"
        )

    def described(self) -> dict[str, Any]:
        """For the card; nothing where all are seen."""
        if not self.ids:
            return {}
        return {"unseen": {"rows": len(self.ids), "images": len(self.images), "such_as": list(self.images[:_SHOWN])}}

    def told(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """What a part tells (`told_part`), where such rows have no images that a page could show."""
        rows = {
            name: [{**row, "images": []} if row["id"] in self.ids else row for row in own]
            for name, own in told["rows"].items()
        }
        return {**told, "rows": rows}


@dataclass(frozen=True)
class NoRegions:
    """In place of a store: every image has this record, which has no region."""

    record: RegionRecord

    @classmethod
    def like(cls, record: RegionRecord) -> NoRegions:
        """Of the same size, and with features of the same width."""
        return cls(
            RegionRecord(
                image_id=record.image_id,
                height=record.height,
                width=record.width,
                boxes=np.zeros((0, 4), np.float32),
                features=np.zeros((0, record.features.shape[1]), record.features.dtype),
                class_ids=np.zeros(0, np.uint16),
                class_scores=np.zeros(0, np.float32),
                image_feature=record.image_feature,
            )
        )

    def __getitem__(self, image_id: str) -> RegionRecord:
        return self.record


def with_unseen(asked: Sequence[TaskGroup], joined: JoinedGroups) -> tuple[list[TaskGroup], Unseen]:
    """All groups in their order, those that a store has with its ids, and which it has not.

    Args:
        asked: groups of different ids, as the task has them.
    """
    found = {group.id: group for group in joined.groups}
    unseen = frozenset(group.id for group in asked if group.id not in found)
    groups = [found.get(group.id) or replace(group, swapped=True) for group in asked]
    return groups, Unseen(unseen, joined.missing)
