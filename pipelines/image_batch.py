"""Photos with boxes as the inputs of a model that trains end to end, by the choices of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from extraction.region_batch import collate_photos, prepare_photo
from extraction.region_encoder import RegionEncoder
from model.end_to_end import EndToEndChoices, ImageBatch


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

    Pixels are blanked last, in the network's input, which is the release's order: the resize before it has mixed what
    stands at the edge of a box into its neighbourhood (`blank_regions`).

    Args:
        photos: (height, width, 3) uint8, channel order B, G, R.
        boxes: (R_i, 4) for each photo, x1 y1 x2 y2 in its pixels, without the whole image.
        masked: (R_i,) bool for each photo, True where the model must not see what is in the region.
        encoder: gives sizes and conventions.
        flips: which photos are mirrored left to right; None for none.
    Raises:
        ValueError: as `prepare_photo`, and for lists of different lengths.
    """
    config, conventions = encoder.config, encoder.conventions
    from_box, blanks = choices.whole_image == "box", choices.masked_pixels == "blank"
    last = 1 if conventions.box_clip == "last-pixel" else 0
    prepared, masks = [], []
    for photo, own, hidden, flip in zip(photos, boxes, masked, flips or [False] * len(photos), strict=True):
        rows, hidden = np.asarray(own, np.float32).reshape(-1, 4), np.asarray(hidden)
        if hidden.dtype != bool or hidden.shape != (len(rows),):
            raise ValueError(f"masked must be ({len(rows)},) bool, one for each box; got {hidden.shape} {hidden.dtype}")
        masks.append(torch.from_numpy(hidden))
        if from_box:
            # Through the same rounding and clipping as the regions, as in the release, where it is the first of them.
            height, width = photo.shape[:2]
            rows = np.concatenate([np.array([[0, 0, width - last, height - last]], np.float32), rows])
            hidden = np.concatenate([[False], hidden])
        prepared.append(prepare_photo(photo, rows, config, conventions, flip=flip, masked=hidden if blanks else None))
    batch = collate_photos(prepared)
    region_boxes, region_mask, input_boxes = batch.photo_boxes, batch.region_mask, batch.boxes
    whole = None
    if from_box:
        whole, input_boxes = input_boxes[:, 0], input_boxes[:, 1:]
        region_boxes, region_mask = region_boxes[:, 1:], region_mask[:, 1:]
    count = region_mask.shape[1]
    masked_regions = torch.stack([functional.pad(mask, (0, count - len(mask))) for mask in masks])
    return PhotoInputs(
        ImageBatch(
            pixels=batch.pixels,
            boxes=input_boxes,
            blanked_regions=masked_regions if blanks else torch.zeros_like(masked_regions),
            whole_image_boxes=whole,
        ),
        {
            "region_boxes": region_boxes,
            "region_mask": region_mask,
            "image_hw": batch.image_hw,
            "masked_regions": masked_regions,
        },
    )
