"""Losses of the downstream tasks as sum and count, and their targets.

docs/models.md, "Heads and losses of tasks", has each system's loss and its divisor. Losses over classes
(NLVR2, VCR, GLUE) are `roibeam.model.common.losses.cross_entropy`.

The three losses of retrieval are those that ImageBERT tries (arXiv:2001.07966, section 4.4). They read the match
log-odds of groups of candidates, so they work with every model that has `match_log_odds` (model/pretraining.py).

Shapes: N rows or groups, A answers, C classes or choices, E image elements, R regions, P phrases or candidate pairs of
a group, one of them true, G right boxes. From rows that hold one group after the other: `log_odds_NP =
model.match_log_odds(output).view(-1, P)`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from roibeam.model.common.losses import (
    SumCount,
    binary_cross_entropy,
    cross_entropy,
    kl_divergence,
    precise,
    squared_error,
)
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
    """(..., R, G) intersection over union of all pairs of boxes (..., R, 4) and others (..., G, 4) in pixels, their
    sides optionally x2 - x1 + 1; 0 for two boxes without area."""
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
    """Regions that an expression refers to (RefCOCO+).

    Args:
        boxes_NE4: pixels; with the box of the whole image first if the head scores it too.
        kind: "binary": 1 if the IoU with the right box is above 0.5 (VL-BERT; both papers); "iou": the IoU itself
            if it is at least 0.5 (ViLBERT's releases, in training); "overlap": the IoU of all (there, elsewhere).
        inclusive_sides: as in both codes.
    Returns:
        (N, E) float; 0 at padding.
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


def phrase_targets(boxes_NR4: Tensor, mask_NR: Tensor, right_boxes_NPG4: Tensor, right_mask_NPG: Tensor) -> Tensor:
    """(N, P, R): 1/n on each of the n regions with an IoU of at least 0.5 with any right box of a phrase (Flickr30k
    Entities), which `right_mask_NPG` marks; a row of zeros for a phrase that matches no region."""
    overlap = overlaps(boxes_NR4[:, None], right_boxes_NPG4, inclusive_sides=False)
    right = ((overlap >= RIGHT_OVERLAP) & right_mask_NPG[:, :, None]).any(dim=-1) & mask_NR[:, None]
    return right / right.sum(dim=-1, keepdim=True).clamp(min=1)


def _number(count: int, like: Tensor) -> Tensor:
    return torch.tensor(count, device=like.device)


TRIPLET_MARGIN = 0.2  # not in the paper, whose formula has none


def binary_loss(log_odds_NP: Tensor, true_N: Tensor) -> SumCount:
    """L_BCE: is this pair a match? Every pair by itself; counts N x P. The best alone, table 4."""
    is_true = _is_true(log_odds_NP, true_N)
    return binary_cross_entropy(log_odds_NP, is_true.to(log_odds_NP.dtype), torch.ones_like(is_true))


def multi_class_loss(log_odds_NP: Tensor, true_N: Tensor) -> SumCount:
    """L_CE: which of the P pairs is the match? Softmax over their log-odds; counts N.

    The formula sums a cross-entropy over the P single scores; a cross-entropy needs the scores of all classes at once.
    """
    return cross_entropy(log_odds_NP, true_N)


def triplet_loss(log_odds_NP: Tensor, true_N: Tensor, *, margin: float = TRIPLET_MARGIN) -> SumCount:
    """L_Triplet: max(0, margin - s+ + s-) with the highest s- of the group; counts N.

    The formula prints max[0, s+, s-], without margin and signs, which pulls the right pair down. Scores are the
    probabilities of a match: between 0 and 1 a margin keeps its meaning.
    """
    scores = torch.sigmoid(precise(log_odds_NP))
    is_true = _is_true(log_odds_NP, true_N)
    hardest = scores.masked_fill(is_true, -torch.inf).amax(dim=1)
    total = F.relu(margin - scores.gather(1, true_N[:, None]).squeeze(1) + hardest).sum()
    return SumCount(total, torch.ones_like(true_N).sum())


RETRIEVAL_LOSSES: Mapping[str, Callable[[Tensor, Tensor], SumCount]] = MappingProxyType(
    {"binary": binary_loss, "multi_class": multi_class_loss, "triplet": triplet_loss}
)


def retrieval_losses(log_odds_NP: Tensor, true_N: Tensor, names: Sequence[str] = ("binary",)) -> dict[str, SumCount]:
    """The losses of `names`, of `RETRIEVAL_LOSSES`, over the same groups; the total loss is the plain sum of their
    means.

    `log_odds_NP` are (N, P), P at least 2; `true_N` (N,) long is the index of the match among the P candidates.
    """
    unknown = [name for name in names if name not in RETRIEVAL_LOSSES]
    if unknown:
        raise ValueError(f"no retrieval loss {unknown[0]!r}; there are {', '.join(RETRIEVAL_LOSSES)}")
    if log_odds_NP.ndim != 2 or log_odds_NP.shape[1] < 2:
        raise ValueError(
            f"retrieval losses: log-odds must be (groups, candidates) with at least 2 candidates, got shape "
            f"{tuple(log_odds_NP.shape)}"
        )
    return {name: RETRIEVAL_LOSSES[name](log_odds_NP, true_N) for name in names}


def _is_true(log_odds_NP: Tensor, true_N: Tensor) -> Tensor:
    """(N, P) bool."""
    return F.one_hot(true_N, log_odds_NP.shape[1]).bool()
