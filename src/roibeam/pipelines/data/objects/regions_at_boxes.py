"""Which regions of a record are those of boxes that a task gives. No torch."""

from __future__ import annotations

import numpy as np

from roibeam.features.record.region_record import RegionRecord

MOST_PIXELS_APART = 0.01  # float32 corners of photos of a few thousand pixels, computed in two ways


def regions_at_boxes(record: RegionRecord, boxes: np.ndarray) -> np.ndarray:
    """(n,) int64, for each box the number of the region at its place; of several the one of its own number, else the
    first.

    Args:
        boxes: (n, 4), x1 y1 x2 y2 in pixels of the photo. What lies outside the photo does not count, as in extraction.
    Raises:
        ValueError: naming a box without a region, for a store that was extracted at other boxes.
    """
    limits = np.array([record.width, record.height] * 2, np.float32)
    wanted = np.clip(np.asarray(boxes, np.float32).reshape(-1, 4), 0, limits)
    if not len(wanted):
        return np.zeros(0, np.int64)
    stored = np.clip(record.boxes, 0, limits)
    apart = np.abs(wanted[:, None] - stored[None]).max(axis=2, initial=0.0)
    is_there = apart <= MOST_PIXELS_APART
    missing = np.flatnonzero(~is_there.any(axis=1))
    if len(missing):
        box = ", ".join(f"{each:g}" for each in boxes[missing[0]])
        raise ValueError(
            f"record {record.image_id!r}: no region at {len(missing)} of {len(wanted)} boxes of the task, such as "
            f"{box}; extract with --boxes from the file that the task takes its boxes from"
        )
    found = is_there.argmax(axis=1)
    own = np.arange(min(is_there.shape))
    found[own] = np.where(is_there[own, own], own, found[own])
    return found
