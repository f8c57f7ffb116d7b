"""Losses of the downstream tasks as sum and count, and the targets they are taken against.

Which system takes which, and by what it divides, stands in docs/models.md, "Heads and losses of tasks". Losses over
classes (NLVR2, VCR, GLUE) are `roibeam.model.common.losses.cross_entropy`; those of retrieval, for every model, stand
in model/imagebert/retrieval.py.

Shapes: N rows, A answers, C classes or choices, E image elements, R regions, P phrases, G boxes that are right.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from roibeam.model.common.losses import SumCount, binary_cross_entropy, kl_divergence, squared_error
from roibeam.model.inputs import IGNORE_INDEX

DENOMINATORS = ("rows", "regions")
REGION_TARGETS = ("binary", "iou", "overlap")
RIGHT_OVERLAP = 0.5


def answer_bce(logits_NA: Tensor, targets_NA: Tensor) -> SumCount:
    """Binary cross-entropy summed over all answers, per question (VQA; GQA; visual entailment).

    The codes of ViLBERT and VL-BERT write it as a mean over everything, times the number of answers.
    """
    term = binary_cross_entropy(logits_NA, targets_NA, torch.ones_like(logits_NA, dtype=torch.bool))
    return SumCount(term.total, _number(len(logits_NA), logits_NA))


def answer_kl(logits_NA: Tensor, targets_NA: Tensor) -> SumCount:
    """KL divergence from the distributions over answers, per question (VQA of VisualBERT, KLDivLoss "batchmean")."""
    return kl_divergence(logits_NA, targets_NA, torch.ones_like(logits_NA[:, 0], dtype=torch.bool))


def class_bce(logits_NC: Tensor, labels_N: Tensor) -> SumCount:
    """Binary cross-entropy of each class or choice by itself, per number (VCR of VL-BERT, NLVR2 of multi-task ViLBERT).

    Args:
        labels_N: long, the right one; rows labelled `IGNORE_INDEX` do not count.
    """
    counted = (labels_N != IGNORE_INDEX)[:, None].expand_as(logits_NC)
    targets = F.one_hot(labels_N.clamp(min=0), logits_NC.shape[1])
    return binary_cross_entropy(logits_NC, targets, counted)


def region_bce(scores_NE: Tensor, targets_NE: Tensor, mask_NE: Tensor, *, per: str) -> SumCount:
    """Binary cross-entropy of each real region (RefCOCO+).

    Args:
        targets_NE: 0 to 1, from `referred_targets`; what stands at padding is not read.
        per: "rows": summed over a row's regions (ViLBERT: a mean over all, padding included, times their number);
            "regions": a mean over all real regions of the batch (VL-BERT).
    Raises:
        ValueError: for another denominator.
    """
    if per not in DENOMINATORS:
        raise ValueError(f"region_bce: per is {per!r}; it must be one of {', '.join(map(repr, DENOMINATORS))}")
    term = binary_cross_entropy(scores_NE, targets_NE.masked_fill(~mask_NE, 0.0), mask_NE)
    return term if per == "regions" else SumCount(term.total, _number(len(scores_NE), scores_NE))


def grounding_loss(scores_NPR: Tensor, targets_NPR: Tensor) -> SumCount:
    """KL divergence from the target distributions over regions; a phrase without a target has a row of zeros.

    Both codes of VisualBERT divide by the number of rows of the batch, not of phrases (KLDivLoss "batchmean"), so rows
    are counted.
    """
    every = torch.ones(scores_NPR.shape[:2], dtype=torch.bool, device=scores_NPR.device).flatten()
    term = kl_divergence(scores_NPR.flatten(0, 1), targets_NPR.flatten(0, 1), every)
    return SumCount(term.total, _number(len(scores_NPR), scores_NPR))


def score_regression(predictions_N1: Tensor, scores_N: Tensor) -> SumCount:
    """Squared error, per row (STS-B of GLUE, whose scores go from 0 to 5)."""
    every = torch.ones_like(scores_N, dtype=torch.bool)
    return squared_error(predictions_N1, scores_N[:, None], every)


def overlaps(boxes: Tensor, others: Tensor, *, inclusive_sides: bool) -> Tensor:
    """Intersection over union of all pairs.

    Args:
        boxes, others: (..., R, 4), (..., G, 4), x1 y1 x2 y2 in pixels.
        inclusive_sides: counts sides as x2 - x1 + 1.
    Returns:
        (..., R, G); 0 for two boxes without area.
    """
    more = 1.0 if inclusive_sides else 0.0
    first, second = boxes[..., :, None, :], others[..., None, :, :]
    shared = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2]) + more
    intersection = shared.clamp(min=0).prod(dim=-1)
    area, other_area = ((box[..., 2:] - box[..., :2] + more).prod(dim=-1) for box in (first, second))
    union = area + other_area - intersection
    return torch.where(union > 0, intersection / union.clamp(min=torch.finfo(union.dtype).tiny), 0.0)


def referred_targets(
    boxes_NE4: Tensor, mask_NE: Tensor, right_box_N4: Tensor, *, kind: str, inclusive_sides: bool = True
) -> Tensor:
    """Which regions show what an expression refers to (RefCOCO+).

    Args:
        boxes_NE4: pixels; with the box of the whole image first where the head scores it too.
        kind: "binary": 1 where the IoU with the right box is above 0.5 (VL-BERT; both papers); "iou": the IoU itself
            where it is at least 0.5 (ViLBERT's releases, in training); "overlap": the IoU of all (there, elsewhere).
        inclusive_sides: as both codes count.
    Returns:
        (N, E) float; 0 at padding.
    Raises:
        ValueError: for another kind.
    """
    if kind not in REGION_TARGETS:
        raise ValueError(
            f"referred_targets: kind is {kind!r}; it must be one of {', '.join(map(repr, REGION_TARGETS))}"
        )
    overlap = overlaps(boxes_NE4, right_box_N4[:, None], inclusive_sides=inclusive_sides)[..., 0]
    least = 0.0 if kind == "overlap" else RIGHT_OVERLAP
    right = overlap > RIGHT_OVERLAP if kind == "binary" else overlap >= least
    targets = right.to(overlap.dtype) if kind == "binary" else overlap
    return targets.masked_fill(~(right & mask_NE), 0.0)


def phrase_targets(
    boxes_NR4: Tensor,
    mask_NR: Tensor,
    right_boxes_NPG4: Tensor,
    right_mask_NPG: Tensor,
    *,
    inclusive_sides: bool = False,
) -> Tensor:
    """1/n on each of the n regions with an IoU of at least 0.5 with any right box of a phrase (Flickr30k Entities).

    Args:
        right_mask_NPG: bool, True where a phrase has a box.
    Returns:
        (N, P, R) float; a row of zeros for a phrase that no region shows.
    """
    overlap = overlaps(boxes_NR4[:, None], right_boxes_NPG4, inclusive_sides=inclusive_sides)
    right = ((overlap >= RIGHT_OVERLAP) & right_mask_NPG[:, :, None]).any(dim=-1) & mask_NR[:, None]
    return right / right.sum(dim=-1, keepdim=True).clamp(min=1)


def _number(count: int, like: Tensor) -> Tensor:
    return torch.tensor(count, device=like.device)
