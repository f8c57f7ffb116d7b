"""Which regions of a record a model is shown. No torch."""

from __future__ import annotations

import numpy as np

from roibeam.features.record.region_record import RegionRecord


def strongest_regions(record: RegionRecord, max_regions: int) -> np.ndarray:
    """(n,) int64, the regions of the highest class score (of equal ones the first), in the order of the record.

    Args:
        max_regions: how many; 0 = all.
    """
    if not max_regions or record.num_regions <= max_regions:
        return np.arange(record.num_regions)
    return np.sort(np.argsort(-record.class_scores, kind="stable")[:max_regions])
