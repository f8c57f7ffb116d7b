"""COCO annotation files: captions_*.json and instances_*.json, 2014 and 2017.

Id rule: `file_name` without its extension ("COCO_train2014_000000000790"; "000000000790" in the 2017 files), which is
also what a folder of the images gives, so that a store made from the folder joins these captions and boxes.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from roibeam.messages import plural
from roibeam.pipelines.common.image_ids import image_id_of, is_utf8, path_below
from roibeam.pipelines.data.datasets.image_boxes import (
    FileObjects,
    ImageBoxes,
    LabelledImage,
    excerpt,
    label_image,
    parse_boxes,
    parse_image_hw,
)
from roibeam.pipelines.data.datasets.rows import EMPTY_CAPTION, BadRow, BadRows, caption_text, read_json_members

_Taker = Callable[[dict[str, Any], int], None]  # an entry and its index
EXPECTED = 'a COCO file with "images" and "annotations" lists'


@dataclass(frozen=True)
class CocoImage:
    """One entry of "images".

    Attributes:
        image_id: by the id rule.
        coco_id: the number that annotations refer to.
        file_name: path below the image root.
        image_hw: height and width in pixels, None where the entry has none.
    """

    image_id: str
    coco_id: int
    file_name: str
    image_hw: tuple[int, int] | None


@dataclass(frozen=True)
class CocoFile:
    """Captions or labels of whole images in a COCO file: a captions file has captions, an instances file labels.

    Attributes:
        images: in file order; an entry that the file repeats is here as often.
        captions: (image_id, caption) in file order.
        labels: (image_id, name of the category) of each annotation with a category, in file order.
        bad: images and annotations that cannot be used.
    """

    images: list[CocoImage]
    captions: list[tuple[str, str]]
    labels: list[tuple[str, str]]
    bad: tuple[BadRows, BadRows]


@dataclass(frozen=True)
class CocoBoxes:
    """The boxes of an instances file.

    Attributes:
        images: one entry for each image of the file, in file order; `name` is the image id. Row k is the image's k-th
            annotation of those with a usable box.
        num_crowd: annotations that outline a crowd instead of one object ("iscrowd"); their boxes are among the others,
            so that rows and annotations have the same order.
        bad: images and annotations that cannot be used.
    """

    images: list[ImageBoxes]
    num_crowd: int
    bad: tuple[BadRows, BadRows]


@dataclass(frozen=True, eq=False)
class CocoObjects:
    """The objects of one image of an instances file, in the order of `CocoBoxes`.

    Attributes:
        image_id: by the id rule.
        boxes: (n, 4) float32, x1 y1 x2 y2 in pixels.
        class_ids: (n,) int64, places in the names of the file's classes.
        outlines: of each polygons, (P, 2) float32 x y in the same pixels; None where it is a mask of pixels, as a crowd
            is, or not there.
    """

    image_id: str
    boxes: np.ndarray
    class_ids: np.ndarray
    outlines: tuple[tuple[np.ndarray, ...] | None, ...]


@dataclass(frozen=True)
class CocoInstances:
    """An instances file as detectors are trained and judged on it.

    Attributes:
        class_names: in class id order: that of the file's numbers; COCO's 80 go from 1 to 90 with gaps.
        images: one row for each image of the file, in file order, those without objects too.
        bad: images and annotations that cannot be used.
    """

    class_names: tuple[str, ...]
    images: list[LabelledImage]
    bad: tuple[BadRows, BadRows]


def read_coco(path: str, *, id_rule: str = "no-extension") -> CocoFile:
    """Reads a captions or instances file, with or without a byte order mark.

    An image or annotation that is not as COCO writes it is a bad row, here and in the other readers. Raises ValueError
    if it is no COCO file, naming a category that is not as COCO writes it, or two images of one id; or if all of its
    images or annotations are bad, naming the first."""
    captions: list[tuple[int, int, str]] = []  # of each: the annotation's place, image and caption
    categories = array("q")  # of each: the annotation's place, image and category
    names: dict[int, str] = {}

    def take(entry: dict[str, Any], index: int) -> None:
        if "caption" in entry:
            captions.append((index, _value(entry, "image_id", int), _caption(entry["caption"])))
        elif "category_id" in entry:
            numbers = [_value(entry, key, int) for key in ("image_id", "category_id")]
            categories.extend((index, *numbers))

    images = _read_entries(path, id_rule, take, partial(_add_category, names), needs_categories=False)
    kept = [
        (image.image_id, text)
        for index, number, text in captions
        if (image := images.annotated(number, index, "caption"))
    ]
    labels = []
    for index, number, category in zip(categories[::3], categories[1::3], categories[2::3], strict=True):
        if names and category not in names:
            images.leave_out(index, _no_category(category, len(names)))
        elif names and (image := images.annotated(number, index, "label")):
            labels.append((image.image_id, names[category]))
    images.check()
    return CocoFile(images.rows, kept, labels, images.bad)


def read_coco_boxes(path: str, *, id_rule: str = "no-extension") -> CocoBoxes:
    """Reads the boxes of an instances file, COCO's x, y, width, height turned into x1 y1 x2 y2. Raises ValueError as
    `read_coco`, if no annotation has a box, as those of a captions file, if all boxes lie in 0..1, or if two images
    have one id."""
    table = _ObjectTable()
    images = _read_entries(path, id_rule, table.add)
    boxes = table.boxes().astype(np.float32)
    found = [ImageBoxes(image.image_id, boxes[rows], image.image_hw) for image, rows in table.by_image(images, path)]
    return CocoBoxes(found, sum(table.crowds), images.bad)


def read_coco_instances(path: str) -> CocoInstances:
    """Reads an instances file with classes, areas and marks; a box without area in its image is left out, and counted.

    Takes about 100 bytes of memory for each annotation: outlines are passed over as they are read. Raises ValueError as
    `read_coco_boxes`, or if two categories have one name."""
    table = _ObjectTable(has_classes=True)
    images, names = _read_classified(path, "no-extension", table)
    class_ids, boxes = table.class_ids(tuple(names)), table.boxes()
    annotation_ids, areas = np.array(table.annotation_ids, np.int64), np.array(table.areas, np.float64)
    crowds, ignored = np.array(table.crowds, bool), np.array(table.ignored, bool)
    labelled = []
    for image, rows in table.by_image(images, path):
        objects = FileObjects(
            boxes=boxes[rows],
            class_ids=class_ids[rows],
            attribute_ids=np.empty((len(rows), 0), np.int64),
            annotation_ids=annotation_ids[rows],
            areas=areas[rows],
            crowds=crowds[rows],
            ignored=crowds[rows] | ignored[rows],
        )
        labelled.append(label_image(image.image_id, image.file_name, image.image_hw, objects))
    return CocoInstances(tuple(names.values()), labelled, images.bad)


def read_coco_objects(path: str) -> tuple[tuple[str, ...], list[CocoObjects], tuple[BadRows, BadRows]]:
    """Names of the classes in the order of their numbers, the objects of each image (its id with the extension), in
    file order, and the annotations that cannot be used, those with a broken outline among them.
    """
    table = _ObjectTable(has_classes=True, has_outlines=True)
    images, names = _read_classified(path, "with-extension", table)
    class_ids, boxes = table.class_ids(tuple(names)), table.boxes().astype(np.float32)
    found = [
        CocoObjects(image.image_id, boxes[rows], class_ids[rows], tuple(table.outlines[row] for row in rows))
        for image, rows in table.by_image(images, path)
    ]
    return tuple(names.values()), found, images.bad


def _read_classified(path: str, id_rule: str, table: _ObjectTable) -> tuple[_Images, dict[int, str]]:
    """The images of an instances file, and the names of its categories by their numbers, ascending."""
    names: dict[int, str] = {}
    images = _read_entries(path, id_rule, table.add, partial(_add_category, names))
    numbers: dict[str, int] = {}
    for number, name in names.items():
        if (first := numbers.setdefault(name, number)) != number:
            raise ValueError(
                f"{path!r}: the categories {first} and {number} are both named {name!r}; rename one, or give their "
                f"annotations one category_id"
            )
    return images, dict(sorted(names.items()))


def _outline(segmentation: Any) -> tuple[np.ndarray, ...] | None:
    if segmentation is None or segmentation == [] or isinstance(segmentation, dict):  # boxes alone, or a mask of pixels
        return None
    if not isinstance(segmentation, list):
        raise _BadEntryError("broken segmentation", f": segmentation must be polygons, got {excerpt(segmentation)}")
    polygons = []
    for number, flat in enumerate(segmentation):
        if not isinstance(flat, list) or len(flat) % 2:
            raise _BadEntryError(
                "broken segmentation", f", polygon {number}: expected x y x y ..., got {excerpt(flat)}"
            )
        points = [list(each) for each in zip(flat[::2], flat[1::2], strict=True)]
        try:
            polygons.append(parse_boxes(points, f", polygon {number}", columns=2))
        except ValueError as error:
            raise _BadEntryError("broken segmentation", str(error)) from None
    return tuple(polygons)


class _BadEntryError(ValueError):
    """An entry that is not as COCO writes it.

    Attributes:
        reason: the same for all of its kind, so that entries can be counted by it.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class _SameIdError(ValueError):
    """An id that two entries have, so that it does not identify one of them."""


