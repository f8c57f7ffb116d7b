"""A VCR photo as a network sees it: annotated boxes with their outlines as masks, sizes of a fixed form.

As jackroos/VL-BERT vcr/data (datasets/vcr.py, transforms/transforms.py) and common/utils/mask.py do. Needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.region_batch import PreparedPhoto, prepare_photo
from roibeam.pipelines.sources.datasets.vcr import VcrMetadata

MASK_SIDE = 14  # cells of a mask, across and down, as of the map that RoIAlign gives


class VcrPhoto(NamedTuple):
    """A photo with R boxes, the whole photo first.

    Attributes:
        photo: pixels and boxes.
        masks: (R, MASK_SIDE, MASK_SIDE) float32, 1 inside an object's outline; of the whole photo all 1.
        scores: (R,) float32, of the boxes; 1 of the whole photo.
    """

    photo: PreparedPhoto
    masks: Tensor
    scores: Tensor


def prepare_vcr_photo(
    image: np.ndarray,
    metadata: VcrMetadata,
    config: DetectorConfig,
    conventions: Conventions,
    *,
    shown: Sequence[int] | None = None,
    flip: bool = False,
    fixed_size: bool = True,
) -> VcrPhoto:
    """Resizes a photo with its boxes and outlines, mirrors all of them if told, and pads it.

    Args:
        image: (height, width, 3) uint8, channel order B, G, R.
        shown: numbers of the boxes that are shown; None for all.
        fixed_size: whether it is padded to short edge x long edge, so that batches have few forms; texts are not
            changed by a flip.
    Raises:
        ValueError: as `prepare_photo`.
    """
    numbers = list(range(len(metadata.boxes)) if shown is None else shown)
    height, width = image.shape[:2]
    whole = np.array([[0, 0, width - 1, height - 1, 1]], np.float32)
    boxes = np.concatenate([whole, metadata.boxes[numbers]])
    outlines = [outline_mask(metadata.outlines[number], metadata.boxes[number, :4]) for number in numbers]
    masks = torch.from_numpy(np.stack([np.ones((MASK_SIDE, MASK_SIDE), np.float32), *outlines]))
    photo = prepare_photo(image, boxes[:, :4], config, conventions, flip=flip)
    if fixed_size:
        photo = replace(photo, pixels=padded_to_edges(photo.pixels, config.short_edge, config.long_edge))
    return VcrPhoto(photo, masks.flip(-1) if flip else masks, torch.from_numpy(boxes[:, 4]))


def padded_to_edges(pixels: Tensor, short_edge: int, long_edge: int) -> Tensor:
    """(3, h, w) -> (3, short, long), or (3, long, short) of one that is higher than wide; zeros right and below."""
    high, wide = pixels.shape[1:]
    edges = (short_edge, long_edge) if high <= wide else (long_edge, short_edge)
    padded = pixels.new_zeros(pixels.shape[0], *edges)
    padded[:, :high, :wide] = pixels
    return padded


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
