"""Photos with labelled objects that a detector is trained or evaluated on, from the files of COCO or Visual Genome."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roibeam.extraction.photos.decode import DecodeError, decode_image, header_hw
from roibeam.extraction.photos.image_ref import read_local_file
from roibeam.messages import plural
from roibeam.pipelines.common.compute import is_main_process
from roibeam.pipelines.common.console.progress import PHOTOS, Progress
from roibeam.pipelines.data.datasets.coco import read_coco_instances
from roibeam.pipelines.data.datasets.image_boxes import OUTSIDE, LabelledImage
from roibeam.pipelines.data.datasets.known_files import refuse_others
from roibeam.pipelines.data.datasets.rows import BadRow
from roibeam.pipelines.data.datasets.visual_genome import read_names, read_visual_genome
from roibeam.pipelines.data.vocabulary import ATTRIBUTES_FILE, CLASSES_FILE

_MOST_OUTSIDE = 0.05  # of the boxes; Visual Genome's own reach outside now and then, those of a wrong format mostly
_LOOKING_THREADS = 16  # that wait for headers
_NAMED_MISSING = 5


@dataclass(frozen=True, eq=False)
class LabelledPhotos:
    """A set of photos and what is labelled in them.

    Attributes:
        images: in file order.
        root: folder that their file names are below.
        class_names, attribute_names: in id order; no attribute names where the files have none.
        left_out: for each reason how many objects, attributes or rows of the files are not here.
    """

    images: tuple[LabelledImage, ...]
    root: str
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    left_out: Mapping[str, int]
    path: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of ids, boxes, labels and names as the files have them: what a run is trained on, but for the
        pixels."""
        digest = hashlib.sha256(repr((self.class_names, self.attribute_names)).encode())
        for image in (each.as_in_file or each for each in self.images):
            digest.update(f"{image.image_id}\n{image.boxes.shape[0]} {image.attribute_ids.shape[1]}\n".encode())
            for values in (image.boxes, image.class_ids, image.attribute_ids, image.ignored):
                digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()

    @property
    def num_repeats(self) -> int:
        """Rows of photos that an earlier row names."""
        return len(self.images) - len({image.image_id for image in self.images})

    def once(self, most: int | None = None) -> LabelledPhotos:
        """The same with the first row of each photo alone, and of `most` photos at most."""
        firsts: dict[str, LabelledImage] = {}
        for image in self.images:
            firsts.setdefault(image.image_id, image)
        return replace(self, images=tuple(firsts.values())[:most])

    def facts(self) -> dict[str, Any]:
        """Losses and changes of the labels on their way, for a run's records."""
        return {
            "left_out": dict(self.left_out),
            "boxes_clipped": sum(image.num_outside for image in self.images),
            "sizes_of_photos": sum(image.as_in_file is not None for image in self.images),
            "named_again": self.num_repeats,
        }

    def notes(self) -> list[str]:
        """The same for people, a line each; none where nothing was lost or gained."""
        facts = self.facts()
        lines = [f"left out of the labels: {count:,} x {reason}" for reason, count in self.left_out.items()]
        if clipped := facts["boxes_clipped"]:
            lines.append(f"{plural(clipped, 'box', 'boxes')} over 1 % and 1 pixel outside the photo: clipped to it")
        if sized := facts["sizes_of_photos"]:
            lines.append(f"labels without width and height: those of {plural(sized, 'photo')} are from the photos")
        if self.num_repeats:
            lines.append(f"{plural(self.num_repeats, 'row')} of the list name a photo again; each counts")
        return lines


