"""Regions of a record: the strongest, those at the boxes of a task, their objects and outlines, and mirrored ones.

A store that was extracted with --boxes has a region for each object, without the classes of the file; `ImageObjects`
reads them from the same file again: COCO instances (.json), or VCR's folder vcr1images with the metadata of each photo.
Outlines become masks over the cells of regions, as in jackroos/VL-BERT common/utils/mask.py and rowanz/r2c
dataloaders/mask_utils.py before it. Mirroring a photo left to right moves its boxes, and swaps words of left and right.
No torch.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from roibeam.features.record.fingerprint import has_grid
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.data.datasets.coco import CocoObjects, read_coco_objects
from roibeam.pipelines.data.datasets.vcr import (
    OBJECT_CLASSES,
    metadata_path,
    object_classes,
    read_object_names,
    read_vcr_metadata,
)
from roibeam.pipelines.data.image_table import ImageFinder


def strongest_regions(record: RegionRecord, max_regions: int) -> np.ndarray:
    """(n,) int64, the regions of the highest class score (of equal ones the first), in the order of the record.

    Args:
        max_regions: how many; 0 = all.
    """
    if not max_regions or record.num_regions <= max_regions:
        return np.arange(record.num_regions)
    return np.sort(np.argsort(-record.class_scores, kind="stable")[:max_regions])


def check_whole_grid(store: FeatureStore, max_regions: int, field: str) -> None:
    """Raises ValueError where only some cells of a grid would be used: without scores, the upper rows of the photo.

    Args:
        max_regions: of an image; 0 = all.
        field: the setting that it is.
    """
    if not max_regions or not has_grid(store.fingerprint):
        return
    most = int(store.num_regions_of(store.ids()).max(initial=0))
    if most > max_regions:
        raise ValueError(
            f"store {store.path} has up to {most:,} cells of a grid in an image, and {field} keeps the best "
            f"{max_regions}: cells have no scores, so that would be the top of the photo; set {field} to {most}, or "
            f"extract fewer cells (--grid)"
        )


def mirrored_boxes(boxes: np.ndarray, width: float) -> np.ndarray:
    """(..., 4) boxes x1 y1 x2 y2 of the photo mirrored left to right: x becomes width - 1 - x.

    Args:
        boxes: (..., 4), pixels of the photo.
        width: of the photo, in pixels.
    """
    mirrored = np.array(boxes)
    mirrored[..., 0] = width - 1 - boxes[..., 2]
    mirrored[..., 2] = width - 1 - boxes[..., 0]
    return mirrored


_SIDES = re.compile(r"\b(left|right)(most|wards?|hand)?\b", re.IGNORECASE)
_OTHER = {"left": "right", "right": "left"}


def swap_left_right(caption: str) -> str:
    """The caption with "left" for "right" and the other way round: whole words, "leftmost", "rightward".

    Words alone are looked at, so "the bus left" becomes "the bus right". VL-BERT's release swaps them for RefCOCO+ and
    VQA, and not in pre-training, where it mirrors photos too.
    """
    return _SIDES.sub(lambda found: _like(found[1], _OTHER[found[1].lower()]) + (found[2] or ""), caption)


def _like(pattern: str, word: str) -> str:
    """The word in the case of the pattern: left, Left or LEFT."""
    if pattern.isupper():
        return word.upper()
    return word.capitalize() if pattern[0].isupper() else word


MOST_PIXELS_APART = 0.01  # float32 corners of photos of a few thousand pixels, computed in two ways


def regions_at_boxes(record: RegionRecord, boxes: np.ndarray) -> np.ndarray:
    """(n,) int64, for each box the number of the region at its place; of several the one of its own number, else the
    first. Raises ValueError naming a box without a region, for a store that was extracted at other boxes.

    Args:
        boxes: (n, 4), x1 y1 x2 y2 in pixels of the photo. What lies outside the photo does not count, as in extraction.
    """
    limits = np.array([record.width, record.height] * 2, np.float32)
    clipped = np.clip(np.asarray(boxes, np.float32).reshape(-1, 4), 0, limits)
    if not len(clipped):
        return np.zeros(0, np.int64)
    stored = np.clip(record.boxes, 0, limits)
    apart = np.abs(clipped[:, None] - stored[None]).max(axis=2, initial=0.0)
    is_there = apart <= MOST_PIXELS_APART
    missing = np.flatnonzero(~is_there.any(axis=1))
    if len(missing):
        box = ", ".join(f"{each:g}" for each in boxes[missing[0]])
        raise ValueError(
            f"record {record.image_id!r}: no region at {len(missing)} of {len(clipped)} boxes of the task, such as "
            f"{box}; extract with --boxes from the file that the task takes its boxes from"
        )
    found = is_there.argmax(axis=1)
    own = np.arange(min(is_there.shape))
    found[own] = np.where(is_there[own, own], own, found[own])
    return found


MASK_SIDE = 14  # cells of a mask, across and down, as of the map that RoIAlign gives
Outline = tuple[np.ndarray, ...] | None  # polygons (P, 2), x y in pixels of the photo; None for the whole box


def masks_of_regions(record: RegionRecord, boxes: np.ndarray, outlines: Sequence[Outline], side: int) -> np.ndarray:
    """(K, side, side) float32 for the regions of a record: 1 in cells inside an object's outline, and in all cells of a
    region that is no object. Raises ValueError when a box is not among the record's.

    Args:
        boxes: (n, 4), x1 y1 x2 y2 in pixels of the photo, of the objects.
    """
    masks = np.ones((record.num_regions, side, side), np.float32)
    for number, region in enumerate(regions_at_boxes(record, boxes)):
        outline = outlines[number]
        if outline is not None:
            masks[region] = outline_mask(outline, boxes[number], side)
    return masks


def outline_mask(polygons: Sequence[np.ndarray], box: np.ndarray, side: int = MASK_SIDE) -> np.ndarray:
    """(side, side) float32, 1 in cells whose number lies in or on one of the polygons, scaled to the box.

    Args:
        polygons: (P, 2) each, x y in pixels of the photo.
        box: (4,), x1 y1 x2 y2 in the same pixels; x2 and y2 are the last pixels inside.
    """
    mask = np.zeros((side, side), np.float32)
    corner = box[:2].astype(np.float32)
    scale = np.float32(side) / (box[2:].astype(np.float32) - corner + 1)
    for polygon in polygons:
        scaled = ((polygon.astype(np.float32) - corner) * scale).clip(0, side - 1)
        mask[_cells_inside(scaled.astype(np.float64), side)] = 1
    return mask


def _cells_inside(polygon: np.ndarray, side: int) -> np.ndarray:
    """(side, side) bool by row and column: crossings of a ray to the right and to the left, which differ on an edge."""
    rows, columns = np.mgrid[:side, :side]
    x, y = polygon[:, 0, None, None] - columns, polygon[:, 1, None, None] - rows
    before_x, before_y = np.roll(x, 1, axis=0), np.roll(y, 1, axis=0)
    rise = before_y - y
    flat = rise == 0
    with np.errstate(invalid="ignore"):
        crossing = (x * before_y - before_x * y) / np.where(flat, 1, rise)
    right = (((y > 0) != (before_y > 0)) & (crossing > 0)).sum(axis=0) % 2
    left = (((y < 0) != (before_y < 0)) & (crossing < 0)).sum(axis=0) % 2
    vertex = ((x == 0) & (y == 0)).any(axis=0)
    return np.asarray(vertex | (right != left) | (right == 1))


log = logging.getLogger(__name__)
WHOLE_IMAGE = -1  # in place of a region's number


class ImageObjects:
    """
    Args:
        locations: COCO instances .json, or folders with VCR's metadata. An image is that of the first that has it.
        names_file: names of the classes, one a line, in the order of their numbers; "" for those of the files: of COCO
            instances its categories by number, of VCR COCO's 80.
    Raises:
        ValueError: when a file cannot be read, files have other classes, or an image is in none of them.
    Attributes:
        class_names: in the order of their numbers, from 1 on; 0 is the whole image and whatever is no object.
    """

    def __init__(self, locations: Sequence[str], image_ids: Collection[str], *, names_file: str = "") -> None:
        self._files: dict[str, CocoObjects] = {}
        self._folders = [each for each in locations if os.path.isdir(each)]
        given = tuple(map(_plain, read_object_names(names_file))) if names_file else None
        names = given or (OBJECT_CLASSES if self._folders else None)
        finder = ImageFinder(image_ids)
        for location in (each for each in locations if each not in self._folders):
            own, images, bad = read_coco_objects(location)
            for note in (note for each in bad for note in each.notes()):
                log.warning("%s: %s", location, note)
            own = tuple(map(_plain, own))
            if given is not None and not set(own) <= set(given):
                unknown = next(each for each in own if each not in given)
                raise ValueError(f"{location!r}: category {unknown!r} is not among the names of {names_file!r}")
            if names is not None and given is None and own != names:
                raise ValueError(
                    f"{location!r}: other classes than those of the other files, such as {_first(own, names)}; a file "
                    f"with the names of all is sampling.object_names"
                )
            names = names or own
            numbers = np.array([names.index(each) for each in own], np.int64)
            for image in images:
                found = finder.find(image.image_id)
                if found is not None:
                    classes = numbers[image.class_ids] if len(image.class_ids) else image.class_ids
                    objects = CocoObjects(found, image.boxes, classes + 1, image.outlines)
                    self._files.setdefault(found, objects)
        self.class_names: tuple[str, ...] = names or ()
        self._check(image_ids, locations)

    def classes(self, record: RegionRecord) -> np.ndarray:
        """(K,) int64, the class of each region of a record; 0 where it is no object. Raises ValueError when an object
        has no region, or is of an unknown class."""
        objects = self._of(record.image_id)
        found = np.zeros(record.num_regions, np.int64)
        found[regions_at_boxes(record, objects.boxes)] = objects.class_ids
        return found

    def masks(self, record: RegionRecord, regions: Iterable[int], side: int) -> np.ndarray:
        """(R, side, side) float32, 1 in the cells inside an outline; of the whole image, and whatever is no object, 1
        everywhere.

        Args:
            regions: numbers of the record's regions, and `WHOLE_IMAGE`.
        """
        objects = self._of(record.image_id)
        masks = masks_of_regions(record, objects.boxes, objects.outlines, side)
        return np.concatenate([masks, np.ones((1, side, side), np.float32)])[list(regions)]

    def _of(self, image_id: str) -> CocoObjects:
        if image_id in self._files:
            return self._files[image_id]
        path = self._path(image_id)
        assert path is not None
        metadata = read_vcr_metadata(path)
        if len(metadata.names) < len(metadata.boxes):
            raise ValueError(f"{path!r}: expected the names of its {plural(len(metadata.boxes), 'box', 'boxes')}")
        classes = object_classes([_plain(each) for each in metadata.names], path, self.class_names)
        return CocoObjects(image_id, metadata.boxes[:, :4], classes, metadata.outlines)

    def _path(self, image_id: str) -> str | None:
        """Path of the metadata of a photo of VCR; its id may have folders in front, see `ImageFinder`."""
        parts = image_id.split("/")
        ends = [f"{'/'.join(parts[start:])}.jpg" for start in range(len(parts))]
        paths = (metadata_path(os.path.join(folder, end)) for end in ends for folder in self._folders)
        return next((path for path in paths if os.path.isfile(path)), None)

    def _check(self, image_ids: Collection[str], locations: Sequence[str]) -> None:
        missing = [each for each in image_ids if each not in self._files and self._path(each) is None]
        if missing:
            raise ValueError(
                f"{plural(len(missing), 'image')} of {len(image_ids):,} without objects, such as {missing[0]!r}: not "
                f"in {', '.join(map(repr, locations))}; name the file with --objects that extract took as --boxes"
            )


def _plain(name: str) -> str:
    """COCO's name in VCR's form: without blanks."""
    return name.replace(" ", "")


def _first(own: Sequence[str], others: Sequence[str]) -> str:
    """A name that the others do not have at its place."""
    differing = (name for number, name in enumerate(own) if name not in others or others.index(name) != number)
    return repr(next(differing, own[-1] if own else ""))
