"""RefCOCO, RefCOCO+ and RefCOCOg (lichengunc/refer): refs(<who split>).p, a pickle of Python 2, beside instances.json.

A reference names an object of COCO, whose box stands in instances.json alone. `file_name` names no file; image_id does.
All images are of COCO's train2014, so their id is that of COCO's file there. MAttNet's detections (lichengunc/MAttNet,
res101_coco_minus_refer_notime_dets.json) are read here too: the boxes of the "detected" track.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from roibeam.features.safe_pickle import load_pickle
from roibeam.pipelines.data.datasets.image_boxes import ImageBoxes, excerpt, typed_fields
from roibeam.pipelines.data.datasets.rows import BadRow, BadRows, are_texts, read_json_list, read_json_members

Entry = TypeVar("Entry")
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
        raw: the sentence as it was typed; "" where the file has none.
        tokens: the words of the sentence; () where the file has none.
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
    """Contents of instances.json.

    Attributes:
        objects: by their numbers, in the order of the file.
        image_hw: height and width of the images in pixels, by their numbers.
    """

    objects: dict[int, ReferObject]
    image_hw: dict[int, tuple[int, int]]


def refer_image_id(number: int) -> str:
    return f"COCO_train2014_{number:012d}"


def read_refer(refs: str, instances: str) -> Iterator[ReferringSentence]:
    """The sentences of all splits, in the order of the references. A .json is read as the list that the pickle holds.
    Raises ValueError naming the entry that is not as these files are written, or an object without a box; a pickle that
    asks for more than plain data is refused, and nothing of it is run."""
    yield from sentences_of(refs, read_refer_instances(instances), instances)


def sentences_of(
    refs: str, instances: ReferInstances, source: str, bad: BadRows | None = None
) -> Iterator[ReferringSentence]:
    """`read_refer` with instances that are read already.

    Args:
        bad: takes the references that cannot be used; None makes them errors.
    """
    found = list(read_json_list(refs, expected="a list of references")) if refs.endswith(".json") else load_pickle(refs)
    if not isinstance(found, list):
        raise ValueError(f"{refs!r}: expected a list of references, got {type(found).__name__}")
    entries = _Entries(bad)
    for index, ref in enumerate(found):
        where = f"{refs!r}, reference {index}"
        yield from entries.read(_sentences, where, index, ref, where, instances, source) or ()
    entries.check()


def _sentences(ref: Any, where: str, instances: ReferInstances, source: str) -> list[ReferringSentence]:
    ref_id, object_id, image_id, split, sentences = typed_fields(
        ref, "expected", ref_id=int, ann_id=int, image_id=int, split=str, sentences=list
    )
    if object_id not in instances.objects:
        raise ValueError(f"its object has no box, got {object_id} in {source!r}; are both of one data set?")
    found = []
    for each in sentences:
        number, text = typed_fields(each, "expected", sent_id=int, sent=str)
        raw, tokens = each.get("raw", ""), each.get("tokens", [])
        if not isinstance(tokens, list) or not are_texts([raw, *tokens]):
            raise ValueError(f"sentences: expected raw, a text, and tokens, a list, got {excerpt(each)}")
        box = instances.objects[object_id].box
        found.append(ReferringSentence(where, number, ref_id, image_id, split, text, box, raw, tuple(tokens)))
    return found


def read_refer_instances(path: str, bad: BadRows | None = None) -> ReferInstances:
    """All objects, and the sizes of their images.

    Args:
        bad: takes the annotations that cannot be used; None makes them errors.
    """
    found, entries = ReferInstances({}, {}), _Entries(bad)
    for name, index, entry in read_json_members(path, expected=INSTANCES):
        if index is None:
            continue
        where = f"{path!r}, {name}[{index}]"
        if name == "annotations":
            row = entries.read(_object, where, index, entry)
            if row is not None:
                found.objects[row[0]] = row[1]
        elif name == "images":
            try:
                number, height, width = typed_fields(entry, "expected", id=int, height=int, width=int)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            if height < 1 or width < 1:
                raise ValueError(f"{where}: an image of {height} x {width} pixels")
            found.image_hw[number] = height, width
    entries.check()
    return found


def _object(entry: Any) -> tuple[int, ReferObject]:
    number, image_id, box = typed_fields(entry, "expected", id=int, image_id=int, bbox=list)
    return number, ReferObject(image_id, _box(box, "bbox"), entry.get("iscrowd", 0) == 1)


def read_refer_detections(path: str, bad: BadRows | None = None) -> Iterator[tuple[int, Box]]:
    """(image number, box as x, y, width, height in pixels) of each detection, in the order of the file.

    Args:
        bad: takes the entries that cannot be used; None makes them errors.
    """
    entries = _Entries(bad)
    for index, entry in enumerate(read_json_list(path, expected=DETECTIONS)):
        row = entries.read(_detection, f"{path!r}, entry {index}", index, entry)
        if row is not None:
            yield row
    entries.check()


def _detection(entry: Any) -> tuple[int, Box]:
    number, box = typed_fields(entry, "expected", image_id=int, box=list)
    return number, _box(box, "box")


def read_detected_boxes(path: str, bad: BadRows | None = None) -> list[ImageBoxes]:
    """The same by image, under `refer_image_id`. An image without a detection is not in the file, nor here."""
    found: dict[int, list[tuple[float, ...]]] = {}
    for number, (x, y, width, height) in read_refer_detections(path, bad):
        found.setdefault(number, []).append((x, y, x + width, y + height))
    return [ImageBoxes(refer_image_id(number), np.array(boxes, np.float32), None) for number, boxes in found.items()]


class _Entries:
    """The entries of a list as they are read, the bad ones counted without what they have instead.

    Args:
        bad: takes what cannot be used; None makes it an error.
    """

    def __init__(self, bad: BadRows | None) -> None:
        self._bad, self._first, self._num_good = bad, "", 0

    def read(self, read: Callable[..., Entry], where: str, index: int, *args: Any) -> Entry | None:
        """Result of `read` for an entry; None for a bad one."""
        try:
            found = read(*args)
        except ValueError as error:
            if self._bad is None:
                raise ValueError(f"{where}: {error}") from None
            self._first = self._first or f"{where}: {error}"
            self._bad.add(BadRow(index, str(error).partition(", got ")[0]))
            return None
        self._num_good += 1
        return found

    def check(self) -> None:
        """Raises ValueError when all were bad."""
        if self._first and not self._num_good:
            raise ValueError(self._first)


def _box(value: list[Any], name: str) -> Box:
    if len(value) != 4 or not all(type(each) in (int, float) and math.isfinite(each) for each in value):
        raise ValueError(f"{name} must be x, y, width, height, got {excerpt(value)}")
    x, y, width, height = map(float, value)
    if width < 0 or height < 0:
        raise ValueError(f"{name} must be x, y, width, height, got a negative side in {excerpt(value)}")
    return x, y, width, height
