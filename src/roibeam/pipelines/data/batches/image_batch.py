"""Photos of batches: with boxes as the inputs of a model that trains end to end, and as small JPEGs for people.

Photos are prepared by the choices of the run. A JPEG is made of the photo that the store names, or of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from roibeam.extraction.network.boxes import checked_boxes, checked_mask
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.photos.image_ref import box_problem
from roibeam.extraction.region_encoder import (
    PreparedPhoto,
    RegionEncoder,
    collate_photos,
    padded_to_edges,
    prepare_photo,
)
from roibeam.features.record.region_drawing import jpeg_bytes
from roibeam.features.store import FeatureStore
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import ImageBatch
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.data.record_photos import PhotoError, RecordPhotos, has_photo_locations


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
    """Photos of an end-to-end batch.

    Attributes:
        regions: the fields of `VLBatch` with the positions of regions: `region_boxes`, `region_mask`, `image_hw` and
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
    """Resizes, mirrors, blanks and pads B photos by the encoder's conventions and the run's choices.

    Args:
        photos: (height, width, 3) uint8, channel order B, G, R.
        boxes: (R_i, 4) for each photo, x1 y1 x2 y2 in its pixels, without the whole image.
        masked: (R_i,) bool for each photo, True where the model must not see what is in the region.
        flips: which photos are mirrored left to right; None for none.
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
    own_mask = checked_mask(hidden, len(rows))
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
    """Pads photos and regions to one batch. Raises ValueError when there is no photo."""
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


SIDE_PX = 420  # of the longer side
_QUALITY = 75
PhotoOrReason = tuple[bytes | None, str]  # a JPEG, or None and why there is none


def stored_photos(
    stores: Iterable[FeatureStore], image_ids: Iterable[str], folder: str | None = None
) -> dict[str, PhotoOrReason]:
    """Photos of records by image id; nothing for ids that no store has. `folder` as of `RecordPhotos`."""
    left, found = dict.fromkeys(image_ids), dict[str, PhotoOrReason]()
    for store in stores:
        own = [image_id for image_id in left if image_id in store]
        for image_id in own:
            del left[image_id]
        if own:
            found |= _of_store(store, own, folder)
    return found


def _of_store(store: FeatureStore, image_ids: Sequence[str], folder: str | None) -> dict[str, PhotoOrReason]:
    if folder is None and not has_photo_locations(store):
        return dict.fromkeys(image_ids, (None, f"{store.path} does not record where its photos are"))
    try:
        photos = RecordPhotos(store, image_ids, folder)
    except ValueError as error:
        return dict.fromkeys(image_ids, (None, str(error)))
    found: dict[str, PhotoOrReason] = {}
    for image_id in image_ids:
        meta = store.meta(image_id)
        try:
            pixels = photos.read(photos.place(image_id, (meta.height, meta.width)))
        except PhotoError as error:
            found[image_id] = (None, str(error))
        except OSError as error:  # the whole folder has gone
            found[image_id] = (None, " ".join(str(error).split()))
        else:
            found[image_id] = (_small(pixels), "")
    return found


def batch_photos(rows: VLBatch, images: ImageBatch, conventions: Conventions) -> Mapping[int, PhotoOrReason]:
    """Input of the region encoder, row by row: mirrored and masked as in the batch."""
    jpegs: dict[int, PhotoOrReason] = {}
    photo = 0
    for row in range(rows.batch_size):
        if rows.text_only is not None and bool(rows.text_only[row]):
            continue
        if bool(rows.region_mask[row].any()):
            jpegs[row] = (input_photo(rows, images, row, photo, conventions), "")
        photo += 1
    return jpegs


def input_photo(rows: VLBatch, images: ImageBatch, place: int, photo: int, conventions: Conventions) -> bytes:
    """One of these as a JPEG.

    Args:
        place: among the images of `rows`; it has a region.
        photo: the same among those of `images`, in which rows of text alone have none.
    """
    height, width = (float(side) for side in rows.image_hw[place])
    there = rows.region_mask[place]
    # The photo fills the upper left of the padded input, as large as the boxes' `image_hw`.
    reach = rows.region_boxes[place][there].amax(dim=0)[2:].clamp(min=1)
    scale_x, scale_y = (images.boxes[photo][there].amax(dim=0)[2:] / reach).tolist()
    pixels = images.pixels[photo, :, : max(round(height * scale_y), 1), : max(round(width * scale_x), 1)]
    return _small(_visible(pixels.float().cpu().numpy(), conventions))


def _visible(pixels: np.ndarray, conventions: Conventions) -> np.ndarray:
    """(3, H, W) network input as (H, W, 3) uint8, B, G, R."""
    grey = pixels.transpose(1, 2, 0) * np.array(conventions.pixel_std) + np.array(conventions.pixel_mean)
    picture = np.rint(grey.clip(0, 255)).astype(np.uint8)
    return picture[:, :, ::-1] if conventions.channel_order == "rgb" else picture


def _small(pixels: np.ndarray) -> bytes:
    height, width = pixels.shape[:2]
    scale = min(SIDE_PX / max(height, width), 1.0)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    small = pixels if scale == 1 else cv2.resize(np.ascontiguousarray(pixels), size, interpolation=cv2.INTER_AREA)
    return jpeg_bytes(np.ascontiguousarray(small), quality=_QUALITY)
