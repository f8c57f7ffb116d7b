"""Boxes of an image as readers give them: plain boxes, labelled objects, and <annotation> files in xml.

`LabelledImage` is the row that detectors are trained and evaluated on, of every data set. An <annotation>, as PASCAL
VOC began it, is read without entities and with a bound on its size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.etree import ElementTree

import numpy as np

from roibeam.extraction.photos.image_ref import lie_inside
from roibeam.features.record.region_record import MAX_REGIONS
from roibeam.pipelines.common.image_ids import is_utf8


@dataclass(frozen=True, eq=False)
class ImageBoxes:
    """The boxes that a file has for one image, in its order.

    Attributes:
        name: of the image in the file; its form is documented by each reader.
        boxes: (K, 4) float32, x1 y1 x2 y2 in pixels of that image; K may be 0.
        image_hw: height and width of that image, None where the file has none.
    """

    name: str
    boxes: np.ndarray
    image_hw: tuple[int, int] | None


def parse_boxes(values: Any, where: str, *, columns: int = 4) -> np.ndarray:
    """A list of boxes as json gives it -> (K, `columns`) float32.

    Whether a box lies in its photo, and the right way round, is found out when the photo is there: then it is a failure
    of one image. Raises ValueError if it is no list of at most 65,535 lists of `columns` finite numbers.

    Args:
        where: file and entry, for the error.
    """
    if not isinstance(values, list):
        raise ValueError(f"{where}: expected a list of boxes, got {excerpt(values)}")
    if len(values) > MAX_REGIONS:
        raise ValueError(f"{where}: {len(values)} boxes, at most {MAX_REGIONS} fit a record")
    if len(values) >= columns and all(map(_is_finite, values)):
        raise ValueError(
            f"{where}: boxes is a list of lists, one of {columns} numbers for each box; got {excerpt(values)}"
        )
    for index, box in enumerate(values):
        if not isinstance(box, list) or len(box) != columns or not all(map(_is_finite, box)):
            raise ValueError(f"{where}, box {index}: expected {columns} finite numbers, got {excerpt(box)}")
    return np.array(values, np.float32).reshape(-1, columns)


def parse_image_hw(entry: dict[str, Any]) -> tuple[int, int] | None:
    """Height and width of an entry that states both as positive whole numbers, else None."""
    height, width = entry.get("height"), entry.get("width")
    return (height, width) if _is_edge(height) and _is_edge(width) else None  # type: ignore[return-value]


def excerpt(value: Any) -> str:
    """A value from a file as it may stand in an error: json, cut to 80 letters."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def typed_fields(entry: Any, expected: str, /, **kinds: type) -> tuple[Any, ...]:
    """The values of some members of a json object, in the order of `kinds`.

    Args:
        expected: beginning of the error, such as "expected VQA's".
        kinds: type of each; texts must be such as UTF-8 can write.
    Raises:
        ValueError: naming the member that is missing or of another type.
    """
    members: dict[str, Any] = entry if isinstance(entry, dict) else {}
    values: list[Any] = []
    for name, kind in kinds.items():
        value = members.get(name)
        # Not isinstance: json's true is no number. VQA has six million answers: isascii is the faster look.
        if type(value) is not kind or (isinstance(value, str) and not value.isascii() and not is_utf8(value)):
            raise ValueError(f"{expected} {name}, of type {kind.__name__}, got {excerpt(value)}")
        values.append(value)
    return tuple(values)


def _is_edge(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31  # not isinstance: json's true is no number


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e9  # NaN is not; no photo has a billion pixels to a side


NO_ATTRIBUTE = -1  # fills the rows of objects with fewer attributes than others; losses pass it over
NO_AREA = "box without area"
OUTSIDE = "box outside the image"


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """The objects of one image, in file order.

    Attributes:
        image_id: by the id rule of its dataset.
        file_name: path below the image root.
        image_hw: height and width in pixels as the file states them, or as `fitted` to the photo; None if unknown.
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
        """The same for a photo of this height and width, whose size the file does not state."""
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
        class_ids, attribute_ids, annotation_ids, crowds, ignored: as those of `LabelledImage`, for the K boxes.
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


MAX_XML_BYTES = 4 * 2**20  # the busiest images have some 100 kB


class _PlainTree(ElementTree.TreeBuilder):
    """Builds a tree, but of no file with a document type: that is where entities are declared."""

    def doctype(self, name: str, public_id: str | None, system_id: str | None) -> None:
        raise ValueError("declares a document type, as no annotation of an image does; refused")


def read_annotation_xml(path: str, data_set: str) -> ElementTree.Element:
    """The root of a file; `data_set` is whose files these are, for errors."""
    with open(path, "rb") as file:
        data = file.read(MAX_XML_BYTES + 1)
    return parse_annotation_xml(data, repr(path), data_set)


def parse_annotation_xml(data: bytes, where: str, data_set: str) -> ElementTree.Element:
    """The root of a file's bytes. Raises ValueError if it is no such xml, over 4 MiB, or declares a document type:
    entities could make it any size."""
    if len(data) > MAX_XML_BYTES:
        raise ValueError(f"{where}: over {MAX_XML_BYTES} bytes; annotations of an image are smaller")
    parser = ElementTree.XMLParser(target=_PlainTree())
    try:
        parser.feed(data)
        root = parser.close()
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f"{where}: not an xml annotation ({error})") from None
    if root.tag != "annotation":
        raise ValueError(f"{where}: expected <annotation> as in {data_set}'s xml files, got <{root.tag[:80]}>")
    return root


def xml_text(entry: ElementTree.Element, path: str) -> str:
    return (entry.findtext(path) or "").strip()


def xml_number(entry: ElementTree.Element, path: str) -> float | None:
    """A finite number below a billion, None where there is none."""
    try:
        number = float(xml_text(entry, path))
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e9 else None
