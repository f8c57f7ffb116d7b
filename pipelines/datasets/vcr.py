"""VCR (visualcommonsense.com): {train,val,test}.jsonl beside vcr1images/<movie>/<name>.jpg and <name>.json.

Id rule: `img_fn` without its extension ("lsmdc_3005_.../3005_...@0"), which is also what the folder vcr1images gives.
An image's boxes are in the metadata beside it: x1 y1 x2 y2 score, in the order in which questions number the objects.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from pipelines.datasets.image_boxes import ImageBoxes, parse_boxes, parse_image_hw, shown
from pipelines.datasets.image_ids import image_id_of, path_below
from pipelines.datasets.json_lines import read_json_lines

IMAGES_FOLDER = "vcr1images"
_MAX_METADATA_BYTES = 64 * 2**20  # outlines take most of it; real ones have under 1 MB


@dataclass(frozen=True)
class VcrImage:
    """One image that questions are about: id by the id rule, path below the image folder."""

    image_id: str
    file_name: str


def read_vcr_images(path: str, *, id_rule: str = "no-extension") -> list[VcrImage]:
    """The images of an annotation file, each once, in the order in which questions name them first.

    Raises:
        ValueError: naming the line that is not as VCR writes it.
    """
    images: dict[VcrImage, None] = {}
    for where, row in read_json_lines(path):
        name = row.get("img_fn")
        if not isinstance(name, str):
            raise ValueError(f"{where}: expected a VCR row with img_fn, got {shown(name)} there")
        try:
            below = path_below(name)
        except ValueError as error:
            raise ValueError(f"{where}: img_fn {name!r}: {error}") from None
        images[VcrImage(image_id_of(below, id_rule=id_rule), below)] = None
    return list(images)


def metadata_path(image_path: str) -> str:
    """Path of an image -> that of its metadata."""
    return os.path.splitext(image_path)[0] + ".json"


def read_vcr_boxes(path: str, name: str) -> ImageBoxes:
    """The boxes of one metadata file, their scores left out; `name` is passed on.

    Raises:
        ValueError: if it is not as VCR writes it.
        OSError: if it cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read(_MAX_METADATA_BYTES + 1)
    if len(data) > _MAX_METADATA_BYTES:
        raise ValueError(f"{path!r}: over {_MAX_METADATA_BYTES} bytes; VCR metadata is smaller")
    try:
        content: Any = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path!r}: not a json file ({error})") from None
    if not isinstance(content, dict) or "boxes" not in content:
        raise ValueError(f'{path!r}: expected VCR metadata with "boxes", got other json')
    boxes = parse_boxes(content["boxes"], repr(path), columns=5)
    return ImageBoxes(name, boxes[:, :4].copy(), parse_image_hw(content))
