"""COCO annotation files: captions_*.json and instances_*.json, 2014 and 2017.

Id rule: `file_name` without its extension ("COCO_train2014_000000000790"; "000000000790" in the 2017 files), which is
also what a folder of the images gives, so that a store made from the folder joins these captions and boxes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from roibeam.features.counted import counted
from roibeam.pipelines.foundation.files.image_ids import image_id_of, is_utf8, path_below
from roibeam.pipelines.sources.datasets.image_boxes import ImageBoxes, parse_boxes, parse_image_hw, shown
from roibeam.pipelines.sources.datasets.json_pieces import read_json_members
from roibeam.pipelines.sources.datasets.labelled_image import FileObjects, LabelledImage, label_image

_Taker = Callable[[dict[str, Any], str, int], None]  # an entry, its place for errors, its index
EXPECTED = 'a COCO file with "images" and "annotations" lists'


@dataclass(frozen=True)
class CocoImage:
    """One entry of "images".

    Attributes:
        image_id: by the id rule.
        coco_id: the number that annotations refer to.
        file_name: path below the image root.
        image_hw: height and width in pixels, None where the entry does not tell.
    """

    image_id: str
    coco_id: int
    file_name: str
    image_hw: tuple[int, int] | None


@dataclass(frozen=True)
class CocoFile:
    """What a COCO file says of its images as wholes: a captions file has captions, an instances file labels.

    Attributes:
        images: in file order; an entry that the file repeats is here as often.
        captions: (image_id, caption) in file order.
        labels: (image_id, name of the category) of each annotation with a category, in file order.
    """

    images: list[CocoImage]
    captions: list[tuple[str, str]]
    labels: list[tuple[str, str]]


@dataclass(frozen=True)
class CocoBoxes:
    """The boxes of an instances file.

    Attributes:
        images: one entry for each image of the file, in file order; `name` is the image id. Row k is the image's k-th
            annotation.
        num_crowd: annotations that outline a crowd instead of one object ("iscrowd"); their boxes are among the others,
            so that rows can be told from annotations by counting.
    """

    images: list[ImageBoxes]
    num_crowd: int


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
        class_names: in class id order.
        category_ids: the file's number of each class, ascending; COCO's 80 go from 1 to 90 with gaps.
        images: one row for each image of the file, in file order, those without objects too.
        coco_ids: the file's number of each of `images`.
    """

    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]
    images: list[LabelledImage]
    coco_ids: tuple[int, ...]


def read_coco(path: str, *, id_rule: str = "no-extension") -> CocoFile:
    """Reads a captions or instances file, with or without a byte order mark.

    Raises:
        ValueError: naming the file and the entry that is not as COCO writes it, or whose id another image has.
    """
    captions: list[tuple[int, int, str]] = []  # of each: the annotation's place, image and caption
    categories = array("q")  # of each: the annotation's place, image and category
    names: dict[int, str] = {}

    def take(entry: dict[str, Any], where: str, index: int) -> None:
        if "caption" in entry:
            caption = _value(entry, "caption", str, where).strip()
            if not is_utf8(caption):
                raise ValueError(f"{where}: the caption holds half a surrogate pair; write it as UTF-8")
            captions.append((index, _value(entry, "image_id", int, where), caption))
        elif "category_id" in entry:
            numbers = (_value(entry, key, int, where) for key in ("image_id", "category_id"))
            categories.extend((index, *numbers))

    images = _read_entries(path, id_rule, take, _Categories(names).add, needs_categories=False)
    place = f"{path!r}, annotations[{{}}]".format
    told = [(images.annotated(number, place(index), "caption").image_id, text) for index, number, text in captions]
    labels = []
    for index, number, category in zip(categories[::3], categories[1::3], categories[2::3], strict=True):
        if names and category not in names:
            raise ValueError(f"{place(index)}: category_id {category} is not among the {len(names)} categories")
        if names:
            labels.append((images.annotated(number, place(index), "label").image_id, names[category]))
    return CocoFile(images.rows, told, labels)


def read_coco_boxes(path: str, *, id_rule: str = "no-extension") -> CocoBoxes:
    """Reads the boxes of an instances file, COCO's x, y, width, height turned into x1 y1 x2 y2.

    Raises:
        ValueError: as `read_coco`, if an annotation has no box, as those of a captions file, if all boxes lie in 0..1,
            or if two images have one id.
    """
    table = _BoxTable()
    images = _read_entries(path, id_rule, table.add)
    boxes = table.boxes()
    found = []
    for image, rows in table.by_image(images, path):
        where = f"{path!r}, {image.image_id!r}"
        found.append(ImageBoxes(image.image_id, parse_boxes(boxes[rows].tolist(), where), image.image_hw))
    return CocoBoxes(found, sum(table.crowds))


