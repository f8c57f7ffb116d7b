"""Objects of a store's images by what they are and how they are outlined: what R2C's regions are told beside pixels.

A store that was extracted with --boxes has a region for each object, without the classes of the file; here they are
read from the same file again: COCO instances (.json), or VCR's folder vcr1images with the metadata of each photo.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.datasets.coco import CocoObjects, read_coco_objects
from roibeam.pipelines.data.datasets.vcr import (
    OBJECT_CLASSES,
    metadata_path,
    object_classes,
    read_object_names,
    read_vcr_metadata,
)
from roibeam.pipelines.data.image_finder import ImageFinder
from roibeam.pipelines.data.objects.outlines import masks_of_regions
from roibeam.pipelines.data.objects.regions_at_boxes import regions_at_boxes

log = logging.getLogger(__name__)
WHOLE_IMAGE = -1  # in place of a region's number


class ImageObjects:
    """
    Args:
        locations: COCO instances .json, or folders with VCR's metadata. An image is that of the first that has it.
        image_ids: of the images.
        names_file: names of the classes, one a line, in the order of their numbers; "" for those of the files: of COCO
            instances its categories by number, of VCR COCO's 80.
    Raises:
        ValueError: when a file cannot be read, files have other classes, or an image is in none of them.

    Attributes:
        class_names: in the order of their numbers, from 1 on; 0 is the whole image and whatever is no object.
    """

    def __init__(
        self,
        locations: Sequence[str],
        image_ids: Collection[str],
        *,
        names_file: str = "",
    ) -> None:
        self._files: dict[str, CocoObjects] = {}
        self._folders = [each for each in locations if os.path.isdir(each)]
        given = tuple(map(_plain, read_object_names(names_file))) if names_file else None
        names = given or (OBJECT_CLASSES if self._folders else None)
        finder = ImageFinder(image_ids)
        for location in (each for each in locations if each not in self._folders):
            own, images, bad = read_coco_objects(location, id_rule="with-extension")
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
        """(K,) int64, the class of each region of a record; 0 where it is no object.

        Raises:
            ValueError: when an object has no region, or is of an unknown class.
        """
        objects = self._of(record.image_id)
        found = np.zeros(record.num_regions, np.int64)
        found[regions_at_boxes(record, objects.boxes)] = objects.class_ids
        return found

    def masks(self, record: RegionRecord, regions: Iterable[int], side: int) -> np.ndarray:
        """(R, side, side) float32, 1 in the cells inside an outline; of the whole image, and whatever is no object, 1
        everywhere.

        Args:
            regions: numbers of the record's regions, and `WHOLE_IMAGE`.
        Raises:
            ValueError: as `classes`.
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
            raise ValueError(f"{path!r}: expected the names of its {counted(len(metadata.boxes), 'box', 'boxes')}")
        classes = object_classes([_plain(each) for each in metadata.names], path, self.class_names)
        return CocoObjects(image_id, metadata.boxes[:, :4], classes, metadata.outlines)

    def _path(self, image_id: str) -> str | None:
        """Of the metadata of a photo of VCR."""
        paths = (metadata_path(os.path.join(folder, f"{image_id}.jpg")) for folder in self._folders)
        return next((path for path in paths if os.path.isfile(path)), None)

    def _check(self, image_ids: Collection[str], locations: Sequence[str]) -> None:
        missing = [each for each in image_ids if each not in self._files and self._path(each) is None]
        if missing:
            raise ValueError(
                f"{counted(len(missing), 'image')} of {len(image_ids):,} without objects, such as {missing[0]!r}: not "
                f"in {', '.join(map(repr, locations))}; name the file with --objects that extract took as --boxes"
            )


def _plain(name: str) -> str:
    """As VCR writes COCO's names: without blanks."""
    return name.replace(" ", "")


def _first(own: Sequence[str], others: Sequence[str]) -> str:
    """A name that the others do not have at its place."""
    differing = (name for number, name in enumerate(own) if name not in others or others.index(name) != number)
    return repr(next(differing, own[-1] if own else ""))
