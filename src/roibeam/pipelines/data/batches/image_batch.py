"""Photos with boxes as the inputs of a model that trains end to end, by the choices of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from roibeam.extraction.engine.photo_boxes import box_problem
from roibeam.extraction.network.boxes import checked_boxes
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.region_batch import PreparedPhoto, collate_photos, padded_to_edges, prepare_photo
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.model.end_to_end import ImageBatch
from roibeam.model.end_to_end_choices import EndToEndChoices


@dataclass(frozen=True, eq=False)
class PhotoInput:
    """One photo on its way into a batch.

    Attributes:
        photo: resized, mirrored, blanked; the box of the whole photo comes first where the run's choices have one.
        masked: (R,) bool, of the regions alone.
        outlines: (R, cells, cells) float32, see `ImageBatch.cell_weights`; None where regions count whole.
    """

    photo: PreparedPhoto
    masked: Tensor
    outlines: Tensor | None = None


class PhotoInputs(NamedTuple):
    """What an end-to-end batch has of its photos.

    Attributes:
        images: for the region encoder.
        regions: the fields of `VLBatch` that say where regions are: `region_boxes`, `region_mask`, `image_hw` and
            `masked_regions`. Boxes of a mirrored photo are those of its mirror image.
    """

    images: ImageBatch
    regions: dict[str, Tensor]


def photo_inputs(
    photos: Sequence[np.ndarray],
    boxes: Sequence[np.ndarray],
    masked: Sequence[np.ndarray],
    encoder: RegionEncoder,
    choices: EndToEndChoices,
    *,
    flips: Sequence[bool] | None = None,
) -> PhotoInputs:
    """Resizes, mirrors, blanks and pads B photos as the encoder's conventions and the run's choices say.

    Args:
        photos: (height, width, 3) uint8, channel order B, G, R.
        boxes: (R_i, 4) for each photo, x1 y1 x2 y2 in its pixels, without the whole image.
        masked: (R_i,) bool for each photo, True where the model must not see what is in the region.
        encoder: gives sizes and conventions.
        flips: which photos are mirrored left to right; None for none.
    Raises:
        ValueError: as `prepare_photo`, for lists of different lengths, and for boxes outside their photo.
    """
    lengths = {len(photos), len(boxes), len(masked)} | (set() if flips is None else {len(flips)})
    if len(lengths) > 1:
        raise ValueError(
            f"{len(photos)} photos, {len(boxes)} arrays of boxes, {len(masked)} of masked; give one of each"
        )
    prepared = [
        prepare_input(photo, own, hidden, encoder.config, encoder.conventions, choices, flip=flip)
        for photo, own, hidden, flip in zip(photos, boxes, masked, flips or [False] * len(photos), strict=True)
    ]
    return collate_inputs(prepared, choices)


def prepare_input(
    photo: np.ndarray,
    boxes: np.ndarray,
    masked: np.ndarray,
    config: DetectorConfig,
    conventions: Conventions,
    choices: EndToEndChoices,
    *,
    flip: bool = False,
    fixed_size: bool = False,
    outlines: np.ndarray | None = None,
) -> PhotoInput:
    """One photo of `photo_inputs`; `config` gives the edges that it is resized to.

    Args:
        fixed_size: whether it is padded to short edge x long edge.
        outlines: (R, cells, cells) float32 of the regions of the photo as it is; mirrored with it.
    """
    given, hidden = np.asarray(boxes, np.float32), np.asarray(masked)
    rows = checked_boxes(given if given.size else given.reshape(0, 4)).numpy()
    if problem := box_problem(rows, (photo.shape[0], photo.shape[1]), None):
        raise ValueError(problem[1])
    if hidden.dtype != bool or hidden.shape != (len(rows),):
        raise ValueError(f"masked must be ({len(rows)},) bool, one for each box; got {hidden.shape} {hidden.dtype}")
    own_mask = torch.from_numpy(hidden)
    if choices.whole_image == "box":
        # Through the same rounding and clipping as the regions, as in the release, where it is the first of them.
        height, width = photo.shape[:2]
        last = 1 if conventions.box_clip == "last-pixel" else 0
        rows = np.concatenate([np.array([[0, 0, width - last, height - last]], np.float32), rows])
        hidden = np.concatenate([[False], hidden])
    prepared = prepare_photo(
        photo,
        rows,
        config,
        conventions,
        flip=flip,
        masked=hidden if choices.masked_pixels == "blank" else None,
        blank_before_resize=choices.blank_pixels == "before_resize",
    )
    if fixed_size:
        prepared = replace(prepared, pixels=padded_to_edges(prepared.pixels, config.short_edge, config.long_edge))
    masks = None if outlines is None else torch.from_numpy(outlines)
    return PhotoInput(prepared, own_mask, masks.flip(-1) if masks is not None and flip else masks)


def collate_inputs(photos: Sequence[PhotoInput], choices: EndToEndChoices) -> PhotoInputs:
    """Pads photos and regions to one batch.

    Raises:
        ValueError: when there is no photo.
    """
    batch = collate_photos([each.photo for each in photos])
    region_boxes, region_mask, input_boxes = batch.photo_boxes, batch.region_mask, batch.boxes
    whole = None
    if choices.whole_image == "box":
        whole, input_boxes = input_boxes[:, 0], input_boxes[:, 1:]
        region_boxes, region_mask = region_boxes[:, 1:], region_mask[:, 1:]
    count = region_mask.shape[1]
    masked_regions = torch.stack([functional.pad(each.masked, (0, count - len(each.masked))) for each in photos])
    return PhotoInputs(
        ImageBatch(
            pixels=batch.pixels,
            boxes=input_boxes,
            blanked_regions=masked_regions if choices.masked_pixels == "blank" else torch.zeros_like(masked_regions),
            whole_image_boxes=whole,
            cell_weights=_padded([each.outlines for each in photos], count),
        ),
        {
            "region_boxes": region_boxes,
            "region_mask": region_mask,
            "image_hw": batch.image_hw,
            "masked_regions": masked_regions,
        },
    )


def _padded(masks: Sequence[Tensor | None], most: int) -> Tensor | None:
    """(I, most, cells, cells); None where no photo has masks."""
    given = [each for each in masks if each is not None]
    if not given:
        return None
    padded = given[0].new_zeros(len(given), most, *given[0].shape[1:])
    for row, each in enumerate(given):
        padded[row, : len(each)] = each
    return padded
