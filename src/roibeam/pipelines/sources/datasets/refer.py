"""RefCOCO, RefCOCO+ and RefCOCOg (lichengunc/refer): refs(<who split>).p, a pickle of Python 2, beside instances.json.

A reference names an object of COCO, whose box stands in instances.json alone. `file_name` names no file; image_id does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from roibeam.features.safe_pickle.read import load_pickle
from roibeam.pipelines.foundation.files.image_ids import is_utf8
from roibeam.pipelines.sources.datasets.image_boxes import shown
from roibeam.pipelines.sources.datasets.json_pieces import read_json_list, read_json_members

INSTANCES = 'COCO\'s instances with a list "annotations"'


@dataclass(frozen=True)
class ReferringSentence:
    """A sentence that describes one object.

    Attributes:
        where: file and reference, for errors.
        split: train, val, test, testA or testB.
        box: x, y, width, height of the object in pixels, as annotated.
    """

    where: str
    sent_id: int
    ref_id: int
    image_id: int
    split: str
    sentence: str
    box: tuple[float, float, float, float]


def read_refer(refs: str, instances: str) -> Iterator[ReferringSentence]:
    """The sentences of all splits, in the order of the references. A .json is read as the list that the pickle holds.

    Raises:
        ValueError: naming the entry that is not as these files are written, or an object without a box; a pickle that
            asks for more than plain data is refused, and nothing of it is run.
    """
    found = list(read_json_list(refs, expected="a list of references")) if refs.endswith(".json") else load_pickle(refs)
    if not isinstance(found, list):
        raise ValueError(f"{refs!r}: expected a list of references, got {type(found).__name__}")
    boxes = dict(_boxes(instances))
    for index, ref in enumerate(found):
        where = f"{refs!r}, reference {index}"
        ref_id, object_id, image_id, split, sentences = _fields(
            ref, where, ref_id=int, ann_id=int, image_id=int, split=str, sentences=list
        )
        if object_id not in boxes:
            raise ValueError(f"{where}: its object {object_id} has no box in {instances!r}; are both of one data set?")
        for each in sentences:
            number, text = _fields(each, f"{where}, sentences", sent_id=int, sent=str)
            yield ReferringSentence(where, number, ref_id, image_id, split, text, boxes[object_id])


def _boxes(path: str) -> Iterator[tuple[int, tuple[float, float, float, float]]]:
    for name, index, entry in read_json_members(path, expected=INSTANCES):
        if name != "annotations" or index is None:
            continue
        where = f"{path!r}, annotations[{index}]"
        number, box = _fields(entry, where, id=int, bbox=list)
        if len(box) != 4 or not all(type(each) in (int, float) for each in box):
            raise ValueError(f"{where}: bbox must be x, y, width, height, got {shown(box)}")
        x, y, width, height = map(float, box)
        yield number, (x, y, width, height)


def _fields(entry: Any, where: str, **kinds: type) -> tuple[Any, ...]:
    for name, kind in kinds.items():
        value: Any = entry.get(name) if isinstance(entry, dict) else None
        if type(value) is not kind or (isinstance(value, str) and not is_utf8(value)):
            raise ValueError(f"{where}: expected {name}, of type {kind.__name__}, got {shown(value)}")
    return tuple(entry[name] for name in kinds)
