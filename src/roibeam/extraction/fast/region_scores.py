"""What the heads say of regions -> probabilities and boxes in photo pixels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from roibeam.extraction.network.boxes import clip_boxes, decode_deltas
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.roi_heads import RegionOutputs
from roibeam.extraction.photos.preprocessing import NetworkInput, PhotoScale
from roibeam.extraction.regions import best_class_deltas


@dataclass(frozen=True)
class PhotoSize:
    """What scores need to know of a photo beside tensors.

    Attributes:
        image_hw: (height, width) of the photo, pixels; input_hw: of the resized photo.
        divides: as of `PhotoScale`.
    """

    image_hw: tuple[int, int]
    input_hw: tuple[int, int]
    divides: bool

    @staticmethod
    def of(one: NetworkInput) -> PhotoSize:
        return PhotoSize(one.image_hw, one.input_hw, one.scale.divides)


@dataclass(frozen=True)
class RegionScores:
    """What a choice among the R regions of one photo needs.

    Attributes:
        probabilities: (R, C + 1) float32, foreground first, background last.
        proposal_boxes, regressed_boxes: (R, 4) float32, photo pixels, not clipped to the photo.
        nms_boxes: (R, 4) float32, the regressed boxes in the pixels in which they were regressed.
        attribute_scores, attribute_ids: (R,) float32 and int64; None without an attribute head.
    """

    probabilities: Tensor
    proposal_boxes: Tensor
    regressed_boxes: Tensor
    nms_boxes: Tensor
    attribute_scores: Tensor | None = None
    attribute_ids: Tensor | None = None


def region_scores(
    outputs: RegionOutputs, boxes: Tensor, factors_xyxy: Tensor, size: PhotoSize, conventions: Conventions
) -> RegionScores:
    """Logits to probabilities, deltas to boxes; a GPU is never waited for.

    Args:
        outputs: what the heads say of R regions.
        boxes: (R, 4) float32, x1 y1 x2 y2 in network-input pixels: what they were pooled from.
        factors_xyxy: (4,) float32, as of `PhotoScale`.
    """
    probabilities = outputs.class_logits.softmax(dim=1)
    best_deltas = best_class_deltas(outputs.box_deltas, probabilities)
    scale = PhotoScale(factors_xyxy, size.divides)
    boxes_photo = scale.to_photo(boxes)
    if conventions.regression_pixels == "photo":
        regressed = regressed_photo = _regress(boxes_photo, best_deltas, size.image_hw, conventions)
    else:
        regressed = _regress(boxes, best_deltas, size.input_hw, conventions)
        regressed_photo = scale.to_photo(regressed)
    attributes = best_attributes(outputs.attribute_logits, conventions)
    return RegionScores(probabilities, boxes_photo, regressed_photo, regressed, *attributes)


def _regress(boxes: Tensor, deltas: Tensor, hw: tuple[int, int], conventions: Conventions) -> Tensor:
    """Boxes moved by their deltas and clipped, all in the same pixels."""
    moved = decode_deltas(
        boxes,
        deltas,
        weights=conventions.region_delta_weights,
        delta_cap=conventions.delta_cap,
        plus_one_sides=conventions.box_sides == "x2-x1+1",
    )
    return clip_boxes(moved, hw, last_pixel=conventions.box_clip == "last-pixel")


def best_attributes(logits: Tensor, conventions: Conventions) -> tuple[Tensor, ...]:
    """(R,) float32 probability and (R,) int64 id of the best attribute, "no attribute" left out of the choice; nothing
    without a head.

    Args:
        logits: (R, A + 1), "no attribute" last; (R, 0) without a head.
    """
    if not logits.shape[1]:
        return ()
    if conventions.attribute_softmax == "all":
        best = logits.softmax(dim=1)[:, :-1].max(dim=1)
    else:
        best = logits[:, :-1].softmax(dim=1).max(dim=1)
    return best.values, best.indices
