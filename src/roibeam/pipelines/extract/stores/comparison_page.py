"""Page of `roibeam store diff`: the figures, and the worst images with the boxes of both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roibeam.extraction.photos.image_ref import read_local_file
from roibeam.features.comparison_result import ImageComparison, StoreComparison
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.record.region_drawing import label_of, name_of
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.record_pairing import RecordSource, match_regions
from roibeam.pipelines.common.page_layout import Banner
from roibeam.pipelines.data.datasets.photo_folders import list_folder
from roibeam.pipelines.data.image_table import ImageFinder
from roibeam.pipelines.extract.store_page import warning_of_store
from roibeam.pipelines.extract.store_report import photo_thumbnail, write_page
from roibeam.pipelines.extract.stores.comparison_report import ComparedBox, ComparedImage, ComparedSide, comparison_html


def write_comparison_page(
    path: Path, found: StoreComparison, left: RecordSource, right: RecordSource, *, images: str | None
) -> None:
    """Writes one offline page: the figures, and the worst images with their boxes, left beside right.

    Args:
        images: folder of the photos, found by image id, file name or COCO number; None draws empty canvases.
    """
    photos = _Photos(images)
    different = [image for image in found.worst if not _is_equal(image, found.max_error)]
    pictures = [_compared_image(image, left, right, photos) for image in different]
    page = comparison_html(found, found.rows(), pictures, _banners(left, right))
    try:
        write_page(LocalFolder(path.parent), path.name, page)
    except OSError as error:
        raise OSError(f"{path}: the page cannot be written: {error.strerror or error}") from None


def _is_equal(image: ImageComparison, max_error: float) -> bool:
    """Whether an image is alike on both sides, within the tolerances of the comparison."""
    other_size, unmatched, features, moved, other_class, scores = image.badness()
    same_attributes = image.num_same_attribute in (None, image.num_matched)
    exact = not (other_size or unmatched or moved or other_class) and same_attributes
    return exact and features <= max_error and scores <= max_error


def _banners(left: RecordSource, right: RecordSource) -> list[Banner]:
    """Warnings why the regions of a side mean nothing, once where it holds for both."""
    sides: dict[Banner, list[str]] = {}
    for which, source in (("left", left), ("right", right)):
        found = None if source.manifest is None else warning_of_store(source.manifest)
        if found is not None:
            sides.setdefault(found, []).append(which)
    return [
        Banner(f"{' and '.join(which).capitalize()}:", f"{each.title} {each.text}") for each, which in sides.items()
    ]


class _Photos:
    """Finder of images' photos; only files that the folder's listing names are ever opened."""

    def __init__(self, folder: str | None) -> None:
        listed = list_folder(folder).images() if folder is not None else ()
        self._locations = {image.image_id: image.location for image in listed}
        self._finder = ImageFinder(self._locations)
        self._folder = folder

    def thumbnail(self, image: ImageComparison, image_hw: tuple[int, int]) -> tuple[bytes | None, str]:
        """A JPEG of the photo, or None and why there is none."""
        if self._folder is None:
            return None, "photo not shown: name the folder of the photos with --photos"
        found = self._finder.find(image.image_id) or self._finder.find(image.right_id)
        if found is None:
            return None, f"no photo of this name in {self._folder}"
        return photo_thumbnail(self._locations[found], image_hw, read_local_file)


def _compared_image(image: ImageComparison, left: RecordSource, right: RecordSource, photos: _Photos) -> ComparedImage:
    first, second = left.get(image.image_id), right.get(image.right_id)
    assert first is not None and second is not None, "images without a record are not among the worst"
    pairs = match_regions(first.boxes, second.boxes)
    return ComparedImage(
        image,
        _side(first, second, pairs, left, photos.thumbnail(image, image.left_hw)),
        _side(second, first, pairs[:, ::-1], right, photos.thumbnail(image, image.right_hw)),
    )


def _side(
    own: RegionRecord, other: RegionRecord, pairs: np.ndarray, source: RecordSource, photo: tuple[bytes | None, str]
) -> ComparedSide:
    number_of = {row: (number, partner) for number, (row, partner) in enumerate(pairs.tolist(), start=1)}
    boxes = []
    for row in range(own.num_regions):
        x1, y1, x2, y2 = own.boxes[row].tolist()
        name = ""
        if source.has_classes:
            name = label_of(name_of(int(own.class_ids[row]), source.classes, "class"), float(own.class_scores[row]))
        number, partner = number_of.get(row, (None, None))
        moved = None if partner is None else float(np.abs(own.boxes[row] - other.boxes[partner]).max())
        boxes.append(ComparedBox((x1, y1, x2, y2), number, name, moved))
    return ComparedSide((own.height, own.width), tuple(boxes), *photo)
