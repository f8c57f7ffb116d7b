"""Labelled photos and detections made by hand or at random, for the tests of how a detector is judged."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from roibeam.pipelines.data.datasets.image_boxes import NO_ATTRIBUTE, LabelledImage


def labelled(
    boxes: object = (),
    class_ids: object = (),
    attributes: tuple[tuple[int, ...], ...] | None = None,
    *,
    ignored: object = None,
    crowds: object = None,
    areas: object = None,
    file_name: str = "a.png",
    image_hw: tuple[int, int] | None = None,
) -> LabelledImage:
    """A row as the readers make them; areas are those of the boxes unless given."""
    box_array = np.asarray(boxes, np.float32).reshape(-1, 4)
    count = len(box_array)
    rows = attributes or ((),) * count
    attribute_ids = np.full((count, max(map(len, rows), default=0)), NO_ATTRIBUTE, np.int64)
    for row, ids in zip(attribute_ids, rows, strict=True):
        row[: len(ids)] = ids
    is_crowd = np.zeros(count, bool) if crowds is None else np.asarray(crowds, bool)
    is_ignored = is_crowd if ignored is None else np.asarray(ignored, bool) | is_crowd
    box_areas = (box_array[:, 2:] - box_array[:, :2]).prod(axis=1)
    return LabelledImage(
        image_id=file_name.rpartition(".")[0], file_name=file_name, image_hw=image_hw, boxes=box_array,
        class_ids=np.asarray(class_ids, np.int64).reshape(-1), attribute_ids=attribute_ids,
        annotation_ids=np.arange(count), areas=box_areas if areas is None else np.asarray(areas, np.float32),
        crowds=is_crowd, ignored=is_ignored, left_out=(),
    )  # fmt: skip


def coco_annotations(images: Iterable[LabelledImage]) -> list[dict[str, Any]]:
    """COCO's entries of these objects, images numbered from 0 and classes from 1; ignored ones are crowds."""
    found: list[dict[str, Any]] = []
    for number, image in enumerate(images):
        rows = zip(image.boxes.tolist(), image.class_ids.tolist(), image.areas.tolist(), image.ignored, strict=True)
        for (x1, y1, x2, y2), class_id, area, ignored in rows:
            entry = {"image_id": number, "category_id": class_id + 1, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": area}
            found.append({"id": len(found) + 1, **entry, "iscrowd": int(ignored)})
    return found


def slow_overlap(box: np.ndarray, other: np.ndarray, extra: float) -> tuple[float, float]:
    """Intersection over union of two (4,) boxes, and the share of `box` in `other`; `extra` is added to each side."""
    sides = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2]) + extra
    shared = np.maximum(sides.astype(np.float64), 0).prod()
    area, other_area = ((each[2:] - each[:2] + extra).astype(np.float64).prod() for each in (box, other))
    return float(shared / (area + other_area - shared)), float(shared / area)


class Found(NamedTuple):
    """Detections of one photo: (N, 4) float32, (N,) int64, (N,) float32."""

    boxes: np.ndarray
    class_ids: np.ndarray
    scores: np.ndarray


def random_boxes(rng: np.random.Generator, count: int, side: int, *, whole: bool) -> np.ndarray:
    """(count, 4) float32 in a photo of side x side pixels, many of them touching its border, none empty."""
    sizes = rng.uniform(2, side * rng.choice([0.2, 0.5, 1.0], count)[:, None], (count, 2))
    corners = rng.uniform(-0.2, 1.2, (count, 2)) * (side - sizes)
    low = np.clip(corners, 0, side - 1)
    boxes = np.concatenate([low, np.clip(corners + sizes, low + 1, side)], axis=1)
    return (np.floor(boxes) if whole else boxes).astype(np.float32)


def random_photo(
    rng: np.random.Generator, num_classes: int, *, side: int = 200, max_found: int = 30, num_attributes: int = 4
) -> tuple[LabelledImage, Found]:
    """Objects (some ignored, some crowds, sometimes none) and detections near them and elsewhere, with equal scores."""
    whole = bool(rng.random() < 0.5)
    count, num_found = int(rng.integers(0, 7)), int(rng.integers(0, max_found + 1))
    boxes = random_boxes(rng, count, side, whole=whole)
    found = random_boxes(rng, num_found, side, whole=whole)
    if count:
        near = rng.random(num_found) < 0.7
        moves = rng.integers(-4, 5, (num_found, 4)) if whole else rng.normal(0, 4, (num_found, 4))
        found[near] = np.clip(boxes[rng.integers(0, count, num_found)] + moves, 0, side)[near]
        found[:, 2:] = np.maximum(found[:, 2:], found[:, :2])
    scores = rng.integers(0, 8, num_found) / 8 if rng.random() < 0.5 else rng.random(num_found)
    image = labelled(
        boxes,
        rng.integers(0, num_classes, count),
        tuple(tuple(rng.permutation(num_attributes)[: rng.integers(0, 3)].tolist()) for _ in range(count)),
        ignored=rng.random(count) < 0.2,
        crowds=rng.random(count) < 0.15,
        areas=(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) * rng.uniform(0.5, 1, count),  # of an outline inside the box
    )
    return image, Found(found, rng.integers(0, num_classes, num_found), scores.astype(np.float32))
