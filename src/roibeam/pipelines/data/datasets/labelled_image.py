"""One image with labelled boxes: the row that detectors are trained and judged on, whatever dataset it is from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from roibeam.extraction.engine.photo_boxes import lie_inside

NO_ATTRIBUTE = -1  # fills the rows of objects with fewer attributes than others; losses pass it over
NO_AREA = "box without area"
OUTSIDE = "box outside the image"


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """The objects of one image, in file order.

    Attributes:
        image_id: by the id rule of its dataset.
        file_name: path below the image root.
        image_hw: height and width in pixels as the file states them, or as `fitted` to the photo; None where neither
            tells.
        boxes: (K, 4) float32, x1 y1 x2 y2 in pixels, 0 <= x1 < x2 <= width: clipped to the image. K may be 0.
        class_ids: (K,) int64, from 0, no background; places in the dataset's list of names.
        attribute_ids: (K, A) int64, from 0; NO_ATTRIBUTE behind an object's last one. A is the most of any object
            here, 0 in datasets without attributes.
        annotation_ids: (K,) int64, the file's own numbers; -1 where it has none.
        areas: (K,) float32, pixels: of the object's outline where the file states it, else of the box.
        crowds: (K,) bool, boxes that outline a group instead of one object.
        ignored: (K,) bool, neither trained on nor scored: crowds, and what the file marks as too hard.
        left_out: a reason for each object and attribute of the image that is not here.
        num_outside: boxes that reached outside the image by more than a box may, see `lie_inside`; what is left of
            them is here. 0 where the size is not known.
        as_in_file: the same before it was fitted to the photo; None where it was not.
    """

    image_id: str
    file_name: str
    image_hw: tuple[int, int] | None
    boxes: np.ndarray
    class_ids: np.ndarray
    attribute_ids: np.ndarray
    annotation_ids: np.ndarray
    areas: np.ndarray
    crowds: np.ndarray
    ignored: np.ndarray
    left_out: tuple[str, ...]
    num_outside: int = 0
    as_in_file: LabelledImage | None = None

    def fitted(self, image_hw: tuple[int, int]) -> LabelledImage:
        """The same for a photo of this height and width, of which the file did not tell the size."""
        objects = FileObjects(
            self.boxes.astype(np.float64), self.class_ids, self.attribute_ids, self.annotation_ids,
            self.areas.astype(np.float64), self.crowds, self.ignored,
        )  # fmt: skip
        height, width = image_hw
        is_cut = (self.boxes > [width, height, width, height]).any(axis=1)
        objects.areas[is_cut] = np.nan  # of the box that is left
        found = label_image(self.image_id, self.file_name, image_hw, objects, left_out=self.left_out)
        return replace(found, as_in_file=self)


@dataclass(frozen=True, eq=False)
class FileObjects:
    """The objects of one image as a file has them.

    Attributes:
        boxes: (K, 4) float64, finite, x1 y1 x2 y2 in pixels, not yet checked otherwise.
        areas: (K,) float64, NaN where the area is that of the box.
        others: as those of `LabelledImage`, for the K boxes.
    """

    boxes: np.ndarray
    class_ids: np.ndarray
    attribute_ids: np.ndarray
    annotation_ids: np.ndarray
    areas: np.ndarray
    crowds: np.ndarray
    ignored: np.ndarray


def label_image(
    image_id: str,
    file_name: str,
    image_hw: tuple[int, int] | None,
    objects: FileObjects,
    *,
    left_out: Sequence[str] = (),
) -> LabelledImage:
    """A `LabelledImage` of what a file has: boxes clipped, objects left out that then have no area."""
    height, width = image_hw if image_hw is not None else (np.inf, np.inf)
    clipped = np.clip(objects.boxes, 0, [width, height, width, height]).astype(np.float32)
    kept = (clipped[:, 2:] > clipped[:, :2]).all(axis=1)
    has_area = (objects.boxes[:, 2:] > objects.boxes[:, :2]).all(axis=1)
    reasons = [OUTSIDE if wide else NO_AREA for wide in np.asarray(has_area)[~kept]]
    clipped = clipped[kept]
    num_outside = 0 if image_hw is None else int((np.asarray(has_area) & ~lie_inside(objects.boxes, image_hw)).sum())
    box_areas = (clipped[:, 2:] - clipped[:, :2]).prod(axis=1)
    areas = objects.areas[kept]
    attributes = objects.attribute_ids[kept]
    most = int((attributes != NO_ATTRIBUTE).sum(axis=1).max(initial=0))
    return LabelledImage(
        image_id,
        file_name,
        image_hw,
        clipped,
        objects.class_ids[kept].astype(np.int64),
        attributes[:, :most].astype(np.int64),
        objects.annotation_ids[kept].astype(np.int64),
        np.where(np.isnan(areas), box_areas, areas).astype(np.float32),
        objects.crowds[kept].astype(bool),
        objects.ignored[kept].astype(bool),
        (*left_out, *reasons),
        num_outside,
    )