def _no_category(number: int, num_categories: int) -> _BadEntryError:
    return _BadEntryError(
        "category_id that is not among the categories",
        f": category_id {number} is not among the {num_categories} categories",
    )


class _Images:
    """The entries of "images", and what is bad of them and of the annotations.

    Attributes:
        bad: images and annotations that cannot be used.
    """

    def __init__(self, path: str, id_rule: str) -> None:
        self._path = path
        self._id_rule = id_rule
        self._by_number: dict[int, CocoImage] = {}
        self._first_bad: dict[str, str] = {}
        self._counts = Counter[str]()
        self.rows: list[CocoImage] = []
        self.bad = BadRows("images", "image"), BadRows("annotations", "annotation")

    def add(self, entry: dict[str, Any], index: int) -> None:
        image = _image(entry, self._id_rule)
        first = self._by_number.setdefault(image.coco_id, image)
        if first.file_name != image.file_name:
            raise _SameIdError(
                f": two images have the id {image.coco_id}: {first.file_name!r} and {image.file_name!r}; annotations "
                f"cannot be told apart"
            )
        self.rows.append(image)

    def annotated(self, number: int, index: int, what: str) -> CocoImage | None:
        """The image that an annotation names; None for a bad annotation, which names none of them. Needs the whole file
        read, since either list may be first."""
        image = self._by_number.get(number)
        if image is None:
            detail = f": the {what} names image {number}, which is not among the images"
            self.leave_out(index, _BadEntryError("image_id that is not among the images", detail))
        return image

    def leave_out(self, index: int, error: _BadEntryError, member: str = "annotations") -> None:
        self._first_bad.setdefault(member, f"{self._path!r}, {member}[{index}]{error}")
        self.bad[member == "annotations"].add(BadRow(index, error.reason))

    def taken(self, member: str, index: int, entry: Any, take: _Taker) -> None:
        """Hands an entry out, and counts it; a bad image or annotation is left out. Raises ValueError for a bad
        category, and for one id that two entries have."""
        self._counts[member] += 1
        try:
            if not isinstance(entry, dict):
                expected = "an object with id and file_name" if member == "images" else "an object"
                raise _BadEntryError("no object", f": expected {expected}, got {excerpt(entry)}")
            take(entry, index)
        except (_BadEntryError, _SameIdError) as error:
            if member == "categories" or isinstance(error, _SameIdError):
                raise ValueError(f"{self._path!r}, {member}[{index}]{error}") from None
            self.leave_out(index, error, member)

    def check(self) -> None:
        """Raises ValueError when there are images or annotations, and all of them are bad: it is another kind of file,
        or a damaged one."""
        for member, bad in zip(("images", "annotations"), self.bad, strict=True):
            # A file of empty captions is one of captions, and is called so by who needs some; null is no caption.
            is_of_captions = bad.are_empty_captions and self._first_bad[member].endswith(EMPTY_CAPTION)
            if bad and len(bad) == self._counts[member] and not is_of_captions:
                all_of_them = f"; none of its {len(bad):,} {member} can be used" if len(bad) > 1 else ""
                raise ValueError(self._first_bad[member] + all_of_them)


