"""The page of `roibeam store diff`: the figures, and the worst images with the boxes of both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.photos.photo_file import read_local_file
from roibeam.features.comparison.record_source import RecordSource
from roibeam.features.comparison.region_matching import match_regions
from roibeam.features.comparison.store_comparison import ImageComparison, StoreComparison
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.extract.report.store_report import photo_thumbnail, write_page
from roibeam.pipelines.sources.datasets.folder import list_folder
from roibeam.pipelines.sources.image_finder import ImageFinder
from roibeam.pipelines.stores.comparison_report import (
    ComparedBox,
    ComparedImage,
    ComparedSide,
    comparison_html,
)


def write_comparison_page(
    path: Path, found: StoreComparison, left: RecordSource, right: RecordSource, *, images: str | None
) -> None:
    """Writes one offline page: the figures, and the worst images with their boxes, left beside right.

    Args:
        images: folder of the photos, found by image id, file name or COCO number; None draws empty canvases.
    Raises:
        ValueError: when `images` is no folder.
        OSError: when the page cannot be written, naming `path`.
    """
    photos = _Photos(images)
    pictures = [_compared_image(image, left, right, photos) for image in found.worst]
    page = comparison_html(found, found.rows(), pictures)
    try:
        write_page(path, page)
    except OSError as error:
        raise OSError(f"{path}: the page cannot be written: {error.strerror or error}") from None


def check_page_path(path: Path) -> None:
    """Raises ValueError where no page can be written: to be asked before a long comparison."""
    if path.is_dir():
        raise ValueError(f"--html {path}: is a folder; name a file, such as {path / 'diff.html'}")
    if not path.parent.is_dir():
        raise ValueError(f"--html {path}: there is no folder {path.parent}; make it, or name a file in another one")


class _Photos:
    """Where the photo of an image lies; only files that the folder's listing names are ever opened."""

    def __init__(self, folder: str | None) -> None:
        listed = list_folder(folder).images() if folder is not None else ()
        self._locations = {image.image_id: image.location for image in listed}
        self._finder = ImageFinder(self._locations)
        self._folder = folder

    def thumbnail(self, image: ImageComparison, image_hw: tuple[int, int]) -> tuple[bytes | None, str]:
        """A JPEG of the photo, or None and why there is none."""
        if self._folder is None:
            return None, ""
        found = self._finder.find(image.image_id) or self._finder.find(image.right_id)
        if found is None:
            return None, f"no photo of this name in {self._folder}"
        locations = {image.image_id: self._locations[found]}
        return photo_thumbnail(image.image_id, image_hw, locations.get, read_local_file, decode_image)


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
        what = f"box {x1:.1f} {y1:.1f} {x2:.1f} {y2:.1f}"
        if source.has_classes:
            class_id = int(own.class_ids[row])
            known = source.classes is not None and class_id < len(source.classes)
            name = source.classes[class_id] if known and source.classes is not None else f"class {class_id}"
            what = f"{name} {float(own.class_scores[row]):.3f}, {what}"
        number, partner = number_of.get(row, (None, None))
        if partner is not None:
            moved = float(np.abs(own.boxes[row] - other.boxes[partner]).max())
            what = f"pair {number}: {what}; the other is {moved:.2f} px away"
        boxes.append(ComparedBox((x1, y1, x2, y2), number, what))
    return ComparedSide((own.height, own.width), tuple(boxes), *photo)
