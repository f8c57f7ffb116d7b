"""Inputs that models derive from the regions of a record: locations, and features of the whole image.

Shapes: B rows, I images (as many as rows, unless rows share some), R regions, D feature width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from roibeam.model.inputs import VLBatch

# Box of the whole image, which starts the region sequence (jiasenlu/vilbert_beta, the data loaders).
WHOLE_IMAGE_LOCATION = (0.0, 0.0, 1.0, 1.0, 1.0)
LOCATION_SIZE = len(WHOLE_IMAGE_LOCATION)


def region_locations(boxes_xyxy_px: Tensor, image_hw: Tensor, region_mask: Tensor) -> Tensor:
    """Five location numbers per region, as ViLBERT, ImageBERT and InterBERT feed them.

    arXiv:1908.02265, "Image Representations": "normalized top-left and bottom-right coordinates and the fraction of
    image area covered".

    Args:
        boxes_xyxy_px: (B, R, 4), pixels of the original image.
        image_hw: (B, 2), height then width, pixels.
        region_mask: (B, R) bool.
    Returns:
        (B, R, 5), in the dtype of the boxes and at least float32: x1/W, y1/H, x2/W, y2/H, area fraction; 0 at padding.
    """
    precise = torch.promote_types(boxes_xyxy_px.dtype, torch.float32)
    image_whwh = image_hw.to(precise).flip(-1).repeat(1, 2)[:, None]
    corners = boxes_xyxy_px.to(precise) / image_whwh
    width, height = corners[..., 2] - corners[..., 0], corners[..., 3] - corners[..., 1]
    locations = torch.cat([corners, (width * height)[..., None]], dim=-1)
    return locations.masked_fill(~region_mask[..., None], 0.0)


def mean_feature(features: Tensor, visible: Tensor, counted: Tensor) -> Tensor:
    """Sum of the visible regions' features over the number of counted regions, at least 1.

    The published codes agree about the sum and differ in the divisor, so both are arguments.

    Args:
        features: (..., R, D); visible, counted: (..., R) bool.
    """
    total = features.masked_fill(~visible[..., None], 0.0).sum(dim=-2)
    return total / counted.sum(dim=-1, keepdim=True).clamp(min=1)


class ImageElements(NamedTuple):
    """Elements of a batch's images: IMG, the whole image, then its regions; E = R + 1."""

    features: Tensor  # (I, E, D), 0 at padding
    locations: Tensor  # (I, E, 5)
    mask: Tensor  # (I, E) bool


def elements_with_whole_image(batch: VLBatch, *, count: str, masked_appearance: str = "zero") -> ImageElements:
    """The regions with IMG before them; IMG is made here and nowhere else, after masking.

    "Mean-pooled visual features with a spatial encoding corresponding to the entire image" (arXiv:1908.02265,
    section 2.2).

    Args:
        count: divisor of the sum of the visible regions' features: the number of "all" regions of the image
            (vilbert_beta, InterBERT) or of the "visible" ones. Without effect where the batch brings
            `whole_image_features`.
        masked_appearance: what stands for a masked region: "zero", as published, or the feature that the batch brings,
            for features that a region encoder made of blanked "pixels".
    """
    features, images = batch.region_features, len(batch.region_mask)
    visible = batch.region_mask & ~batch.masked_regions
    whole = batch.whole_image_features
    if whole is None:
        whole = mean_feature(features, visible, visible if count == "visible" else batch.region_mask)
    kept = batch.region_mask if masked_appearance == "pixels" else visible
    features = features.masked_fill(~kept[..., None], 0.0)
    features = torch.cat([whole[:, None].to(features.dtype), features], dim=1)
    locations = region_locations(batch.region_boxes, batch.image_hw, batch.region_mask)
    whole_location = locations.new_tensor(WHOLE_IMAGE_LOCATION).expand(images, 1, -1)
    locations = torch.cat([whole_location, locations], dim=1).to(features.dtype)
    mask = torch.cat([batch.region_mask.new_ones(images, 1), batch.region_mask], dim=1)
    return ImageElements(features, locations, mask)
