"""Which regions of an image are kept: pure functions from scored boxes to indices.

Two published rules. "classwise-max" is the tool of bottom-up attention: proposals, judged by their best class after NMS
inside each class. "single-nms" is that of the Hugging Face and detectron2 ports: regressed boxes, one NMS over all,
at a higher threshold when too few are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torchvision.ops import nms


@dataclass(frozen=True)
class SelectionPolicy:
    """How many regions are kept, which, and which of their two boxes.

    Attributes:
        method: "classwise-max" or "single-nms".
        kept_box: "proposal" (the box the feature was pooled from) or "regressed" (the proposal moved by its best class,
            while the feature stays that of the proposal: the ports do this).
        nms_thresholds: IoU above which the lower-scored box is suppressed; "single-nms" tries them in turn.
        legacy_plus_one_areas: whether the NMS counts a box as x2 - x1 + 1 wide, in photo pixels.
        min_score: score a region needs, 0..1; "single-nms" has none (0).
        min_regions: kept even when their score is lower. A photo with fewer proposals gives all of them.
        max_regions: the best of them when there are more.

    Raises:
        ValueError: naming the field and what is possible.
    """

    method: str = "classwise-max"
    kept_box: str = "proposal"
    nms_thresholds: tuple[float, ...] = (0.3,)
    legacy_plus_one_areas: bool = True
    min_score: float = 0.2
    min_regions: int = 10
    max_regions: int = 100

    def __post_init__(self) -> None:
        if self.method not in _KEPT_BOX:
            raise ValueError(f"selection method {self.method!r}; implemented: {', '.join(_KEPT_BOX)}")
        if self.kept_box != _KEPT_BOX[self.method]:
            raise ValueError(
                f"selection kept_box {self.kept_box!r}; {self.method} is implemented for {_KEPT_BOX[self.method]!r}"
            )
        if not isinstance(self.nms_thresholds, tuple) or not self.nms_thresholds:
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds!r}; it must be a tuple of IoUs")
        if not all(0 < iou <= 1 for iou in self.nms_thresholds):
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds}; each must be above 0 and at most 1")
        if list(self.nms_thresholds) != sorted(set(self.nms_thresholds)):
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds}; they must ascend")
        if self.method == "classwise-max" and len(self.nms_thresholds) != 1:
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds}; classwise-max takes exactly one")
        if self.method == "single-nms" and (self.min_score != 0 or self.legacy_plus_one_areas):
            raise ValueError(
                "selection single-nms knows no score and no +1: set min_score=0, legacy_plus_one_areas=False"
            )
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"selection min_score {self.min_score}; it must be in 0..1")
        if not 0 <= self.min_regions <= self.max_regions or self.max_regions < 1:
            raise ValueError(
                f"selection keeps {self.min_regions}..{self.max_regions} regions; it must be 0 <= min <= max, max >= 1"
            )


_KEPT_BOX = MappingProxyType({"classwise-max": "proposal", "single-nms": "regressed"})

SELECTIONS = MappingProxyType(
    {
        # peteanderson80/bottom-up-attention tools/generate_tsv.py, "10 to 100 regions" and "36 regions".
        "butd-10-100": SelectionPolicy(),
        "butd-36": SelectionPolicy(min_regions=36, max_regions=36),
        # huggingface lxmert/modeling_frcnn.py::do_nms with the threshold list and limits of goldens/detector.
        "hf-36": SelectionPolicy("single-nms", "regressed", (0.5, 0.6, 0.7, 0.8, 0.9), False, 0.0, 10, 36),
        "hf-100": SelectionPolicy("single-nms", "regressed", (0.5, 0.6, 0.7, 0.8, 0.9), False, 0.0, 10, 100),
    }
)


@dataclass(frozen=True)
class Selected:
    """The regions that are kept, in the order of the method.

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
    scale_xyxy: Tensor,
) -> Selected:
    """Keeps regions of one image.

    Args:
        class_scores: (R, C) float32, probabilities of the foreground classes.
        proposal_boxes: (R, 4) float32, network-input pixels.
        regressed_boxes: (R, 4) float32, network-input pixels: each proposal's box of its best foreground class.
        scale_xyxy: (4,) photo pixels per network-input pixel.
    """
    if policy.method == "classwise-max":
        boxes = proposal_boxes * scale_xyxy
        keep = select_classwise_max(boxes, class_scores, policy)
    else:
        # In network-input pixels, as the original: in photo pixels an IoU next to the threshold could round otherwise.
        keep = select_single_nms(regressed_boxes, class_scores.amax(dim=1), policy)
        boxes = regressed_boxes * scale_xyxy
    return Selected(keep, boxes[keep])


def select_single_nms(boxes: Tensor, scores: Tensor, policy: SelectionPolicy) -> Tensor:
    """One NMS at the first threshold that leaves `min_regions`; ids by descending score, ties by index.

    When no threshold leaves enough, nothing is suppressed (the original then repeats the previous image's result).
    """
    keep = torch.argsort(scores, descending=True, stable=True)
    for threshold in policy.nms_thresholds:
        survivors = nms(boxes, scores, threshold)
        if min(len(survivors), policy.max_regions) >= policy.min_regions:
            keep = survivors
            break
    return keep[: policy.max_regions]


def select_classwise_max(boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy) -> Tensor:
    """Ids of the regions whose best class score after NMS inside each class reaches `min_score`.

    The order is the tool's: by index, unless there are too few or too many, then by descending score. Ties by index.
    """
    scores = classwise_max(boxes, class_scores, policy, floor=policy.min_score)
    keep = torch.nonzero(scores >= policy.min_score).flatten()
    if len(keep) < policy.min_regions:
        wanted = min(policy.min_regions, len(boxes))
        floor = policy.min_score
        # Scores at or above the floor are exact, so lowering it until enough are known settles the order.
        while floor > 0 and int((scores >= floor).sum()) < wanted:
            floor = floor / 10 if floor > 1e-3 else 0.0
            scores = classwise_max(boxes, class_scores, policy, floor=floor)
        return torch.argsort(scores, descending=True, stable=True)[:wanted]
    if len(keep) > policy.max_regions:
        return torch.argsort(scores, descending=True, stable=True)[: policy.max_regions]
    return keep


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
    if policy.legacy_plus_one_areas:
        # Sides x2 - x1 + 1, of the boxes and of their intersection, are plain sides of boxes that end one pixel later.
        boxes = boxes + boxes.new_tensor([0.0, 0.0, 1.0, 1.0])
    best = class_scores.new_zeros(len(boxes))
    passes = class_scores >= floor
    for class_id in torch.nonzero(passes.any(dim=0)).flatten().tolist():
        ids = torch.nonzero(passes[:, class_id]).flatten()
        scores = class_scores[ids, class_id]
        if len(ids) > 1:
            kept = nms(boxes[ids], scores, policy.nms_thresholds[0])
            ids, scores = ids[kept], scores[kept]
        best[ids] = torch.maximum(best[ids], scores)
    return best
