"""Photos with labelled objects that a detector is trained or judged on, from the files of COCO or Visual Genome."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.extraction.photos.photo_file import read_local_file
from roibeam.pipelines.sources.datasets.coco import read_coco_instances
from roibeam.pipelines.sources.datasets.labelled_image import LabelledImage
from roibeam.pipelines.sources.datasets.rows import BadRow
from roibeam.pipelines.sources.datasets.visual_genome import read_names, read_visual_genome
from roibeam.pipelines.sources.vocabulary import ATTRIBUTES_FILE, CLASSES_FILE


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

    @property
    def digest(self) -> str:
        """SHA-256 of ids, boxes, labels and names: what a run is trained on, but for the pixels."""
        digest = hashlib.sha256(repr((self.class_names, self.attribute_names)).encode())
        for image in self.images:
            digest.update(f"{image.image_id}\n{image.boxes.shape[0]} {image.attribute_ids.shape[1]}\n".encode())
            for values in (image.boxes, image.class_ids, image.attribute_ids, image.ignored):
                digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()


def open_labelled_photos(path: str, *, image_root: str | None = None, vocab: str | None = None) -> LabelledPhotos:
    """Reads the labels of a data set.

    Args:
        path: instances `.json` of COCO, or a split's list `.txt` of Visual Genome with its xml files beside it.
        image_root: folder of the photos; None means the folder of `path`.
        vocab: folder of objects_vocab.txt and attributes_vocab.txt for Visual Genome; None means the folder of `path`.
            COCO's files hold their names themselves.
    Raises:
        ValueError: for another kind of file, a file that is not as its data set writes it, or no photo with an object.
        OSError: if a file cannot be read.
    """
    folder = os.path.dirname(os.path.abspath(path))
    root = folder if image_root is None else image_root
    left_out: Counter[str] = Counter()
    images: list[LabelledImage] = []
    attributes: tuple[str, ...] = ()
    if path.endswith(".json"):
        if vocab is not None:
            raise ValueError(f"--vocab {vocab!r}: {path!r} holds the names of its classes itself; leave it out")
        instances = read_coco_instances(path)
        images, classes = instances.images, instances.class_names
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
        raise ValueError(f"{path!r}: none of its {len(images):,} photos has an object; is the vocabulary its own?")
    return LabelledPhotos(tuple(images), root, classes, attributes, dict(left_out))


def read_photo(image: LabelledImage, root: str, exif_orientation: str) -> np.ndarray:
    """Decodes a photo and compares its size with what its labels were made for.

    Returns:
        (height, width, 3) uint8, channel order B, G, R.
    Raises:
        ValueError: if it is missing, cannot be decoded, or has another size than the labels say.
    """
    path = os.path.join(root, image.file_name)
    try:
        pixels = decode_image(read_local_file(path), exif_orientation=exif_orientation)
    except OSError as error:
        raise ValueError(
            f"{path}: {error.strerror or error}; --photos names the folder of the photos "
            f"(of pretrain --labels-photos and --judge-photos)"
        ) from None
    except DecodeError as error:
        raise ValueError(f"{path}: {error}; mend the file or take it out of the list") from None
    if image.image_hw is not None and pixels.shape[:2] != image.image_hw:
        got, said = (f"{width}x{height}" for height, width in (pixels.shape[:2], image.image_hw))
        raise ValueError(f"{path}: {got} pixels, its labels were made for {said}; boxes would not fit the photo")
    return pixels


def check_same_names(
    photos: LabelledPhotos, classes: tuple[str, ...], attributes: tuple[str, ...], detector: str
) -> None:
    """Raises ValueError when a detector's ids do not mean what those of the labels mean. Labels may have no attributes.

    Args:
        detector: how the error calls it.
    """
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
