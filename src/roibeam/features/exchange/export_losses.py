"""What an export leaves out because the format has no place for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from roibeam.features.record.region_record import RegionRecord, TopKDistribution

NO_REGIONS = "records without regions"


def count_losses(
    losses: Counter[str], record: RegionRecord, rows: np.ndarray | None, *, held: Iterable[str] = ()
) -> None:
    """Counts the fields of a record that the file will not give back: "classes", "attributes", and so on.

    Args:
        losses: field -> records, added to.
        rows: class probabilities that the file gets, background first, (K, C + 1); its reader takes the best
            foreground class of each. None when it gets none.
        held: names of fields that the file has a place for of their own.
    """
    if rows is None:
        lost = {"classes"} if record.class_ids.any() or record.class_scores.any() else set()
        lost |= {"class_distribution"} if record.class_distribution is not None else set()
    else:
        best = rows[:, 1:].argmax(axis=1)
        same = (best == record.class_ids).all() and (rows[np.arange(len(rows)), best + 1] == record.class_scores).all()
        lost = set() if same else {"classes"}
        if isinstance(record.class_distribution, TopKDistribution):
            lost.add("class_distribution beyond its top k")
    lost |= {"attributes"} if record.attribute_ids is not None else set()
    lost |= {"image_feature"} if record.image_feature is not None else set()
    losses.update(sorted(lost - set(held)))
