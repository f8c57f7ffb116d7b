"""What a run did to its detector, or to a region encoder: detector.json and encoder.json of its folder, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DETECTOR_NAME, ENCODER_NAME = "detector.json", "encoder.json"
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


def stage_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Each stage of a region encoder, whether it is trained, and how far it moved.

    Args:
        found: what encoder.json holds.
    """
    return [
        (
            each["stage"],
            "trained" if each["trained"] else "frozen",
            "not known" if each["moved"] is None else f"{each['moved']:.3g}",
        )
        for each in found["stages"]
    ]


def encoder_lines(found: Mapping[str, Any]) -> list[str]:
    """What is masked of photos, and `stage_rows`, for the terminal."""
    head = "the region encoder, and how far it moved from the weights it began with (|w - w0| / |w0|):"
    return [found["masking"], head, *(f"  {stage:<10} {state:<8} {far:>10}" for stage, state, far in stage_rows(found))]