def _add_category(names: dict[int, str], entry: dict[str, Any], _index: int) -> None:
    number = _value(entry, "id", int)
    if number in names:
        raise _SameIdError(f": two categories have the id {number}")
    names[number] = _value(entry, "name", str)


class _ObjectTable:
    """Usable boxes of all annotations in file order as plain numbers: 49 bytes for each, where objects would take a
    kilobyte; 25 more with their classes.

    Args:
        has_classes: whether class, number, area and marks are read too, without which an annotation is a bad one.
        has_outlines: likewise.
    """

    def __init__(self, *, has_classes: bool = False, has_outlines: bool = False) -> None:
        self._has_classes, self._has_outlines = has_classes, has_outlines
        self._places = array("q")  # of annotations in the file
        self._images = array("q")
        self._numbers = array("d")
        self._largest = 0.0
        self._categories = array("q")
        self._unknown: dict[int, _BadEntryError] = {}  # errors of the rows whose class is not there
        self.annotation_ids = array("q")
        self.areas = array("d")
        self.crowds, self.ignored = array("b"), array("b")
        self.outlines: list[tuple[np.ndarray, ...] | None] = []

    def add(self, entry: dict[str, Any], index: int) -> None:
        """Raises _BadEntryError, and adds nothing, for an annotation that is not as COCO writes it."""
        if "bbox" not in entry:
            raise _BadEntryError("no bbox", " lacks bbox; give the instances file, a captions file has no boxes")
        number = _value(entry, "image_id", int)
        try:
            parse_boxes([entry["bbox"]], "")
        except ValueError as error:
            raise _BadEntryError("bbox that is not 4 finite numbers", str(error)) from None
        label = _label(entry) if self._has_classes else None
        if self._has_outlines:
            self.outlines.append(_outline(entry.get("segmentation")))
        if label is not None:
            category, annotation_id, area = label
            self._categories.append(category)
            self.annotation_ids.append(annotation_id)
            self.areas.append(area)
            self.ignored.append(entry.get("ignore") == 1)
        left, top, width, height = entry["bbox"]  # added up before they are rounded to float32
        self._places.append(index)
        self._images.append(number)
        self._numbers.extend((left, top, left + width, top + height))
        self._largest = max(self._largest, left, top, width, height)
        self.crowds.append(entry.get("iscrowd") == 1)

    def boxes(self) -> np.ndarray:
        """(N, 4) float64, x1 y1 x2 y2, in file order."""
        return np.array(self._numbers, np.float64).reshape(-1, 4)

    def class_ids(self, category_ids: tuple[int, ...]) -> np.ndarray:
        """(N,) int64 places in `category_ids`; -1 for what is not among them, which is a bad annotation then."""
        places = {number: place for place, number in enumerate(category_ids)}
        found = np.array([places.get(number, -1) for number in self._categories], np.int64)
        for row in np.flatnonzero(found < 0).tolist():
            self._unknown[row] = _no_category(self._categories[row], len(places))
        return found

    def by_image(self, images: _Images, path: str) -> Iterator[tuple[CocoImage, np.ndarray]]:
        """Each image once, in file order, with the rows of its boxes; `class_ids` first. Raises ValueError when two
        images have one id, all boxes lie in 0..1, or all annotations are bad."""
        firsts: dict[str, CocoImage] = {}
        for image in images.rows:
            first = firsts.setdefault(image.image_id, image)
            if first.coco_id != image.coco_id:
                raise ValueError(
                    f"{path!r}: two images have the id {image.image_id!r}: {first.file_name!r} (number "
                    f"{first.coco_id}) and {image.file_name!r} (number {image.coco_id}); their boxes could not be told "
                    "apart, so name each photo once, and give no two one name before the extension (extract also takes "
                    "--id-rule with-extension)"
                )
        rows: dict[int, array[int]] = {image.coco_id: array("q") for image in firsts.values()}
        for row, (place, number) in enumerate(zip(self._places, self._images, strict=True)):
            if row in self._unknown:
                images.leave_out(place, self._unknown[row])
            elif (found := images.annotated(number, place, "box")) is not None:
                rows[found.coco_id].append(row)
        images.check()
        if 0 < self._largest <= 1:
            raise ValueError(
                f"{path!r}: all numbers of its {plural(len(self._images), 'box', 'boxes')} lie in 0..1; expected "
                f"COCO's x y width height in pixels of the photo"
            )
        for image in firsts.values():
            yield image, np.array(rows[image.coco_id], np.int64)