def open_labelled_photos(path: str, *, image_root: str | None = None, vocab: str | None = None) -> LabelledPhotos:
    """Reads the labels of a data set.

    Args:
        path: instances `.json` of COCO, or a split's list `.txt` of Visual Genome with its xml files beside it.
        image_root: folder of the photos; None means the folder of `path`.
        vocab: folder of objects_vocab.txt and attributes_vocab.txt for Visual Genome; None means the folder of `path`.
            COCO's files hold their names themselves.
    """
    folder = os.path.dirname(os.path.abspath(path))
    root = folder if image_root is None else image_root
    left_out: Counter[str] = Counter()
    images: list[LabelledImage] = []
    attributes: tuple[str, ...] = ()
    refuse_others(path, ("coco", "visual-genome-split"))
    if path.endswith(".json"):
        if vocab is not None:
            raise ValueError(f"--vocab {vocab!r}: {path!r} holds the names of its classes itself; leave it out")
        instances = read_coco_instances(path)
        images, classes = instances.images, instances.class_names
        for bad in instances.bad:
            left_out.update(bad.by_reason())
    elif path.endswith(".txt"):
        names = folder if vocab is None else vocab
        class_list, attribute_list = (read_names(os.path.join(names, each)) for each in (CLASSES_FILE, ATTRIBUTES_FILE))
        for row in read_visual_genome(path, class_list, attribute_list):
            if isinstance(row, BadRow):
                left_out[row.reason] += 1
            else:
                images.append(row)
        classes, attributes = class_list.names, attribute_list.names
    else:
        raise ValueError(
            f"{path!r}: expected the instances .json of COCO, or a list .txt of Visual Genome such as train.txt"
        )
    for image in images:
        left_out.update(image.left_out)
    if not any((~image.ignored).any() for image in images):
        raise ValueError(f"{path!r}: none of its {plural(len(images), 'photo')} {_without_objects(images)}")
    _check_boxes(images, path)
    return LabelledPhotos(tuple(images), root, classes, attributes, dict(left_out), path)


def _without_objects(images: Iterable[LabelledImage]) -> str:
    num_ignored = sum(len(image.boxes) for image in images)
    if num_ignored:
        what = "1 box is a crowd" if num_ignored == 1 else f"{num_ignored:,} boxes are crowds"
        return f"has an object to learn from: all of its {what} or marked to be ignored"
    return "has an object; is the vocabulary its own?"


def _check_boxes(images: Iterable[LabelledImage], path: str) -> None:
    """Raises ValueError where the boxes as a whole cannot be pixels of their photos."""
    rows = list(images)
    kept = sum(len(image.boxes) for image in rows)
    is_coco = path.endswith(".json")
    if kept and max(float(image.boxes.max()) for image in rows if len(image.boxes)) <= 1:
        raise ValueError(f"{path!r}: all boxes lie in 0..1; expected pixels of the photo, {_expected(is_coco)}")
    total = kept + sum(image.left_out.count(OUTSIDE) for image in rows)
    outside = sum(image.num_outside for image in rows)
    if outside > _MOST_OUTSIDE * total:
        first = next(image for image in rows if image.num_outside)
        question = "are these x1 y1 x2 y2?" if is_coco else "are these of photos of another size?"
        raise ValueError(
            f"{path!r}: {outside:,} of {plural(total, 'box', 'boxes')} reach over 1 % and 1 pixel outside their "
            f"photos, first those of {first.file_name!r}; {question} Expected are {_expected(is_coco)}"
        )


def _expected(is_coco: bool) -> str:
    return "COCO's x y width height" if is_coco else "Visual Genome's xmin ymin xmax ymax"


def look_at_photos(
    photos: LabelledPhotos,
    exif_orientation: str,
    *,
    is_needed: Callable[[LabelledImage], bool],
    option: str = "--photos",
) -> LabelledPhotos:
    """Looks at the headers of the photos: whether they are there, and have the size in their labels.

    Args:
        exif_orientation: "applied" or "ignored", as the photos will be decoded.
        is_needed: photos that are looked at.
    Returns:
        The same, labels without a size fitted to their photos.
    Raises:
        ValueError: naming photos that are missing, or the first that is of another size or none at all; or for boxes
            that are no pixels of their photos.
    """
    needed = [image for image in photos.images if is_needed(image)]

    def look(image: LabelledImage) -> tuple[int, int] | Exception | None:
        try:
            return header_hw(os.path.join(photos.root, image.file_name), exif_orientation=exif_orientation)
        except (DecodeError, OSError) as error:
            return error

    with (
        Progress("looking at the photos", len(needed), PHOTOS) as progress,
        ThreadPoolExecutor(_LOOKING_THREADS, thread_name_prefix="headers") as pool,
    ):
        found = list(progress.counting(pool.map(look, needed)))
    missing = [
        image.file_name
        for image, seen in zip(needed, found, strict=True)
        if isinstance(seen, FileNotFoundError | NotADirectoryError)
    ]
    if missing:
        named = ", ".join(missing[:_NAMED_MISSING]) + (", ..." if len(missing) > _NAMED_MISSING else "")
        raise ValueError(
            f"{len(missing):,} of the {plural(len(needed), 'photo')} of {photos.path or 'the labels'} are not in "
            f"{photos.root}: {named}; {option} names the folder of the photos; labels of a new run may leave them out"
        )
    fitted: dict[str, LabelledImage] = {}
    for image, seen in zip(needed, found, strict=True):
        is_doubtful = isinstance(seen, Exception) or (seen is not None and image.image_hw not in (None, seen))
        if is_doubtful or (seen is None and image.image_hw is None):
            pixels = read_photo(image, photos.root, exif_orientation)  # its error names what is wrong
            seen = (pixels.shape[0], pixels.shape[1])
        if image.image_hw is None:
            assert isinstance(seen, tuple)
            fitted[image.image_id] = image.fitted(seen)
    if not fitted:
        return photos
    images = tuple(fitted.get(image.image_id, image) for image in photos.images)
    _check_boxes(images, photos.path)
    left_out = Counter(photos.left_out)
    for image in fitted.values():
        left_out.update(Counter(image.left_out) - Counter(image.as_in_file.left_out if image.as_in_file else ()))
    return replace(photos, images=images, left_out=dict(left_out))