def read_coco_instances(path: str, *, id_rule: str = "no-extension") -> CocoInstances:
    """Reads an instances file with classes, areas and marks; a box without area in its image is left out, and counted.

    Takes about 100 bytes of memory for each annotation: outlines are passed over as they are read.

    Raises:
        ValueError: as `read_coco_boxes`, if an annotation's category is not among the categories, or if two categories
            have one name.
    """
    table = _BoxTable()
    labels = _LabelTable()
    names: dict[int, str] = {}

    def take(entry: dict[str, Any], where: str, index: int) -> None:
        table.add(entry, where, index)
        labels.add(entry, where)

    images = _read_entries(path, id_rule, take, _Categories(names).add)
    _check_different(names, path)
    category_ids = tuple(sorted(names))
    class_ids = labels.class_ids(category_ids, path)
    boxes = table.boxes()
    annotation_ids, areas = np.array(labels.annotation_ids, np.int64), np.array(labels.areas, np.float64)
    crowds, ignored = np.array(table.crowds, bool), np.array(labels.ignored, bool)
    labelled, coco_ids = [], []
    for image, rows in table.by_image(images, path):
        labelled.append(
            label_image(
                image.image_id,
                image.file_name,
                image.image_hw,
                FileObjects(
                    boxes=boxes[rows],
                    class_ids=class_ids[rows],
                    attribute_ids=np.empty((len(rows), 0), np.int64),
                    annotation_ids=annotation_ids[rows],
                    areas=areas[rows],
                    crowds=crowds[rows],
                    ignored=crowds[rows] | ignored[rows],
                ),
            )
        )
        coco_ids.append(image.coco_id)
    class_names = tuple(names[number] for number in category_ids)
    return CocoInstances(class_names, category_ids, labelled, tuple(coco_ids))


def read_coco_objects(path: str, *, id_rule: str = "no-extension") -> tuple[tuple[str, ...], list[CocoObjects]]:
    """Names of the classes in the order of their numbers, and the objects of each image, in file order.

    Raises:
        ValueError: as `read_coco_instances`, and for a polygon that is none.
    """
    table, labels, names = _BoxTable(), _LabelTable(), dict[int, str]()
    outlines: list[tuple[np.ndarray, ...] | None] = []

    def take(entry: dict[str, Any], where: str, index: int) -> None:
        table.add(entry, where, index)
        labels.add(entry, where)
        outlines.append(_outline(entry.get("segmentation"), where))

    images = _read_entries(path, id_rule, take, _Categories(names).add)
    _check_different(names, path)
    category_ids = tuple(sorted(names))
    class_ids, boxes = labels.class_ids(category_ids, path), table.boxes().astype(np.float32)
    found = [
        CocoObjects(image.image_id, boxes[rows], class_ids[rows], tuple(outlines[row] for row in rows))
        for image, rows in table.by_image(images, path)
    ]
    return tuple(names[number] for number in category_ids), found


def _outline(segmentation: Any, where: str) -> tuple[np.ndarray, ...] | None:
    if not isinstance(segmentation, list) or not segmentation:  # a mask of pixels, run by run; or boxes alone
        return None
    polygons = []
    for number, flat in enumerate(segmentation):
        if not isinstance(flat, list) or len(flat) % 2:
            raise ValueError(f"{where}, polygon {number}: expected x y x y ..., got {shown(flat)}")
        points = [list(each) for each in zip(flat[::2], flat[1::2], strict=True)]
        polygons.append(parse_boxes(points, f"{where}, polygon {number}", columns=2))
    return tuple(polygons)


class _Images:
    """The entries of "images"."""

    def __init__(self, path: str, id_rule: str) -> None:
        self._path = path
        self._id_rule = id_rule
        self._by_number: dict[int, CocoImage] = {}
        self.rows: list[CocoImage] = []

    def add(self, entry: dict[str, Any], where: str, index: int) -> None:
        image = _image(entry, where, self._id_rule)
        first = self._by_number.setdefault(image.coco_id, image)
        if first.file_name != image.file_name:
            raise ValueError(
                f"{where}: two images have the id {image.coco_id}: {first.file_name!r} and {image.file_name!r}; "
                f"annotations cannot be told apart"
            )
        self.rows.append(image)

    def annotated(self, number: int, where: str, what: str) -> CocoImage:
        """The image that an annotation names; to be asked for once the file is read, since either list may be first."""
        if number not in self._by_number:
            raise ValueError(f"{where}: the {what} names image {number}, which is not among the images")
        return self._by_number[number]


