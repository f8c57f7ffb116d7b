"""Which regions of an image are kept: pure functions from scored boxes to indices.

Two published rules. "classwise-max" is the tool of bottom-up attention: proposals, judged by their best class after NMS
inside each class. "single-nms" is that of the Hugging Face and detectron2 ports: regressed boxes, one NMS over all,
at a higher threshold when too few are left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from roibeam.extraction.network.suppression import suppress


@dataclass(frozen=True)
class SelectionPolicy:
    """How many regions are kept, which, in which order, and which of their two boxes.

    The feature kept is always that of the proposal.

    Attributes:
        method: "classwise-max" or "single-nms".
        kept_box: "proposal" (the box the feature was pooled from) or "regressed" (the proposal moved by its best class,
            so that box and feature differ: the ports do this).
        nms_thresholds: IoU above which the lower-scored box is suppressed; "single-nms" tries them in turn.
        nms_comparison: ">" or ">=": what an IoU must be to the threshold.
        legacy_plus_one_areas: whether the NMS counts a box as x2 - x1 + 1 wide, in photo pixels.
        when_too_few: what "single-nms" does when no threshold leaves `min_regions`: "no-nms", nothing is suppressed
            (the Hugging Face port then repeats the previous image's regions, or stops), or "last-threshold"
            (detectron2).
        min_score: score a region needs, 0..1; "single-nms" has none (0).
        min_regions: kept even when their score is lower. A photo with fewer proposals gives all of them.
        max_regions: the best of them when there are more.
        order: "score", best first, or "published": by proposal, unless `min_regions` or `max_regions` had to decide
            (the tool's own order). "single-nms" is by score.

    Raises:
        ValueError: naming the field and what is possible.
    """

    method: str = "classwise-max"
    kept_box: str = "proposal"
    nms_thresholds: tuple[float, ...] = (0.3,)
    nms_comparison: str = ">"
    legacy_plus_one_areas: bool = True
    when_too_few: str = "no-nms"
    min_score: float = 0.2
    min_regions: int = 10
    max_regions: int = 100
    order: str = "published"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"selection {name} {getattr(self, name)!r}; implemented: {', '.join(choices)}")
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
        if self.method == "single-nms" and self.order != "score":
            raise ValueError("selection single-nms keeps the best first: set order='score'")
        if self.method == "classwise-max" and self.when_too_few != "no-nms":
            raise ValueError("selection classwise-max has one threshold: leave when_too_few='no-nms'")
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"selection min_score {self.min_score}; it must be in 0..1")
        if not 0 <= self.min_regions <= self.max_regions or self.max_regions < 1:
            raise ValueError(
                f"selection keeps {self.min_regions}..{self.max_regions} regions; it must be 0 <= min <= max, max >= 1"
            )


_CHOICES = MappingProxyType(
    {
        "method": ("classwise-max", "single-nms"),
        "kept_box": ("proposal", "regressed"),
        "nms_comparison": (">", ">="),
        "when_too_few": ("no-nms", "last-threshold"),
        "order": ("published", "score"),
    }
)

# peteanderson80/bottom-up-attention tools/generate_tsv.py.
_BUTD = SelectionPolicy()
# huggingface lxmert/modeling_frcnn.py::do_nms with the threshold list and limits of goldens/detector.
_HF = SelectionPolicy(
    method="single-nms",
    kept_box="regressed",
    nms_thresholds=(0.5, 0.6, 0.7, 0.8, 0.9),
    legacy_plus_one_areas=False,
    min_score=0.0,
    min_regions=10,
    max_regions=36,
    order="score",
)
# airsplay/py-bottom-up-attention demo/detectron2_mscoco_proposal_maxnms.py.
_D2 = replace(_HF, nms_thresholds=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), when_too_few="last-threshold")

SELECTIONS = MappingProxyType(
    {
        "butd-10-100": _BUTD,
        "butd-36": replace(_BUTD, min_regions=36, max_regions=36),
        "milvlg-10-100": replace(_BUTD, nms_comparison=">="),
        "milvlg-36": replace(_BUTD, nms_comparison=">=", min_regions=36, max_regions=36),
        "hf-36": _HF,
        "hf-100": replace(_HF, max_regions=100),
        "d2-36": replace(_D2, min_regions=36, max_regions=36),
        "d2-100": replace(_D2, max_regions=100),
        # What the five systems say they took; where they are silent, the rule is that of bottom-up attention.
        "vl-bert": replace(_BUTD, min_score=0.5),  # arXiv:1908.08530: score above 0.5, 10 to 100
        "vilbert": replace(_BUTD, max_regions=36),  # arXiv:1908.02265: score above a threshold, 10 to 36
        "visualbert": replace(_BUTD, min_regions=144, max_regions=144, order="score"),  # arXiv:1908.03557: 144
        "imagebert": replace(_BUTD, min_regions=100, max_regions=100, order="score"),  # arXiv:2001.07966: 100
        "interbert": replace(_BUTD, min_regions=90, max_regions=100),  # arXiv:2003.13198: 90 to 100
        # The maskrcnn-benchmark script of vilbert-multi-task and MMF. Its published features are those of another
        # network (X-152-FPN, layer fc6), which is out of scope: only its rule for the boxes is here.
        "maskrcnn-benchmark-100": replace(
            _BUTD, nms_thresholds=(0.5,), min_score=0.0, min_regions=100, max_regions=100, order="score"
        ),
    }
)


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
    if policy.min_score > 0:
        scores = classwise_max(boxes, class_scores, policy, floor=policy.min_score)
        keep = torch.nonzero(scores >= policy.min_score).flatten()
    else:  # every region reaches 0, whatever the NMS leaves of it
        keep = torch.arange(len(boxes), device=boxes.device)
    if policy.order == "published" and policy.min_regions <= len(keep) <= policy.max_regions:
        return keep
    count = min(max(len(keep), policy.min_regions), policy.max_regions, len(boxes))
    return _best(boxes, class_scores, policy, count)


def _best(boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy, count: int) -> Tensor:
    """Ids of the `count` regions with the highest scores, best first."""
    floor = policy.min_score or 0.2
    scores = classwise_max(boxes, class_scores, policy, floor=floor)
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
    best = class_scores.new_zeros(len(boxes))
    passes = class_scores >= floor
    for class_id in torch.nonzero(passes.any(dim=0)).flatten().tolist():
        ids = torch.nonzero(passes[:, class_id]).flatten()
        scores = class_scores[ids, class_id]
        if len(ids) > 1:
            kept = suppress(
                boxes[ids],
                scores,
                policy.nms_thresholds[0],
                comparison=policy.nms_comparison,
                plus_one_sides=policy.legacy_plus_one_areas,
            )
            ids, scores = ids[kept], scores[kept]
        best[ids] = torch.maximum(best[ids], scores)
    return best
