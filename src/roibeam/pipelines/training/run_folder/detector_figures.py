"""A detector's figures before and after a run, as a run folder's detector.json holds them, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DETECTOR_NAME = "detector.json"
# What is shown, and where it stands in a `DetectionReport.as_json()`.
_FIGURES = {
    "mAP@0.5": ("objects", "mean"),
    "mAP@0.5, weighted by objects": ("objects", "weighted_mean"),
    "COCO AP": ("coco", "ap"),
    "COCO AP50": ("coco", "ap50"),
    "attributes right, found boxes": ("attribute_accuracy", "matched_boxes"),
    "attributes right, true boxes": ("attribute_accuracy", "given_boxes"),
    "recall of the selection": ("region_recall", "recall"),
    "class right, of its regions": ("calibration", "accuracy"),
}


def change_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value before and value after of each figure that was measured; "-" where it is not known (yet).

    Args:
        found: what the file holds.
    """
    rows = []
    for name, (part, figure) in _FIGURES.items():
        values = [found[when][part][figure] if when in found else None for when in ("before", "after")]
        if values != [None, None]:
            before, after = ("-" if value is None else f"{value:.4f}" for value in values)
            rows.append((name, before, after))
    return rows
