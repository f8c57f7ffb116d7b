"""Which boxes of a photo a sentence is to choose among, in which order, and which are too many.

Sources: jackroos/VL-BERT refcoco/data/datasets/refcoco.py; refer_expression_dataset.py of jiasenlu/vilbert_beta and
facebookresearch/vilbert-multi-task. Boxes are x1 y1 x2 y2 in pixels of the photo, float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roibeam.pipelines.data.datasets.refer import Box
from roibeam.pipelines.data.fit import check_choice

NONE, SIZE, LAST_PIXEL = "none", "size", "last_pixel"
WHOLE_IMAGES = (NONE, SIZE, LAST_PIXEL)
DETECTED_GO, LAST_GO, REFUSE = "detected", "last", "refuse"
TOO_MANY = (DETECTED_GO, LAST_GO, REFUSE)
WHOLE, DETECTED, ANNOTATED = 0, 1, 2


@dataclass(frozen=True)
class CandidateRules:
    """
    Attributes:
        whole_image: whether the photo as a whole is the first candidate, and up to where it goes: "none"; "size", to
            its width and height (ViLBERT); "last_pixel", one less (VL-BERT).
        max_boxes: most candidates of a photo, the photo itself among them; 0 = all.
        too_many: what a photo with more of them loses: "detected" boxes, from the end; the "last" boxes, so annotated
            ones go first (vilbert-multi-task); or it is an error ("refuse": the first ViLBERT fails in training).
    """

    whole_image: str = NONE
    max_boxes: int = 0
    too_many: str = DETECTED_GO

    def __post_init__(self) -> None:
        check_choice(self, "whole_image", WHOLE_IMAGES)
        check_choice(self, "too_many", TOO_MANY)
        if self.max_boxes < 0:
            raise ValueError(f"CandidateRules: max_boxes must not be negative, got {self.max_boxes}")


class Candidates(NamedTuple):
    """C candidates: the whole photo, then detected boxes, then annotated ones.

    Attributes:
        boxes: (C, 4) float32.
        kinds: (C,) int64: `WHOLE`, `DETECTED` or `ANNOTATED`.
        numbers: (C,) int64, place among the boxes of its kind that were given.
    """

    boxes: np.ndarray
    kinds: np.ndarray
    numbers: np.ndarray

    @property
    def regions(self) -> np.ndarray:
        """(C - 1, 4) or (C, 4), the boxes without the whole photo, which models add themselves."""
        return self.boxes[self.kinds != WHOLE]


def candidates_of(
    where: str, detected: np.ndarray, annotated: np.ndarray, image_hw: tuple[int, int] | None, rules: CandidateRules
) -> Candidates:
    """
    Args:
        where: the photo, for errors.
        detected, annotated: (D, 4) and (A, 4), as they are to be shown; either may be empty.
        image_hw: of the photo, for the whole of it.
    Raises:
        ValueError: for a photo without a size where the whole of it is a candidate, or with too many boxes where they
            are not to be cut.
    """
    given = (whole_image_box(where, image_hw, rules), _float32(detected), _float32(annotated))
    counts = [len(boxes) for boxes in given]
    more = sum(counts) - rules.max_boxes if rules.max_boxes else 0
    if more > 0:
        if rules.too_many == REFUSE:
            raise ValueError(
                f"{where}: {sum(counts)} candidates, {counts[ANNOTATED]} of them annotated, and max_boxes is "
                f"{rules.max_boxes}; raise it, or let too_many say which of them go"
            )
        for kind in (DETECTED, ANNOTATED) if rules.too_many == DETECTED_GO else (ANNOTATED, DETECTED):
            gone = min(more, counts[kind])
            counts[kind] -= gone
            more -= gone
    return Candidates(
        np.concatenate([boxes[:count] for boxes, count in zip(given, counts, strict=True)]),
        np.repeat(np.arange(3), counts),
        np.concatenate([np.arange(count) for count in counts]),
    )


def whole_image_box(where: str, image_hw: tuple[int, int] | None, rules: CandidateRules) -> np.ndarray:
    """(1, 4) float32, the box of the whole photo, or (0, 4) where it is no candidate. Raises ValueError as
    `candidates_of`."""
    if rules.whole_image == NONE:
        return np.zeros((0, 4), np.float32)
    if image_hw is None:
        raise ValueError(f"{where}: its size is not known, and the whole image is a candidate")
    height, width = image_hw
    less = 1 if rules.whole_image == LAST_PIXEL else 0
    return np.array([[0, 0, width - less, height - less]], np.float32)


def corners(boxes: Iterable[Box]) -> np.ndarray:
    """(R, 4) float32 of boxes x, y, width, height; sums are taken in float64."""
    rows = np.array(list(boxes), np.float64).reshape(-1, 4)
    return np.concatenate([rows[:, :2], rows[:, :2] + rows[:, 2:]], axis=1).astype(np.float32)


def sides(box: Sequence[float] | np.ndarray) -> Box:
    """x, y, width, height of a box x1 y1 x2 y2."""
    x1, y1, x2, y2 = (float(each) for each in box)
    return x1, y1, x2 - x1, y2 - y1


def _float32(boxes: np.ndarray) -> np.ndarray:
    return np.asarray(boxes, np.float32).reshape(-1, 4)
