"""Rules of a detector's training as settings, without torch: sampling of regions, and weights of errors."""

from __future__ import annotations

from dataclasses import dataclass, fields

from roibeam.extraction.network.config import check_counts, check_proposals


@dataclass(frozen=True)
class SamplingRules:
    """Sampling of anchors and regions of a photo, and overlaps that match an object.

    The defaults are those of bottom-up attention, except `anchor_border`, which was 0 there: with small photos it
    leaves large objects without an anchor. detectron2 differs in regions_per_image (512).

    Attributes:
        anchors_per_image: anchors sampled.
        anchor_positive_fraction: largest part of them that match an object.
        anchor_positive_iou: smallest overlap of an anchor that matches an object; each object's best ones do too.
        anchor_negative_iou: largest overlap below this: background. Between the two an anchor is not trained on.
        anchor_border: pixels that an anchor may reach past the photo, else it is not trained on; None for no limit.
        proposals_before_nms, proposals_after_nms: as in `DetectorConfig`, while training.
        regions_per_image: proposals sampled; the objects' own boxes stand among those to choose from.
        region_positive_fraction: largest part of them that match an object.
        region_iou: smallest overlap of a proposal that matches an object; below, it is background.
    """

    anchors_per_image: int = 256
    anchor_positive_fraction: float = 0.5
    anchor_positive_iou: float = 0.7
    anchor_negative_iou: float = 0.3
    anchor_border: float | None = None
    proposals_before_nms: int = 12000
    proposals_after_nms: int = 2000
    regions_per_image: int = 128
    region_positive_fraction: float = 0.25
    region_iou: float = 0.5

    def __post_init__(self) -> None:
        check_counts(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "float" and not 0 < value <= 1:
                raise ValueError(f"{field.name} is {value!r}; it must be above 0 and at most 1")
        if self.anchor_negative_iou > self.anchor_positive_iou:
            raise ValueError(
                f"anchor_negative_iou {self.anchor_negative_iou} is above anchor_positive_iou "
                f"{self.anchor_positive_iou}; an anchor cannot be both"
            )
        if self.anchor_border is not None and not self.anchor_border >= 0:
            raise ValueError(f"anchor_border is {self.anchor_border}; it must not be negative, or None for no limit")
        check_proposals(self.proposals_before_nms, self.proposals_after_nms)


@dataclass(frozen=True)
class LossRules:
    """Weights of errors. The defaults are those of bottom-up attention; detectron2 has 0 for both betas.

    Attributes:
        proposal_beta: error of an anchor's delta up to which its loss is a parabola, then a line (sigma 3 in the
            prototxt: 1/9); 0 is the plain absolute error.
        region_beta: the same for a region's delta, in REGION_DELTA_UNITS.
        attribute_weight: of the attribute loss; the others have 1.
    """

    proposal_beta: float = 1.0 / 9.0
    region_beta: float = 1.0
    attribute_weight: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{field.name} is {value!r}; it must not be negative")
