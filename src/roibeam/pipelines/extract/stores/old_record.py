"""What can still be read of a broken record, and whether the one in its place is of the same photo.

A repair takes photos by their names. Others under the same names would give whole records with wrong features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from roibeam.features.comparison.region_matching import MAX_MATCHED_REGIONS, match_regions
from roibeam.features.record.digest import record_digest
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.layout import RegionMeta
from roibeam.features.shard.reader import ShardReader

_LEAST_AGREEING = 0.5  # of the regions; of two photos hardly any, of one photo on two devices nearly all


@dataclass(frozen=True)
class OldRecord:
    """Attributes:
    digest: of the whole record, as its shard's index says.
    meta: size, boxes and classes; None where they are damaged.
    """

    digest: bytes
    meta: RegionMeta | None


def read_old_records(reader: ShardReader, image_ids: Iterable[str]) -> dict[str, OldRecord]:
    """What a shard still says of its broken records, by image id; those of which it says nothing are left out."""
    found = {}
    for image_id in image_ids:
        row = reader.find(image_id)
        if row < 0:
            continue
        ((_, digest),) = reader.digests(row, row + 1)
        try:
            meta = reader.meta_at(row, check=True)
        except ValueError:
            meta = None
        found[image_id] = OldRecord(digest, meta)
    return found


@dataclass
class Comparison:
    """New records beside the broken ones.

    Attributes:
        same: with the digest of the record before.
        close: of the same size and with mostly the same regions; how they were computed differs, so digits do.
        unknown: nothing is left to compare them with.
        doubtful: image id -> what differs, though it was computed in the same way.
        other: image id -> why the photo is another one.
    """

    same: int = 0
    close: int = 0
    unknown: int = 0
    doubtful: dict[str, str] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)

    def add(self, new: RegionRecord, old: OldRecord | None, *, is_reproducible: bool) -> None:
        """Counts a record that was extracted in the place of a broken one.

        Args:
            old: None where nothing is left of it.
            is_reproducible: whether it was computed as the old one was, so that it should be equal bit for bit.
        """
        if old is None:
            self.unknown += 1
        elif record_digest(new) == old.digest:
            self.same += 1
        elif old.meta is not None and (why := _other_photo(new, old.meta)):
            self.other[new.image_id] = why
        elif is_reproducible:
            self.doubtful[new.image_id] = "has another digest than before, though it was computed in the same way"
        elif old.meta is None:
            self.unknown += 1
        else:
            self.close += 1

    def add_lost(self, image_ids: Sequence[str], *, is_same: bool, is_reproducible: bool) -> None:
        """Counts the records of a shard whose file was lost: only the digest of all together is known."""
        if is_same:
            self.same += len(image_ids)
        elif is_reproducible:
            what = "its shard was lost and has another digest now, though it was computed in the same way"
            self.doubtful |= dict.fromkeys(image_ids, what)
        else:
            self.unknown += len(image_ids)

    def merge(self, shard: Comparison) -> None:
        """Adds what was found in one shard."""
        self.same += shard.same
        self.close += shard.close
        self.unknown += shard.unknown
        self.doubtful |= shard.doubtful
        self.other |= shard.other


def _other_photo(new: RegionRecord, meta: RegionMeta) -> str:
    """Why a record is of another photo than the one of `meta`; "" where it may be of the same."""
    if (new.height, new.width) != (meta.height, meta.width):
        return f"the photo has {new.width} x {new.height} pixels, that of the record had {meta.width} x {meta.height}"
    most = max(new.num_regions, meta.num_regions)
    if most > MAX_MATCHED_REGIONS:
        return ""
    pairs = match_regions(meta.boxes, new.boxes)
    agreeing = int(np.count_nonzero(meta.class_ids[pairs[:, 0]] == new.class_ids[pairs[:, 1]]))
    if agreeing >= _LEAST_AGREEING * most:
        return ""
    return f"{agreeing} of {most} regions have the place and class that they had in the record"
