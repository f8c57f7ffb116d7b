"""Flickr30k and COCO for retrieval as jiasenlu/vilbert_beta and e-bug/volta keep them: a .jsonline, an image a line.

{"id": 0, "img_path": "1000092795.jpg", "sentences": ["...", ...]}. Their codes call an image by the number in
`img_path`; ours call it by the file's name without extension, as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from roibeam.pipelines.common.files.image_ids import image_id_of, is_utf8, path_below

TRAIN = "all_data_final_train_2014.jsonline"
# By split; the first that is there.
FILES = {
    "train": (TRAIN,),
    "val": ("all_data_final_val_set0_2014.jsonline", "all_data_final_val_2014.jsonline"),
    "test": ("all_data_final_test_set0_2014.jsonline", "all_data_final_test_2014.jsonline"),
}


class CaptionedLine(NamedTuple):
    """An image with its captions, as many as there are."""

    image_id: str
    captions: tuple[str, ...]


def read_retrieval_lines(path: str) -> Iterator[CaptionedLine]:
    """In file order.

    Raises:
        ValueError: naming the file and the line that is not as these files have it.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _line(line, f"{path!r}, line {number}")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path!r}: not UTF-8: {error}") from None


def _line(line: str, where: str) -> CaptionedLine:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: no json: {error}") from None
    if not isinstance(entry, dict) or not isinstance(entry.get("img_path"), str):
        raise ValueError(f"{where}: expected an object with img_path, the image's file, and sentences")
    sentences = entry.get("sentences")
    if not isinstance(sentences, list) or not all(isinstance(each, str) and is_utf8(each) for each in sentences):
        raise ValueError(f"{where}: sentences must be a list of captions")
    try:
        image_id = image_id_of(path_below(entry["img_path"]), id_rule="no-extension")
    except ValueError as error:
        raise ValueError(f"{where}: img_path: {error}") from None
    return CaptionedLine(image_id, tuple(each.strip() for each in sentences))
