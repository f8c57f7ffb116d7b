"""Photos with boxes -> one zero-padded batch for the region encoder, by the rules of its conventions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.network.blanking import blank_photo, blank_regions
from roibeam.extraction.network.boxes import checked_boxes, clip_boxes
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.photos.preprocessing import check_pixels, preprocess
from roibeam.short_repr import short_repr

PADDING_COORDINATE = -2.0  # of rows without a box; jackroos/VL-BERT pretrain/data/collate_batch.py


@dataclass(frozen=True, eq=False)
class PreparedPhoto:
    """One photo and its boxes as the network sees them.

    Attributes:
        pixels: (3, H, W) float32, mean removed.
        boxes: (R, 4) float32, x1 y1 x2 y2 in pixels of `pixels`, inside the photo; R may be 0.
        input_hw: (height', width') of the resized photo in them, pixels.
        image_hw: (height, width) of the photo, pixels.
        scale_xy: (2,) float32, network-input pixels per photo pixel, across and down.
    """

    pixels: Tensor
    boxes: Tensor
    input_hw: tuple[int, int]
    image_hw: tuple[int, int]
    scale_xy: Tensor

    __repr__ = short_repr


@dataclass(frozen=True, eq=False)
class RegionBatch:
    """B photos, padded at the right and bottom, and R boxes each, padded at the end.

    Attributes:
        pixels: (B, 3, H, W) float32, zeros beside the photos.
        boxes: (B, R, 4) float32, x1 y1 x2 y2 in pixels of `pixels`; -2 in padded rows.
        region_mask: (B, R) bool, True at real boxes.
        input_hw: (B, 2) float32, height and width of the resized photos, pixels.
        image_hw: (B, 2) float32, height and width of the photos, pixels.
        scale_xy: (B, 2) float32, network-input pixels per photo pixel, across and down.
    """

    pixels: Tensor
    boxes: Tensor
    region_mask: Tensor
    input_hw: Tensor
    image_hw: Tensor
    scale_xy: Tensor

    __repr__ = short_repr

    def to(self, device: torch.device | str) -> RegionBatch:
        """The same batch on `device`."""
        return RegionBatch(*(getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)))

    @property
    def photo_boxes(self) -> Tensor:
        """(B, R, 4) float32, the boxes in pixels of the photos; of their mirror images where they were flipped."""
        return self.boxes / self.scale_xy.repeat(1, 2)[:, None]


def prepare_photo(
    image: np.ndarray,
    boxes: np.ndarray,
    config: DetectorConfig,
    conventions: Conventions,
    *,
    flip: bool = False,
    masked: np.ndarray | None = None,
    blank_before_resize: bool = False,
) -> PreparedPhoto:
    """Resizes a photo, removes the mean, mirrors it if told, and hides regions; its boxes go along.

    In the order of jackroos/VL-BERT pretrain/data (conceptual_captions.py, transforms/transforms.py).

    Args:
        image: (height, width, 3) uint8, channel order B, G, R, decoded as `conventions.exif_orientation` says.
        boxes: (R, 4), x1 y1 x2 y2 in photo pixels. VL-BERT puts the whole image, [0, 0, width - 1, height - 1], first.
        config: short and long edge.
        flip: whether photo and boxes are mirrored left to right.
        masked: (R,) bool, whose pixels are blanked (`blank_regions`) for all regions of the photo; None hides nothing.
        blank_before_resize: whether they are blanked in the photo too (`blank_photo`), so that the resize finds nothing
            to carry over the edge of a box.
    Raises:
        ValueError: for another image, boxes of another shape, not finite or with x2 < x1 or y2 < y1, another mask.
    """
    in_photo = checked_boxes(boxes)
    hidden = None if masked is None else _checked_mask(masked, len(in_photo))
    if hidden is not None and blank_before_resize:
        check_pixels(image)
        image = blank_photo(image, in_photo[hidden].numpy(), conventions)
    network_input = preprocess(image, config, conventions)
    height, width = network_input.input_hw
    photo_height, photo_width = network_input.image_hw
    scale_xy = torch.stack([_ratio(width, photo_width), _ratio(height, photo_height)])
    if conventions.box_scale == "one-factor":
        scale_xy = torch.full((2,), network_input.factor)
    pixels = network_input.pixels[0]
    if flip:
        pixels[:, :height, :width] = pixels[:, :height, :width].flip(-1)
    placed = place_boxes(in_photo, (height, width), scale_xy, conventions, flip=flip)
    if hidden is not None:
        pixels = blank_regions(pixels, placed[hidden])
    return PreparedPhoto(pixels, placed, (height, width), network_input.image_hw, scale_xy)


def place_boxes(
    boxes: Tensor, input_hw: tuple[int, int], scale_xy: Tensor, conventions: Conventions, *, flip: bool = False
) -> Tensor:
    """(R, 4) boxes x1 y1 x2 y2 of a photo in pixels of the network's input, mirrored if told, and clipped to it.

    Args:
        boxes: (R, 4) float32, in photo pixels.
        input_hw, scale_xy: as of `PreparedPhoto`.
    """
    height, width = input_hw
    last_pixel = conventions.box_clip == "last-pixel"
    placed = boxes * scale_xy.repeat(2)
    if flip:
        placed[:, [0, 2]] = (width - 1 if last_pixel else width) - placed[:, [2, 0]]
    return clip_boxes(placed, (height, width), last_pixel=last_pixel)


def collate_photos(photos: Sequence[PreparedPhoto]) -> RegionBatch:
    """Pads to the largest height, width and number of boxes.

    Raises:
        ValueError: when there is no photo.
    """
    if not photos:
        raise ValueError("a region batch needs at least one photo, got none")
    height, width = (max(photo.pixels.shape[axis] for photo in photos) for axis in (1, 2))
    count = max(len(photo.boxes) for photo in photos)
    pixels = torch.zeros(len(photos), 3, height, width)
    boxes = torch.full((len(photos), count, 4), PADDING_COORDINATE)
    region_mask = torch.zeros(len(photos), count, dtype=torch.bool)
    for row, photo in enumerate(photos):
        pixels[row, :, : photo.pixels.shape[1], : photo.pixels.shape[2]] = photo.pixels
        boxes[row, : len(photo.boxes)] = photo.boxes
        region_mask[row, : len(photo.boxes)] = True
    return RegionBatch(
        pixels,
        boxes,
        region_mask,
        input_hw=torch.tensor([photo.input_hw for photo in photos], dtype=torch.float32),
        image_hw=torch.tensor([photo.image_hw for photo in photos], dtype=torch.float32),
        scale_xy=torch.stack([photo.scale_xy for photo in photos]),
    )


def padded_to_edges(pixels: Tensor, short_edge: int, long_edge: int) -> Tensor:
    """(3, h, w) -> (3, short, long), or (3, long, short) of one that is higher than wide; zeros right and below."""
    high, wide = pixels.shape[1:]
    edges = (short_edge, long_edge) if high <= wide else (long_edge, short_edge)
    padded = pixels.new_zeros(pixels.shape[0], *edges)
    padded[:, :high, :wide] = pixels
    return padded


def _checked_mask(masked: np.ndarray, count: int) -> Tensor:
    masked = np.asarray(masked)
    if masked.dtype != bool or masked.shape != (count,):
        raise ValueError(f"masked must be ({count},) bool, one for each box; got {masked.shape} {masked.dtype}")
    return torch.from_numpy(masked)


def _ratio(new: int, old: int) -> Tensor:
    """new / old as the release rounds it: times the reciprocal, in float32.

    A last digit more or less moves int(y1) of a box that ends on a whole pixel, and with it which row is blanked.
    """
    return torch.tensor(1.0) if new == old else torch.tensor(float(old)).reciprocal() * new
