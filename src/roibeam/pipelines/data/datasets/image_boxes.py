"""What readers of boxes share: one image's boxes as a typed row, and the check of a list from a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from roibeam.features.record.region_record import MAX_REGIONS


@dataclass(frozen=True, eq=False)
class ImageBoxes:
    """The boxes that a file has for one image, in its order.

    Attributes:
        name: what the file calls the image; each reader says in what form.
        boxes: (K, 4) float32, x1 y1 x2 y2 in pixels of that image; K may be 0.
        image_hw: height and width of that image, None where the file does not tell.
    """

    name: str
    boxes: np.ndarray
    image_hw: tuple[int, int] | None


def parse_boxes(values: Any, where: str, *, columns: int = 4) -> np.ndarray:
    """A list of boxes as json gives it -> (K, `columns`) float32.

    Whether a box lies in its photo, and the right way round, is found out when the photo is there: then it is a failure
    of one image.

    Args:
        where: file and entry, for the error.
    Raises:
        ValueError: if it is no list of at most 65,535 lists of `columns` finite numbers.
    """
    if not isinstance(values, list):
        raise ValueError(f"{where}: expected a list of boxes, got {shown(values)}")
    if len(values) > MAX_REGIONS:
        raise ValueError(f"{where}: {len(values)} boxes, at most {MAX_REGIONS} fit a record")
    if len(values) >= columns and all(map(_is_finite, values)):
        raise ValueError(
            f"{where}: boxes is a list of lists, one of {columns} numbers for each box; got {shown(values)}"
        )
    for index, box in enumerate(values):
        if not isinstance(box, list) or len(box) != columns or not all(map(_is_finite, box)):
            raise ValueError(f"{where}, box {index}: expected {columns} finite numbers, got {shown(box)}")
    return np.array(values, np.float32).reshape(-1, columns)


def parse_image_hw(entry: dict[str, Any]) -> tuple[int, int] | None:
    """Height and width of an entry that states both as positive whole numbers, else None."""
    height, width = entry.get("height"), entry.get("width")
    return (height, width) if _is_edge(height) and _is_edge(width) else None  # type: ignore[return-value]


def shown(value: Any) -> str:
    """A value from a file as it may stand in an error: json, cut to 80 letters."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_edge(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31  # not isinstance: json's true is no number


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e9  # NaN is not; no photo has a billion pixels to a side