def _label(entry: dict[str, Any]) -> tuple[int, int, float]:
    """Category, number (-1 for none) and area (NaN for none) of an annotation."""
    number = _value(entry, "id", int) if "id" in entry else -1
    area: Any = entry.get("area")
    if area is None:
        area = float("nan")
    elif type(area) not in (int, float) or not abs(area) < 1e18:  # NaN is not
        raise _BadEntryError(
            "area that is no finite number", f": area must be a finite number of pixels, got {excerpt(area)}"
        )
    return _value(entry, "category_id", int), number, area


def _read_entries(
    path: str,
    id_rule: str,
    take_annotation: _Taker,
    take_category: _Taker | None = None,
    *,
    needs_categories: bool = True,
) -> _Images:
    """Hands out the entries of a file as they are read."""
    images = _Images(path, id_rule)
    takers: dict[str, _Taker] = {"images": images.add, "annotations": take_annotation}
    if take_category is not None:
        takers["categories"] = take_category
    missing = set(takers) if needs_categories else {"images", "annotations"}
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name not in takers:
            continue
        if index is None and entry != []:
            continue  # no list
        missing.discard(name)
        if index is None:
            continue
        images.taken(name, index, entry, takers[name])
    if missing & {"images", "annotations"}:
        raise ValueError(f"{path!r}: expected {EXPECTED}, got other json")
    if missing:
        raise ValueError(f'{path!r}: lacks "categories"; give an instances file, whose boxes have classes')
    return images


