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
        height, width: pixels, as the file states them.
    """

    image_id: str
    coco_id: int
    file_name: str
    height: int
    width: int


@dataclass(frozen=True)
class CocoFile:
    """What a COCO file says of images and captions (`captions` is empty for an instances file).

    Attributes:
        images: in file order.
        captions: (image_id, caption) in file order.
    """

    images: list[CocoImage]
    captions: list[tuple[str, str]]


def is_coco(content: Any) -> bool:
    """Whether parsed json looks like a COCO annotation file."""
    return isinstance(content, dict) and isinstance(content.get("images"), list) and "annotations" in content


def read_coco(path: str, *, id_rule: str = "no-extension") -> CocoFile:
    """Reads a captions or instances file.

    Raises:
        ValueError: naming the file and the entry that is not as COCO writes it.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not a json file ({error})") from None
    if not is_coco(content):
        raise ValueError(f'{path}: expected a COCO file with "images" and "annotations", got other json')
    images = [_image(entry, path, id_rule) for entry in content["images"]]
    by_number = {image.coco_id: image.image_id for image in images}
    captions = []
    for entry in content["annotations"]:
        if not isinstance(entry, dict) or "caption" not in entry:
            continue  # an instances file: boxes, no captions
        if entry.get("image_id") not in by_number:
            raise ValueError(f"{path}: a caption names image {entry.get('image_id')!r}, which is not among the images")
        captions.append((by_number[entry["image_id"]], str(entry["caption"]).strip()))
    return CocoFile(images, captions)


def _image(entry: Any, path: str, id_rule: str) -> CocoImage:
    try:
        name = path_below("of the images", str(entry["file_name"]))
        return CocoImage(
            image_id_of(name, id_rule=id_rule), int(entry["id"]), name, int(entry["height"]), int(entry["width"])
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: an entry of images lacks id, file_name, height or width: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
