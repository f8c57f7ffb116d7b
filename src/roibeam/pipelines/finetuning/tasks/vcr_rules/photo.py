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
from roibeam.extraction.region_batch import PreparedPhoto, padded_to_edges, prepare_photo
from roibeam.pipelines.data.datasets.vcr import VcrMetadata
from roibeam.pipelines.data.objects.outlines import MASK_SIDE, outline_mask


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