def look_once(
    photos: LabelledPhotos,
    exif_orientation: str,
    *,
    is_trained_on: bool,
    option: str = "--photos",
    most: int | None = None,
) -> LabelledPhotos:
    """`look_at_photos` before a run, in each of its processes: the main one looks at all, others where they must.

    Args:
        is_trained_on: photos without an object to learn from are not looked at.
        most: the first so many are of use; None for all.
    """
    is_main = is_main_process()
    first = {image.image_id for image in photos.images[:most]}

    def is_needed(image: LabelledImage) -> bool:
        has_use = image.image_id in first and (not is_trained_on or bool((~image.ignored).any()))
        return has_use and (is_main or image.image_hw is None)

    return look_at_photos(photos, exif_orientation, is_needed=is_needed, option=option)


def read_photo(image: LabelledImage, root: str, exif_orientation: str) -> np.ndarray:
    """Decodes a photo and compares its size with what its labels were made for.

    Returns:
        (height, width, 3) uint8, channel order B, G, R.
    Raises:
        ValueError: if it is missing, cannot be decoded, or has another size than in the labels.
    """
    path = os.path.join(root, image.file_name)
    try:
        pixels = decode_image(read_local_file(path), exif_orientation=exif_orientation)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; put the photo there, or name the right folder") from None
    except DecodeError as error:
        raise ValueError(
            f"{path}: {error}; put a whole copy of it there, then a run goes on (labels without it are another run)"
        ) from None
    if image.image_hw is not None and pixels.shape[:2] != image.image_hw:
        got, expected = (f"{width}x{height}" for height, width in (pixels.shape[:2], image.image_hw))
        raise ValueError(
            f"{path}: {got} pixels, its labels were made for {expected}; "
            f"{_way_out(path, image.image_hw, exif_orientation) or 'boxes would not fit the photo'}"
        )
    return pixels


def _way_out(path: str, labelled_hw: tuple[int, int], exif_orientation: str) -> str | None:
    """Remedy where a photo fits its labels if its EXIF tag is taken the other way; None where it does not."""
    other = {"applied": "ignored", "ignored": "applied"}[exif_orientation]
    if header_hw(path, exif_orientation=other) != labelled_hw:
        return None
    why = (
        "its EXIF tag turned it" if exif_orientation == "applied" else "they are of the photo as its EXIF tag turns it"
    )
    return f"{why}: --set conventions.exif_orientation={other}, or save the photos turned and without the tag"


def check_same_names(
    photos: LabelledPhotos, classes: tuple[str, ...], attributes: tuple[str, ...], detector: str
) -> None:
    """Raises ValueError when a detector's ids mean other things than those of the labels, which may lack attributes."""
    for kind, found, own in (
        ("classes", photos.class_names, classes),
        ("attributes", photos.attribute_names, attributes),
    ):
        if found != own and (found or kind == "classes"):
            place = next((i for i, pair in enumerate(zip(found, own, strict=False)) if pair[0] != pair[1]), None)
            where = "" if place is None else f"; number {place} is {found[place]!r}, of the detector {own[place]!r}"
            raise ValueError(
                f"the labels have {len(found)} {kind}, the detector {detector} has {len(own)}{where}; ids must mean "
                f"the same in both"
            )
