"""RefCOCO, RefCOCO+ and RefCOCOg (lichengunc/refer): refs(<who split>).p, a pickle of Python 2, beside instances.json.

A reference names an object of COCO, whose box stands in instances.json alone. `file_name` names no file; image_id does.
All images are of COCO's train2014, so their id is that of COCO's file there. MAttNet's detections (lichengunc/MAttNet,
res101_coco_minus_refer_notime_dets.json) are read here too: the boxes of the "detected" track.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.safe_pickle.read import load_pickle
from roibeam.pipelines.foundation.files.image_ids import is_utf8
from roibeam.pipelines.sources.datasets.image_boxes import ImageBoxes, shown
from roibeam.pipelines.sources.datasets.json_pieces import read_json_list, read_json_members

INSTANCES = 'COCO\'s instances with a list "annotations"'
DETECTIONS = "MAttNet's list of detections"
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class ReferringSentence:
    """A sentence that describes one object.

    Attributes:
        where: file and reference, for errors.
        split: train, val, test, testA or testB.
        sentence: in lower case, without punctuation.
        box: x, y, width, height of the object in pixels, as annotated.
        raw: the sentence as it was typed; "" where the file does not say.
        tokens: the words of the sentence; () where the file does not say.
    """

    where: str
    sent_id: int
    ref_id: int
    image_id: int
    split: str
    sentence: str
    box: Box
    raw: str = ""
    tokens: tuple[str, ...] = ()


class ReferObject(NamedTuple):
    """An annotated object: the number of its image, its box as x, y, width, height in pixels, and whether it is a
    crowd."""

    image_id: int
    box: Box
    is_crowd: bool


class ReferInstances(NamedTuple):
    """What instances.json says.

    Attributes:
        objects: by their numbers, in the order of the file.
        image_hw: height and width of the images in pixels, by their numbers.
    """

    objects: dict[int, ReferObject]
    image_hw: dict[int, tuple[int, int]]


def refer_image_id(number: int) -> str:
    """What the image is called."""
    return f"COCO_train2014_{number:012d}"


def read_refer(refs: str, instances: str) -> Iterator[ReferringSentence]:
    """The sentences of all splits, in the order of the references. A .json is read as the list that the pickle holds.

    Raises:
        ValueError: naming the entry that is not as these files are written, or an object without a box; a pickle that
            asks for more than plain data is refused, and nothing of it is run.
    """
    yield from sentences_of(refs, read_refer_instances(instances), instances)


def sentences_of(refs: str, instances: ReferInstances, source: str) -> Iterator[ReferringSentence]:
    """As `read_refer`, of instances that are read already.

    Args:
        source: their file, for errors.
    """
    found = list(read_json_list(refs, expected="a list of references")) if refs.endswith(".json") else load_pickle(refs)
    if not isinstance(found, list):
        raise ValueError(f"{refs!r}: expected a list of references, got {type(found).__name__}")
    for index, ref in enumerate(found):
        where = f"{refs!r}, reference {index}"
        ref_id, object_id, image_id, split, sentences = _fields(
            ref, where, ref_id=int, ann_id=int, image_id=int, split=str, sentences=list
        )
        if object_id not in instances.objects:
            raise ValueError(f"{where}: its object {object_id} has no box in {source!r}; are both of one data set?")
        box = instances.objects[object_id].box
        for each in sentences:
            number, text = _fields(each, f"{where}, sentences", sent_id=int, sent=str)
            raw, tokens = each.get("raw", ""), each.get("tokens", [])
            if not _is_text(raw) or not isinstance(tokens, list) or not all(_is_text(token) for token in tokens):
                raise ValueError(f"{where}, sentences: expected raw, a text, and tokens, a list, got {shown(each)}")
            yield ReferringSentence(where, number, ref_id, image_id, split, text, box, raw, tuple(tokens))


def read_refer_instances(path: str) -> ReferInstances:
    """All objects, and the sizes of their images.

    Raises:
        ValueError: naming the entry that is not as COCO writes it.
    """
    found = ReferInstances({}, {})
    for name, index, entry in read_json_members(path, expected=INSTANCES):
        if index is None:
            continue
        where = f"{path!r}, {name}[{index}]"
        if name == "annotations":
            number, image_id, box = _fields(entry, where, id=int, image_id=int, bbox=list)
            found.objects[number] = ReferObject(image_id, _box(box, where, "bbox"), entry.get("iscrowd", 0) == 1)
        elif name == "images":
            number, height, width = _fields(entry, where, id=int, height=int, width=int)
            if height < 1 or width < 1:
                raise ValueError(f"{where}: an image of {height} x {width} pixels")
            found.image_hw[number] = height, width
    return found


def read_refer_detections(path: str) -> Iterator[tuple[int, Box]]:
    """(image number, box as x, y, width, height in pixels) of each detection, in the order of the file.

    Raises:
        ValueError: naming the entry that is not as MAttNet writes it.
    """
    for index, entry in enumerate(read_json_list(path, expected=DETECTIONS)):
        where = f"{path!r}, entry {index}"
        number, box = _fields(entry, where, image_id=int, box=list)
        yield number, _box(box, where, "box")


def read_detected_boxes(path: str) -> list[ImageBoxes]:
    """The same by image, under `refer_image_id`. An image without a detection is not in the file, nor here."""
    found: dict[int, list[tuple[float, ...]]] = {}
    for number, (x, y, width, height) in read_refer_detections(path):
        found.setdefault(number, []).append((x, y, x + width, y + height))
    return [
        ImageBoxes(refer_image_id(number), np.array(boxes, np.float32), None) for number, boxes in found.items()
    ]  # fmt: skip


def _box(value: list[Any], where: str, name: str) -> Box:
    if len(value) != 4 or not all(type(each) in (int, float) and math.isfinite(each) for each in value):
        raise ValueError(f"{where}: {name} must be x, y, width, height, got {shown(value)}")
    x, y, width, height = map(float, value)
    if width < 0 or height < 0:
        raise ValueError(f"{where}: {name} must be x, y, width, height, got a negative side in {shown(value)}")
    return x, y, width, height


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_utf8(value)


def _fields(entry: Any, where: str, **kinds: type) -> tuple[Any, ...]:
    for name, kind in kinds.items():
        value: Any = entry.get(name) if isinstance(entry, dict) else None
        if type(value) is not kind or (isinstance(value, str) and not is_utf8(value)):
            raise ValueError(f"{where}: expected {name}, of type {kind.__name__}, got {shown(value)}")
    return tuple(entry[name] for name in kinds)
