"""What is right for each candidate of a sentence, and photos prepared so that it is measured in the network's input.

Needs torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.region_batch import PreparedPhoto, prepare_photo
from roibeam.model.common.regions import mean_feature
from roibeam.model.task_losses import referred_targets
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
    """(D,), the feature of the whole photo; None where the model takes the mean of what it is shown.

    Args:
        detected: (R, D), features of all detected regions of the photo, those that are cut too.
    """
    if options.image_feature == SHOWN_REGIONS:
        return None
    every = torch.ones(len(detected), dtype=torch.bool, device=detected.device)
    return mean_feature(detected, every, every)


def candidate_targets(boxes: Tensor, right: Tensor, options: ReferringOptions, *, split: str) -> Tensor:
    """(C,) float, what is right for each candidate, by the rules of the options for this split.

    Args:
        boxes: (C, 4), candidates x1 y1 x2 y2.
        right: (4,), of the object that is meant, in the same pixels: those of the photo, or those of the network's
            input, as `overlap_in` says.
    """
    mask = torch.ones(1, len(boxes), dtype=torch.bool)
    kind = options.target_of(split)
    return referred_targets(boxes[None], mask, right[None], kind=kind, inclusive_sides=options.one_pixel_more)[0]
