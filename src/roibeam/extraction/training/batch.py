"""Training batch of a detector: photos with labelled objects -> one zero-padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.photos.preprocessing import input_size
from roibeam.extraction.region_encoder import prepare_photo
from roibeam.extraction.training.targets import IGNORE, Objects

SIZE_STEP = 32  # pixels; batches of few different sizes find the kernels of an earlier one prepared


@dataclass(frozen=True, eq=False)
class PhotoObjects:
    """Labels of one photo; M may be 0.

    Attributes:
        boxes: (M, 4) numbers, x1 y1 x2 y2 in photo pixels, decoded by `Conventions.exif_orientation`.
        class_ids: (M,) integers, 0-based; those of ignored rows are not read.
        attribute_ids: (M, S) integers: any number of attributes of an object, 0-based, in any column;
            `num_attributes` means "no attribute", -1 fills the rest and means nothing. An object without known
            attributes is a row of -1; the original trains such objects on "no attribute"
            (peteanderson80/bottom-up-attention lib/rpn/proposal_target_layer.py::_sample_rois: only columns after the
            first lose their zeros). S may be 0.
        ignored: (M,) bool: crowds, and objects too hidden to be found. A box inside one is neither object nor
            background.
    """

    boxes: np.ndarray
    class_ids: np.ndarray
    attribute_ids: np.ndarray
    ignored: np.ndarray


@dataclass(frozen=True, eq=False)
class TrainingPhoto:
    """One photo as input of the training, with its objects in network-input pixels; the rest as in `PreparedPhoto` and
    `NetworkInput`."""

    pixels: Tensor
    input_hw: tuple[int, int]
    factor: float
    objects: Objects


@dataclass(frozen=True, eq=False)
class DetectionBatch:
    """B photos, padded with zeros at the right and bottom.

    Attributes:
        pixels: (B, 3, H, W) float32.
        input_hw, factors, objects: of each photo, as in `TrainingPhoto`.
        seeds: of each photo, for the sample of its anchors and regions: it depends on nothing else of a batch.
    """

    pixels: Tensor
    input_hw: tuple[tuple[int, int], ...]
    factors: tuple[float, ...]
    objects: tuple[Objects, ...]
    seeds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.input_hw)

    def photo(self, index: int) -> DetectionBatch:
        """A batch of one photo, with the padding it has here."""
        only = slice(index, index + 1)
        return DetectionBatch(
            self.pixels[only], self.input_hw[only], self.factors[only], self.objects[only], self.seeds[only]
        )

    def to(self, device: torch.device | str) -> DetectionBatch:
        """The same batch on `device`."""
        objects = tuple(each.to(device) for each in self.objects)
        return DetectionBatch(
            self.pixels.to(device, non_blocking=True), self.input_hw, self.factors, objects, self.seeds
        )


def prepare_training_photo(
    image: np.ndarray, objects: PhotoObjects, config: DetectorConfig, conventions: Conventions, *, flip: bool = False
) -> TrainingPhoto:
    """Resizes a photo and removes the mean, optionally mirrors it; its boxes go along and are clipped.

    An object that clipping removes is left out: no box can be learned for it.

    Args:
        image: (height, width, 3) uint8, channel order B, G, R.
        config: edges, and the numbers of classes and attributes. Another short edge for each photo
            (`dataclasses.replace`) is multi-scale training.
        flip: whether photo and boxes are mirrored left to right.
    """
    class_ids, attribute_ids, ignored = _checked_labels(objects, config)
    if conventions.no_attribute == "none":  # a network that does not know it does not learn it
        attribute_ids = attribute_ids.masked_fill(attribute_ids == config.num_attributes, IGNORE)
    prepared = prepare_photo(image, objects.boxes, config, conventions, flip=flip)
    boxes = prepared.boxes
    _, factor = input_size(prepared.image_hw, config.short_edge, config.long_edge, conventions)
    # Boxes of the conventions that count the last pixel have a side of 1 where x2 equals x1.
    nonempty = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    if conventions.plus_one_sides:
        nonempty = (boxes[:, 2:] >= boxes[:, :2]).all(dim=1)
    kept = Objects(boxes[nonempty], class_ids[nonempty], attribute_ids[nonempty], ignored[nonempty])
    return TrainingPhoto(prepared.pixels, prepared.input_hw, factor, kept)


def collate_training_photos(photos: Sequence[TrainingPhoto], seeds: Sequence[int]) -> DetectionBatch:
    """Pads to the largest height and width, both rounded up to whole steps of 32 pixels.

    Args:
        seeds: one for each photo, 0 <= seed < 2^63; see `DetectionBatch.seeds`.
    """
    if not photos or len(photos) != len(seeds):
        raise ValueError(f"a training batch needs photos and a seed for each, got {len(photos)} and {len(seeds)}")
    height, width = (-(-max(photo.pixels.shape[axis] for photo in photos) // SIZE_STEP) * SIZE_STEP for axis in (1, 2))
    pixels = torch.zeros(len(photos), 3, height, width)
    for row, photo in enumerate(photos):
        pixels[row, :, : photo.pixels.shape[1], : photo.pixels.shape[2]] = photo.pixels
    return DetectionBatch(
        pixels,
        tuple(photo.input_hw for photo in photos),
        tuple(photo.factor for photo in photos),
        tuple(photo.objects for photo in photos),
        tuple(seeds),
    )


def _checked_labels(objects: PhotoObjects, config: DetectorConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Class ids (M,) int64, attribute ids (M, S) int64, ignored (M,) bool."""
    count = len(objects.boxes)
    class_ids, attribute_ids, ignored = (
        np.asarray(each) for each in (objects.class_ids, objects.attribute_ids, objects.ignored)
    )
    if (
        class_ids.shape != (count,)
        or attribute_ids.ndim != 2
        or len(attribute_ids) != count
        or ignored.shape != (count,)
        or ignored.dtype != bool
        or class_ids.dtype.kind not in "iu"
        or attribute_ids.dtype.kind not in "iu"
    ):
        raise ValueError(
            f"{count} labelled boxes need class_ids ({count},) integers, attribute_ids ({count}, S) integers and "
            f"ignored ({count},) bool; got {class_ids.shape} {class_ids.dtype}, {attribute_ids.shape} "
            f"{attribute_ids.dtype} and {ignored.shape} {ignored.dtype}"
        )
    wrong_class = ~ignored & ((class_ids < 0) | (class_ids >= config.num_classes))
    if wrong_class.any():
        row = int(np.argmax(wrong_class))
        raise ValueError(
            f"labelled box {row} has class {class_ids[row]}, the detector has classes 0..{config.num_classes - 1}"
        )
    wrong_attribute = ((attribute_ids < IGNORE) | (attribute_ids > config.num_attributes)).any(axis=1)
    if wrong_attribute.any():
        row = int(np.argmax(wrong_attribute))
        raise ValueError(
            f"labelled box {row} has attributes {attribute_ids[row].tolist()}; the detector has "
            f"0..{config.num_attributes - 1}, {config.num_attributes} is no attribute and {IGNORE} is unknown"
        )
    return (
        torch.from_numpy(class_ids.astype(np.int64)),
        torch.from_numpy(attribute_ids.astype(np.int64)),
        torch.from_numpy(ignored.copy()),
    )