class _Categories:
    """The entries of "categories", their names put into `names` by number."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def add(self, entry: dict[str, Any], where: str, index: int) -> None:
        number = _value(entry, "id", int, where)
        if number in self._names:
            raise ValueError(f"{where}: two categories have the id {number}")
        self._names[number] = _value(entry, "name", str, where)


def _check_different(names: dict[int, str], path: str) -> None:
    """Raises ValueError when two categories have one name: a detector would learn to tell equal things apart."""
    numbers: dict[str, int] = {}
    for number, name in names.items():
        if (first := numbers.setdefault(name, number)) != number:
            raise ValueError(
                f"{path!r}: the categories {first} and {number} are both named {name!r}; rename one, or give their "
                f"annotations one category_id"
            )


class _BoxTable:
    """Boxes of all annotations as plain numbers: 41 bytes for each, where objects would take a kilobyte."""

    def __init__(self) -> None:
        self._images = array("q")
        self._numbers = array("d")
        self._largest = 0.0
        self.crowds = array("b")

    def add(self, entry: dict[str, Any], where: str, index: int) -> None:
        if "bbox" not in entry:
            raise ValueError(f"{where} lacks bbox; give the instances file, a captions file has no boxes")
        number = _value(entry, "image_id", int, where)
        parse_boxes([entry["bbox"]], where)
        left, top, width, height = entry["bbox"]  # added up before they are rounded to float32
        self._images.append(number)
        self._numbers.extend((left, top, left + width, top + height))
        self._largest = max(self._largest, left, top, width, height)
        self.crowds.append(entry.get("iscrowd") == 1)

    def boxes(self) -> np.ndarray:
        """(N, 4) float64, x1 y1 x2 y2, of all annotations in file order."""
        return np.array(self._numbers, np.float64).reshape(-1, 4)

    def by_image(self, images: _Images, path: str) -> Iterator[tuple[CocoImage, np.ndarray]]:
        """Each image once, in file order, with the places of its annotations.

        Raises:
            ValueError: when two images have one id, an annotation names none of them, or all boxes lie in 0..1.
        """
        firsts: dict[str, CocoImage] = {}
        for image in images.rows:
            first = firsts.setdefault(image.image_id, image)
            if first.coco_id != image.coco_id:
                raise ValueError(
                    f"{path!r}: two images have the id {image.image_id!r}: {first.file_name!r} (number "
                    f"{first.coco_id}) and {image.file_name!r} (number {image.coco_id}); nothing would tell their "
                    f"boxes apart, so name each photo once, and give no two one name before the extension (extract "
                    f"also takes --id-rule with-extension)"
                )
        rows: dict[int, array[int]] = {image.coco_id: array("q") for image in firsts.values()}
        for index, number in enumerate(self._images):
            rows[images.annotated(number, f"{path!r}, annotations[{index}]", "box").coco_id].append(index)
        if 0 < self._largest <= 1:
            raise ValueError(
                f"{path!r}: all numbers of its {counted(len(self._images), 'box', 'boxes')} lie in 0..1; expected "
                f"COCO's x y width height in pixels of the photo"
            )
        for image in firsts.values():
            yield image, np.array(rows[image.coco_id], np.int64)


class _LabelTable:
    """What instances have beside their boxes, for each annotation in file order."""

    def __init__(self) -> None:
        self._categories = array("q")
        self.annotation_ids = array("q")
        self.areas = array("d")
        self.ignored = array("b")

    def add(self, entry: dict[str, Any], where: str) -> None:
        self._categories.append(_value(entry, "category_id", int, where))
        self.annotation_ids.append(_value(entry, "id", int, where) if "id" in entry else -1)
        area: Any = entry.get("area")
        if area is None:
            area = float("nan")
        elif type(area) not in (int, float) or not abs(area) < 1e18:  # NaN is not
            raise ValueError(f"{where}: area must be a finite number of pixels, got {shown(area)}")
        self.areas.append(area)
        self.ignored.append(entry.get("ignore") == 1)

    def class_ids(self, category_ids: tuple[int, ...], path: str) -> np.ndarray:
        """(N,) int64 places in `category_ids`."""
        places = {number: place for place, number in enumerate(category_ids)}
        for index, number in enumerate(self._categories):
            if number not in places:
                raise ValueError(
                    f"{path!r}, annotations[{index}]: category_id {number} is not among the {len(places)} categories"
                )
        return np.array([places[number] for number in self._categories], np.int64)


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
        where = f"{path!r}, {name}[{index}]"
        if not isinstance(entry, dict):
            wanted = "an object with id and file_name" if name == "images" else "an object"
            raise ValueError(f"{where}: expected {wanted}, got {shown(entry)}")
        takers[name](entry, where, index)
    if missing & {"images", "annotations"}:
        raise ValueError(f"{path!r}: expected {EXPECTED}, got other json")
    if missing:
        raise ValueError(f'{path!r}: lacks "categories"; give an instances file, whose boxes have classes')
    return images


def _image(entry: dict[str, Any], where: str, id_rule: str) -> CocoImage:
    number = _value(entry, "id", int, where)
    name = _value(entry, "file_name", str, where)
    try:
        below = path_below(name)
    except ValueError as error:
        raise ValueError(f"{where}: file_name {name!r}: {error}") from None
    return CocoImage(image_id_of(below, id_rule=id_rule), number, below, parse_image_hw(entry))


def _value(entry: dict[str, Any], key: str, kind: type, where: str) -> Any:
    if key not in entry:
        raise ValueError(f"{where} lacks {key}; expected a file of COCO, see docs/extract.md")
    value = entry[key]
    is_one = type(value) is kind  # not isinstance: json's true is no number
    if not is_one or (kind is int and not -(2**63) <= value < 2**63):
        expected = "a whole number" if kind is int else "text"
        way_out = ""
        if kind is int and isinstance(value, str):
            way_out = "; write it without quotes" if value.isdecimal() else "; number what it names from 1 on"
        raise ValueError(f"{where}: {key} must be {expected}, got {shown(value)}{way_out}")
    return value
