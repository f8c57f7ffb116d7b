"""The feature of the whole image that a record gives a model which has an element for it."""

from __future__ import annotations

import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.batches.class_targets import as_float32, as_tensor


def whole_image_feature(record: RegionRecord, *, stored: bool) -> Tensor:
    """(D,) float32: the mean of all regions of the record, whichever are shown; 0 where it has none.

    Args:
        stored: the record's own feature of the whole image in place of the mean, where it has one (jackroos/VL-BERT
            vqa.py, `image_box_feature`).
    Raises:
        ValueError: when the record's own feature has another width than its regions.
    """
    own, width = record.image_feature, record.features.shape[1]
    if stored and own is not None:
        if len(own) != width:
            raise ValueError(
                f"record {record.image_id!r}: its feature of the whole image has width {len(own)}, its regions "
                f"{width}, and a model reads both alike; leave layout.whole_image at 'shown'"
            )
        return as_float32(own)
    if not record.num_regions:
        return torch.zeros(width)
    return as_tensor(record.features).float().mean(dim=0)
