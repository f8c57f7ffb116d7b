"""Cases of data-set items: annotation files that they hold as text, and the leaves that an item is compared by."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.case_files import ArrayError, Arrays
from harness.checks import Check, apart, close, equal, failed, within
from harness.tolerances import VLBERT, Allclose
from roibeam.extraction.network.config import DetectorConfig
from roibeam.features.record.region_record import RegionRecord

FILES = "file/"
MAX_SIZE = 1 << 12  # pieces and regions that a case may ask for
BATCH = "batch"  # in the place of an item's number
ITEM_TOLERANCE = Allclose(1e-5)  # of boxes, features and targets (README, "One data-set file")
Item = Mapping[str, Any]  # leaf -> ours

_LEAF = re.compile(r"out/(?:([A-Za-z0-9_]+)\.)?(\d+(?:\.\d)?|batch)\.([a-z][a-z0-9_]*(?:\.\d)?)")
_SCALES = re.compile(r"SCALES (\d+)/(\d+)")


def text_of(arrays: Arrays, name: str) -> str:
    """Raises ArrayError for an array that is no text."""
    array = arrays.take(name)
    if array.dtype.kind != "U" or array.ndim:
        raise ArrayError(name, f"has shape {array.shape} and holds {array.dtype}, expected one text")
    return str(array)


def json_of(arrays: Arrays, name: str) -> Any:
    """Raises ArrayError for a text that is no json."""
    try:
        return json.loads(text_of(arrays, name))
    except (ValueError, RecursionError) as error:
        raise ArrayError(name, f"is no json: {' '.join(str(error).split())}") from None


def size_option(options: Mapping[str, Any], name: str, least: int = 2) -> int:
    """A number of pieces or regions. Raises ArrayError for what is none, or beyond `MAX_SIZE`."""
    value = options.get(name)
    if type(value) is not int or not least <= value <= MAX_SIZE:
        raise ArrayError("config", f"{name} must be a whole number from {least} to {MAX_SIZE}, got {value!r}")
    return value


def photo_edges(config: Mapping[str, Any]) -> DetectorConfig:
    """The edges that a case's photos are resized to. Raises ArrayError where it says none."""
    scales = _SCALES.search(str(config.get("official")))
    if scales is None:
        raise ArrayError("config", 'says no "SCALES a/b", the edges that photos are resized to')
    return DetectorConfig(short_edge=int(scales[1]), long_edge=int(scales[2]))


def photo_pixels(arrays: Arrays, image: str, *shape: int | None) -> np.ndarray:
    """(height, width, 3) uint8, B, G, R; R, G, B in the file."""
    pixels = arrays.take(f"image/{image}.rgb", *(shape or (None, None)), 3)
    if pixels.dtype != np.uint8:
        raise ArrayError(f"image/{image}.rgb", f"holds {pixels.dtype}, expected bytes")
    return np.ascontiguousarray(pixels[..., ::-1])


def stored_record(arrays: Arrays, image: str, image_id: str) -> RegionRecord:
    """What a store would hold of an image, whose features, boxes and size the case has."""
    boxes = arrays.take_finite(f"image/{image}.boxes", None, 4).astype(np.float32)
    features = arrays.take_finite(f"image/{image}.features", len(boxes), None).astype(np.float32)
    width, height = (int(each) for each in arrays.take(f"image/{image}.size_wh", 2))
    whole = f"image/{image}.image_box_feature"
    return RegionRecord(
        image_id=image_id,
        height=height,
        width=width,
        boxes=boxes,
        features=features,
        class_ids=np.zeros(len(boxes), np.uint16),
        class_scores=np.zeros(len(boxes), np.float32),
        image_feature=arrays.take_finite(whole, 1, features.shape[1])[0].astype(np.float32)
        if whole in arrays
        else None,
    )


def write_item_file(arrays: Arrays, name: str, path: Path) -> str:
    """Writes the text of an array, as it is; the path, for a reader."""
    path.write_bytes(text_of(arrays, name).encode("utf-8"))
    return str(path)


def write_pickle(value: Any, path: Path) -> str:
    """Writes what a case shows as json as the pickle that it is; the path, for a reader."""
    path.write_bytes(pickle.dumps(value, protocol=2))
    return str(path)


def same_json(arrays: Arrays, name: str, ours: Any) -> Check:
    """Whether a json text holds our value; numbers are equal to the last digit."""
    theirs = json_of(arrays, name)
    return within(name, float(ours != theirs), 0, "must be equal", "" if ours == theirs else f"ours is {ours!r:.200}")


def leaves(arrays: Arrays) -> dict[str, dict[str, dict[str, str]]]:
    """Mode, or "" where a case has none -> number of the item, or `BATCH` -> leaf -> the array's name."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name in arrays.names:
        if match := _LEAF.fullmatch(name):
            found.setdefault(match[1] or "", {}).setdefault(match[2], {})[match[3]] = name
    return found


def item_checks(arrays: Arrays, named: Mapping[str, str], made: Item) -> Iterator[Check]:
    """Every leaf of an item: whole numbers and masks are equal, pixels a grey level apart, the rest within the README's
    tolerance.

    Args:
        named: leaf -> the array's name.
    """
    for leaf, name in named.items():
        want = arrays.take(name)
        if leaf not in made:
            yield failed(name, "no such output of ours")
        elif want.dtype.kind in "biu" or leaf == "masks":
            yield equal(name, made[leaf], want)
        elif leaf == "image":
            yield apart(name, made[leaf], want, VLBERT.grey_levels)
        else:
            yield close(name, made[leaf], want, ITEM_TOLERANCE)


def list_checks(arrays: Arrays, items: Sequence[Item]) -> Iterator[Check]:
    """The items of a case that reads its data set in one way."""
    for number, named in leaves(arrays).get("", {}).items():
        yield from item_checks(arrays, named, items[int(number)] if int(number) < len(items) else {})


def at(rows: Sequence[Any], number: int) -> Any:
    """Raises ValueError for an item that is not there."""
    if number >= len(rows):
        raise ValueError(f"item {number} of {len(rows)}")
    return rows[number]


def filled(values: np.ndarray, count: int, axis: int = 0) -> np.ndarray:
    """The values with zeros behind them, so that there are `count` in all."""
    width = [(0, 0)] * values.ndim
    width[axis] = (0, count - values.shape[axis])
    return np.pad(values, width)


def padded(rows: Sequence[np.ndarray], fill: float) -> np.ndarray:
    """(B, longest row, ...)."""
    found: np.ndarray = np.full((len(rows), max(map(len, rows), default=0), *rows[0].shape[1:]), fill, rows[0].dtype)
    for own, row in zip(found, rows, strict=True):
        own[: len(row)] = row
    return found
