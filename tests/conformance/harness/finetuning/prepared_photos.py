"""Photos of VCR and of referring expressions, prepared as a network sees them, for cases and tests.

VCR: annotated boxes with their outlines as masks, sizes of a fixed form, as jackroos/VL-BERT vcr/data (datasets/vcr.py,
transforms/transforms.py) and common/utils/mask.py. Referring: the target of each candidate, measured in the network's
input.
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
    """Resizes and mirrors photo, candidates and the right box alike, and clamps all boxes to the photo.

    Args:
        image: (height, width, 3) uint8, channel order B, G, R.
        boxes: (C, 4), candidates x1 y1 x2 y2 in photo pixels, the whole photo first where it is one.
        right: (4,), of the object that is meant.
    Raises:
        ValueError: as `prepare_photo`.
    """
    both = np.concatenate([np.asarray(boxes, np.float32).reshape(-1, 4), np.asarray(right, np.float32)[None]])
    photo = prepare_photo(image, both, config, conventions, flip=flip)
    kept = PreparedPhoto(photo.pixels, photo.boxes[:-1], photo.input_hw, photo.image_hw, photo.scale_xy)
    return PreparedCandidates(kept, photo.boxes[-1])


def image_feature(detected: Tensor, options: ReferringOptions) -> Tensor | None:
    """(D,), the feature of the whole photo; None where the model takes the mean of its input regions.

    Args:
        detected: (R, D), features of all detected regions of the photo, those that are cut too.
    """
    if options.image_feature == SHOWN_REGIONS:
        return None
    every = torch.ones(len(detected), dtype=torch.bool, device=detected.device)
    return mean_feature(detected, every, every)


def candidate_targets(boxes: Tensor, right: Tensor, options: ReferringOptions, *, split: str) -> Tensor:
    """(C,) float, targets of the candidates, by the rules of the options for this split.

    Args:
        boxes: (C, 4), candidates x1 y1 x2 y2.
        right: (4,), of the object that is meant, in the same pixels: those of the photo, or those of the network's
            input, as `overlap_in` says.
    """
    mask = torch.ones(1, len(boxes), dtype=torch.bool)
    kind = options.target_of(split)
    return referred_targets(boxes[None], mask, right[None], kind=kind, inclusive_sides=options.one_pixel_more)[0]


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
    box_numbers: Sequence[int] | None = None,
    flip: bool = False,
    fixed_size: bool = True,
) -> VcrPhoto:
    """Resizes a photo with its boxes and outlines, mirrors all of them with `flip`, and pads it.

    Args:
        image: (height, width, 3) uint8, channel order B, G, R.
        box_numbers: numbers of the boxes; None for all.
        fixed_size: whether it is padded to short edge x long edge, so that batches have few forms; texts are not
            changed by a flip.
    Raises:
        ValueError: as `prepare_photo`.
    """
    numbers = list(range(len(metadata.boxes)) if box_numbers is None else box_numbers)
    height, width = image.shape[:2]
    whole = np.array([[0, 0, width - 1, height - 1, 1]], np.float32)
    boxes = np.concatenate([whole, metadata.boxes[numbers]])
    outlines = [outline_mask(metadata.outlines[number], metadata.boxes[number, :4]) for number in numbers]
    masks = torch.from_numpy(np.stack([np.ones((MASK_SIDE, MASK_SIDE), np.float32), *outlines]))
    photo = prepare_photo(image, boxes[:, :4], config, conventions, flip=flip)
    if fixed_size:
        photo = replace(photo, pixels=padded_to_edges(photo.pixels, config.short_edge, config.long_edge))
    return VcrPhoto(photo, masks.flip(-1) if flip else masks, torch.from_numpy(boxes[:, 4]))
