"""Photos of VCR (jackroos/VL-BERT vcr/data) and of referring expressions, prepared as a network sees them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.region_encoder import PreparedPhoto, padded_to_edges, prepare_photo
from roibeam.model.common.regions import mean_feature
from roibeam.model.task_losses import referred_targets
from roibeam.pipelines.data.datasets.vcr import VcrMetadata
from roibeam.pipelines.data.record_regions import MASK_SIDE, outline_mask
from roibeam.pipelines.finetuning.tasks.referring import SHOWN_REGIONS, ReferringOptions


class PreparedCandidates(NamedTuple):
    """A photo with its candidates as the network sees them, and the (4,) box that is right, in the same pixels."""

    photo: PreparedPhoto
    right: Tensor


def prepare_candidates(
    image: np.ndarray,
    boxes: np.ndarray,
    right: np.ndarray,
    config: DetectorConfig,
    conventions: Conventions,
    *,
    flip: bool = False,
) -> PreparedCandidates:
    """Resizes and mirrors the photo (BGR), candidates (C, 4) and the right box (4,) alike, and clamps all boxes."""
    both = np.concatenate([np.asarray(boxes, np.float32).reshape(-1, 4), np.asarray(right, np.float32)[None]])
    photo = prepare_photo(image, both, config, conventions, flip=flip)
    kept = PreparedPhoto(photo.pixels, photo.boxes[:-1], photo.input_hw, photo.image_hw, photo.scale_xy)
    return PreparedCandidates(kept, photo.boxes[-1])


def image_feature(detected: Tensor, options: ReferringOptions) -> Tensor | None:
    """(D,), the feature of the whole photo of (R, D) detected ones; None for the mean of the input regions."""
    if options.image_feature == SHOWN_REGIONS:
        return None
    every = torch.ones(len(detected), dtype=torch.bool, device=detected.device)
    return mean_feature(detected, every, every)


def candidate_targets(boxes: Tensor, right: Tensor, options: ReferringOptions, *, split: str) -> Tensor:
    """(C,) float, targets of candidates (C, 4) by the rules of a split; the right box (4,) is in the same pixels."""
    mask = torch.ones(1, len(boxes), dtype=torch.bool)
    kind = options.target_of(split)
    return referred_targets(boxes[None], mask, right[None], kind=kind, inclusive_sides=options.one_pixel_more)[0]


class VcrPhoto(NamedTuple):
    """A photo with R boxes, the whole photo first; masks (R, MASK_SIDE, MASK_SIDE) of outlines, scores (R,)."""

    photo: PreparedPhoto
    masks: Tensor
    scores: Tensor


def prepare_vcr_photo(
    image: np.ndarray,
    metadata: VcrMetadata,
    config: DetectorConfig,
    conventions: Conventions,
    *,
    box_numbers: Sequence[int] | None = None,
    flip: bool = False,
) -> VcrPhoto:
    """Resizes a photo (BGR) with its boxes and outlines, mirrors all with `flip`, and pads it to a fixed size."""
    numbers = list(range(len(metadata.boxes)) if box_numbers is None else box_numbers)
    height, width = image.shape[:2]
    whole = np.array([[0, 0, width - 1, height - 1, 1]], np.float32)
    boxes = np.concatenate([whole, metadata.boxes[numbers]])
    outlines = [outline_mask(metadata.outlines[number], metadata.boxes[number, :4]) for number in numbers]
    masks = torch.from_numpy(np.stack([np.ones((MASK_SIDE, MASK_SIDE), np.float32), *outlines]))
    photo = prepare_photo(image, boxes[:, :4], config, conventions, flip=flip)
    photo = replace(photo, pixels=padded_to_edges(photo.pixels, config.short_edge, config.long_edge))
    return VcrPhoto(photo, masks.flip(-1) if flip else masks, torch.from_numpy(boxes[:, 4]))