def _image(entry: dict[str, Any], id_rule: str) -> CocoImage:
    number = _value(entry, "id", int)
    name = _value(entry, "file_name", str)
    try:
        below = path_below(name)
    except ValueError as error:
        raise _BadEntryError(f"file_name: {error}", f": file_name {name!r}: {error}") from None
    return CocoImage(image_id_of(below, id_rule=id_rule), number, below, parse_image_hw(entry))


def _caption(value: Any) -> str:
    try:
        return caption_text(value)
    except ValueError as error:
        detail = f": {error}"
        if not isinstance(value, str):
            detail = f": caption must be text, got {excerpt(value)}"
        elif not is_utf8(value):
            detail = ": the caption holds half a surrogate pair; write it as UTF-8"
        raise _BadEntryError(str(error), detail) from None


def _value(entry: dict[str, Any], key: str, kind: type) -> Any:
    if key not in entry:
        raise _BadEntryError(f"no {key}", f" lacks {key}; expected a file of COCO, see docs/extract.md")
    value = entry[key]
    is_one = type(value) is kind  # not isinstance: json's true is no number
    if not is_one or (kind is int and not -(2**63) <= value < 2**63):
        expected = "a whole number" if kind is int else "text"
        way_out = ""
        if kind is int and isinstance(value, str):
            way_out = "; write it without quotes" if value.isdecimal() else "; number what it names from 1 on"
        raise _BadEntryError(
            f"{key} that is not {expected}", f": {key} must be {expected}, got {excerpt(value)}{way_out}"
        )
    return value
