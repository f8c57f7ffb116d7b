"""COCO annotation files: captions_*.json and instances_*.json, 2014 and 2017.

Id rule: `file_name` without its extension ("COCO_train2014_000000000790"; "000000000790" in the 2017 files), which is
also what a folder of the images gives, so that a store made from the folder joins these captions and boxes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipelines.datasets.image_boxes import ImageBoxes, parse_boxes, parse_image_hw, shown
from pipelines.datasets.image_ids import image_id_of, path_below


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
    """What a COCO file says of images and captions (`captions` is empty for an instances file).

    Attributes:
        images: in file order; an entry that the file repeats is here as often.
        captions: (image_id, caption) in file order.
    """

    images: list[CocoImage]
    captions: list[tuple[str, str]]


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


def read_coco(path: str, *, id_rule: str = "no-extension") -> CocoFile:
    """Reads a captions or instances file, with or without a byte order mark.

    Raises:
        ValueError: naming the file and the entry that is not as COCO writes it, or whose id another image has.
    """
    content = _content(path)
    images, by_number = _images(content, path, id_rule)
    captions = []
    for where, entry in _annotations(content, path):
        if "caption" not in entry:
            continue  # an instances file: boxes, no captions
        image = _annotated(entry, by_number, where, "caption")
        captions.append((image.image_id, _value(entry, "caption", str, where).strip()))
    return CocoFile(images, captions)


def read_coco_boxes(path: str, *, id_rule: str = "no-extension") -> CocoBoxes:
    """Reads the boxes of an instances file, COCO's x, y, width, height turned into x1 y1 x2 y2.

    Raises:
        ValueError: as `read_coco`, or if an annotation has no box, as those of a captions file.
    """
    content = _content(path)
    images, by_number = _images(content, path, id_rule)
    boxes: dict[str, list[list[float]]] = {image.image_id: [] for image in images}
    num_crowd = 0
    for where, entry in _annotations(content, path):
        if "bbox" not in entry:
            raise ValueError(f"{where} lacks bbox; give the instances file, a captions file has no boxes")
        image = _annotated(entry, by_number, where, "box")
        parse_boxes([entry["bbox"]], where)
        left, top, width, height = entry["bbox"]  # added up before they are rounded to float32
        boxes[image.image_id].append([left, top, left + width, top + height])
        num_crowd += entry.get("iscrowd") == 1
    sizes = {image.image_id: image.image_hw for image in reversed(images)}
    found = [ImageBoxes(name, parse_boxes(rows, f"{path!r}, {name!r}"), sizes[name]) for name, rows in boxes.items()]
    return CocoBoxes(found, num_crowd)


def _content(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = json.load(file)
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not json, or a number of 4,301 digits
        raise ValueError(f"{path!r}: not a json file ({error})") from None
    lists = [content.get(key) for key in ("images", "annotations")] if isinstance(content, dict) else [None]
    if not all(isinstance(entries, list) for entries in lists):
        raise ValueError(f'{path!r}: expected a COCO file with "images" and "annotations" lists, got other json')
    return content


def _images(content: dict[str, Any], path: str, id_rule: str) -> tuple[list[CocoImage], dict[int, CocoImage]]:
    images: list[CocoImage] = []
    by_number: dict[int, CocoImage] = {}
    for index, entry in enumerate(content["images"]):
        where = f"{path!r}, images[{index}]"
        image = _image(entry, where, id_rule)
        first = by_number.setdefault(image.coco_id, image)
        if first.file_name != image.file_name:
            raise ValueError(
                f"{where}: two images have the id {image.coco_id}: {first.file_name!r} and {image.file_name!r}; "
                f"annotations cannot be told apart"
            )
        images.append(image)
    return images, by_number


def _annotations(content: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, entry in enumerate(content["annotations"]):
        where = f"{path!r}, annotations[{index}]"
        if not isinstance(entry, dict):
            raise ValueError(f"{where}: expected an object, got {shown(entry)}")
        yield where, entry


def _annotated(entry: dict[str, Any], by_number: dict[int, CocoImage], where: str, what: str) -> CocoImage:
    number = _value(entry, "image_id", int, where)
    if number not in by_number:
        raise ValueError(f"{where}: the {what} names image {number}, which is not among the images")
    return by_number[number]


def _image(entry: Any, where: str, id_rule: str) -> CocoImage:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected an object with id and file_name, got {shown(entry)}")
    number = _value(entry, "id", int, where)
    name = _value(entry, "file_name", str, where)
    try:
        below = path_below(name)
    except ValueError as error:
        raise ValueError(f"{where}: file_name {name!r}: {error}") from None
    return CocoImage(image_id_of(below, id_rule=id_rule), number, below, parse_image_hw(entry))


def _value(entry: dict[str, Any], key: str, kind: type, where: str) -> Any:
    if key not in entry:
        raise ValueError(f"{where} lacks {key}")
    if type(entry[key]) is not kind:  # not isinstance: json's true is no number
        expected = "a whole number" if kind is int else "text"
        raise ValueError(f"{where}: {key} must be {expected}, got {shown(entry[key])}")
    return entry[key]
