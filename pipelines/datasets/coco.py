"""COCO annotation files: captions_*.json and instances_*.json, 2014 and 2017.

Id rule: `file_name` without its extension ("COCO_train2014_000000000790"; "000000000790" in the 2017 files), which is
also what a folder of the images gives, so that a store made from the folder joins these captions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pipelines.datasets.image_ids import image_id_of, path_below


@dataclass(frozen=True)
class CocoImage:
    """One entry of "images".

    Attributes:
        image_id: by the id rule.
        coco_id: the number that annotations refer to.
        file_name: path below the image root.
    """

    image_id: str
    coco_id: int
    file_name: str


@dataclass(frozen=True)
class CocoFile:
    """What a COCO file says of images and captions (`captions` is empty for an instances file).

    Attributes:
        images: in file order; an entry that the file repeats is here as often.
        captions: (image_id, caption) in file order.
    """

    images: list[CocoImage]
    captions: list[tuple[str, str]]


def read_coco(path: str, *, id_rule: str = "no-extension") -> CocoFile:
    """Reads a captions or instances file, with or without a byte order mark.

    Raises:
        ValueError: naming the file and the entry that is not as COCO writes it, or whose id another image has.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = json.load(file)
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not json, or a number of 4,301 digits
        raise ValueError(f"{path!r}: not a json file ({error})") from None
    lists = [content.get(key) for key in ("images", "annotations")] if isinstance(content, dict) else [None]
    if not all(isinstance(entries, list) for entries in lists):
        raise ValueError(f'{path!r}: expected a COCO file with "images" and "annotations" lists, got other json')
    images: list[CocoImage] = []
    by_number: dict[int, CocoImage] = {}
    for index, entry in enumerate(content["images"]):
        where = f"{path!r}, images[{index}]"
        image = _image(entry, where, id_rule)
        first = by_number.setdefault(image.coco_id, image)
        if first.file_name != image.file_name:
            raise ValueError(
                f"{where}: two images have the id {image.coco_id}: {first.file_name!r} and {image.file_name!r}; "
                f"captions cannot be told apart"
            )
        images.append(image)
    captions = []
    for index, entry in enumerate(content["annotations"]):
        where = f"{path!r}, annotations[{index}]"
        if not isinstance(entry, dict):
            raise ValueError(f"{where}: expected an object, got {_shown(entry)}")
        if "caption" not in entry:
            continue  # an instances file: boxes, no captions
        number = _value(entry, "image_id", int, where)
        if number not in by_number:
            raise ValueError(f"{where}: the caption names image {number}, which is not among the images")
        captions.append((by_number[number].image_id, _value(entry, "caption", str, where).strip()))
    return CocoFile(images, captions)


def _image(entry: Any, where: str, id_rule: str) -> CocoImage:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected an object with id and file_name, got {_shown(entry)}")
    number = _value(entry, "id", int, where)
    name = _value(entry, "file_name", str, where)
    try:
        below = path_below(name)
    except ValueError as error:
        raise ValueError(f"{where}: file_name {name!r}: {error}") from None
    return CocoImage(image_id_of(below, id_rule=id_rule), number, below)


def _value(entry: dict[str, Any], key: str, kind: type, where: str) -> Any:
    if key not in entry:
        raise ValueError(f"{where} lacks {key}")
    if type(entry[key]) is not kind:  # not isinstance: json's true is no number
        expected = "a whole number" if kind is int else "text"
        raise ValueError(f"{where}: {key} must be {expected}, got {_shown(entry[key])}")
    return entry[key]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
