"""Which regions of an image are kept: pure functions from scored boxes to indices.

Two published rules. "classwise-max" is the tool of bottom-up attention: proposals, judged by their best class after NMS
inside each class. "single-nms" is that of the Hugging Face and detectron2 ports: regressed boxes, one NMS over all,
at a higher threshold when too few are left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roibeam.extraction.network.selection_policy import SelectionPolicy
from roibeam.extraction.network.suppression import suppress, suppress_within


@dataclass(frozen=True)
class Selected:
    """The regions that are kept, in the order of the policy.

    Attributes:
        proposal_ids: (K,) int64, row of the proposal.
        boxes: (K, 4) float32, photo pixels, not clipped to the photo.
    """

    proposal_ids: Tensor
    boxes: Tensor


def select_regions(
    policy: SelectionPolicy,
    *,
    class_scores: Tensor,
    proposal_boxes: Tensor,
    regressed_boxes: Tensor,
    nms_boxes: Tensor,
) -> Selected:
    """Keeps regions of one image.

    Args:
        class_scores: (R, C) float32, probabilities of the foreground classes.
        proposal_boxes: (R, 4) float32, photo pixels.
        regressed_boxes: (R, 4) float32, photo pixels: each proposal's box of its best foreground class.
        nms_boxes: (R, 4) float32, the same in the pixels in which they were regressed, where "single-nms" compares
            them: in others an IoU next to the threshold could round otherwise.
    """
    if policy.method == "classwise-max":
        keep = select_classwise_max(proposal_boxes, class_scores, policy)
    else:
        keep = select_single_nms(nms_boxes, class_scores.amax(dim=1), policy)
    boxes = proposal_boxes if policy.kept_box == "proposal" else regressed_boxes
    return Selected(keep, boxes[keep])


def select_single_nms(boxes: Tensor, scores: Tensor, policy: SelectionPolicy) -> Tensor:
    """One NMS at the first threshold that leaves `min_regions`; ids by descending score, ties by index."""
    for threshold in policy.nms_thresholds:
        keep = suppress(boxes, scores, threshold, comparison=policy.nms_comparison, plus_one_sides=False)
        if min(len(keep), policy.max_regions) >= policy.min_regions:
            return keep[: policy.max_regions]
    if policy.when_too_few == "no-nms":
        keep = torch.argsort(scores, descending=True, stable=True)
    return keep[: policy.max_regions]


def select_classwise_max(boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy) -> Tensor:
    """Ids of the regions whose best class score after NMS inside each class reaches `min_score`.

    Ties go to the lower index.
    """
    floor = policy.min_score or 0.2
    scores = classwise_max(boxes, class_scores, policy, floor=floor)
    if policy.min_score > 0:
        keep = torch.nonzero(scores >= policy.min_score).flatten()
    else:  # every region reaches 0, whatever the NMS leaves of it
        keep = torch.arange(len(boxes), device=boxes.device)
    if policy.order == "published" and policy.min_regions <= len(keep) <= policy.max_regions:
        return keep
    count = min(max(len(keep), policy.min_regions), policy.max_regions, len(boxes))
    # Scores at or above the floor are exact, so lowering it until enough are known settles the order.
    while floor > 0 and int((scores >= floor).sum()) < count:
        floor = floor / 10 if floor > 1e-3 else 0.0
        scores = classwise_max(boxes, class_scores, policy, floor=floor)
    return torch.argsort(scores, descending=True, stable=True)[:count]


def classwise_max(boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy, *, floor: float) -> Tensor:
    """Each region's best score among the classes in which NMS keeps it.

    Scores below `floor` are not looked at: in NMS only higher scores suppress, so every result at or above `floor` is
    exact; regions without one give 0. Probabilities sum to 1, so a floor of 0.2 leaves at most 5 scores of each region
    instead of 1600.

    Args:
        boxes: (R, 4) float32, photo pixels.
        class_scores: (R, C) float32.
    Returns:
        (R,) float32.
    """
    region_ids, class_ids = torch.nonzero(class_scores >= floor).unbind(dim=1)
    scores = class_scores[region_ids, class_ids]
    kept = suppress_within(
        class_ids,
        boxes[region_ids],
        scores,
        policy.nms_thresholds[0],
        comparison=policy.nms_comparison,
        plus_one_sides=policy.legacy_plus_one_areas,
    )
    return class_scores.new_zeros(len(boxes)).scatter_reduce(0, region_ids[kept], scores[kept], "amax")
