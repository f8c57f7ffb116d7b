"""Losses as sum and count, so that a mean can be taken over more than one batch and never divides by zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from roibeam.model.inputs import IGNORE_INDEX


@dataclass(frozen=True, eq=False)
class SumCount:
    """Sum over some elements, and their number.

    To combine micro-batches or processes, divide the sum of totals by the sum of counts: a mean of means would weigh a
    word in a short batch more than one in a long batch.

    Attributes:
        total: scalar; a plain number becomes a tensor.
        count: scalar, integer; a plain number becomes a tensor on the device of `total`.
        epsilon: a release's addition to the count that it divides by: once, for any number of added sums.

    Raises:
        ValueError: for a total or count of another shape, such as losses that were not added up.
    """

    total: Tensor
    count: Tensor
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.total, Tensor):
            object.__setattr__(self, "total", torch.tensor(float(self.total)))
        if not isinstance(self.count, Tensor):
            object.__setattr__(self, "count", torch.tensor(int(self.count), device=self.total.device))
        for name, value in (("total", self.total), ("count", self.count)):
            if value.ndim:
                raise ValueError(f"SumCount: {name} must be a scalar, got shape {tuple(value.shape)}; add it up")

    @property
    def mean(self) -> Tensor:
        """total / count; 0 (with a gradient graph if `total` has one) without any element."""
        return self.over(self.count.clamp(min=1))

    def over(self, count: Tensor) -> Tensor:
        """This sum's share of a mean over `count` elements, at least 1, of which it has some."""
        # In the type of the sum: an epsilon is added to a whole number in float32.
        return self.total / (count.to(self.total.dtype) + self.epsilon)

    def __add__(self, other: SumCount) -> SumCount:
        return SumCount(self.total + other.total, self.count + other.count, self.epsilon)

    def detach(self) -> SumCount:
        """The same without its gradient graph."""
        return SumCount(self.total.detach(), self.count, self.epsilon)


@dataclass(frozen=True, eq=False)
class PreTrainingOutput:
    """Sums and counts by name; a loss without targets in this batch has sum 0 and count 0.

    Attributes:
        losses: "masked_words", "masked_regions" and, where the model has such a head, "matching",
            "masked_region_features" (regressed beside classes) and VL-BERT's "text_only_words", of rows without an
            image. The total loss is the plain sum of their means.
        metrics: "masked_word_accuracy", "masked_region_accuracy" (largest logit is the largest target; not where
            features are regressed) and, with "matching", "matching_accuracy".
    """

    losses: dict[str, SumCount]
    metrics: dict[str, SumCount]


def cross_entropy(logits: Tensor, labels: Tensor, weights: Sequence[float] = ()) -> SumCount:
    """Cross-entropy of `logits` (N, V) with `labels` (N,) long; rows labelled `IGNORE_INDEX` do not count.

    Args:
        weights: (V,), weight of a row of each label in the total; the count stays that of rows. () for 1 each.
    """
    logits = precise(logits)
    each = logits.new_tensor(weights) if weights else None
    total = F.cross_entropy(logits, labels, each, ignore_index=IGNORE_INDEX, reduction="sum")
    return SumCount(total, (labels != IGNORE_INDEX).sum())


def soft_cross_entropy(logits: Tensor, targets: Tensor, mask: Tensor) -> SumCount:
    """Cross-entropy of `logits` (N, C) with distributions `targets` (N, C), over the rows where `mask` (N,) is True.

    VL-BERT's masked region loss (jackroos/VL-BERT common/utils/misc.py, soft_cross_entropy).
    """
    per_row = -(precise(targets) * F.log_softmax(precise(logits), dim=-1)).sum(dim=-1)
    return SumCount((per_row * mask).sum(), mask.sum())


def kl_divergence(logits: Tensor, targets: Tensor, mask: Tensor) -> SumCount:
    """KL divergence of softmax(`logits`) (N, C) from distributions `targets` (N, C), over the rows of `mask` (N,).

    ViLBERT's masked region loss (arXiv:1908.02265, section 2.2). Its gradient is that of `soft_cross_entropy`, its
    value is 0 when the prediction is perfect.
    """
    per_class = F.kl_div(F.log_softmax(precise(logits), dim=-1), precise(targets), reduction="none")
    return SumCount((per_class.sum(dim=-1) * mask).sum(), mask.sum())


def squared_error(predictions: Tensor, targets: Tensor, mask: Tensor, *, over_width: str = "mean") -> SumCount:
    """Squared error of `predictions` (N, D), over the rows where `mask` (N,) is True, and over D by one of
    `WIDTH_REDUCTIONS`."""
    squares = (precise(predictions) - precise(targets)).square()
    per_row = squares.mean(dim=-1) if over_width == "mean" else squares.sum(dim=-1)
    return SumCount((per_row * mask).sum(), mask.sum())


def binary_cross_entropy(logits: Tensor, targets: Tensor, mask: Tensor) -> SumCount:
    """Cross-entropy of sigmoid(`logits`) with probabilities `targets`, over the single numbers where `mask` is True."""
    logits = precise(logits)
    # In their type: with whole or float32 targets torch would round double logits.
    per_number = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return SumCount(per_number.masked_fill(~mask, 0.0).sum(), mask.sum())


def contrastive(predictions: Tensor, positives: Tensor, negatives: Tensor) -> SumCount:
    """Cross-entropy of picking the right feature among its negatives (N, K, D) by its dot product with the prediction
    (N, D).

    The multi-task ViLBERT's NCE (facebookresearch/vilbert-multi-task vilbert/vilbert.py, visual_target 2).
    """
    candidates = torch.cat([positives[:, None], negatives], dim=1)
    scores = (precise(candidates) @ precise(predictions)[..., None]).squeeze(-1)
    return cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


def accuracy(logits: Tensor, labels: Tensor, mask: Tensor) -> SumCount:
    """Share of rows of `mask` (N,) in which the largest of `logits` (N, C) is `labels` (N,)."""
    return SumCount(((logits.argmax(dim=-1) == labels) & mask).sum(), mask.sum())


def precise(tensor: Tensor) -> Tensor:
    """The tensor in at least float32: a sum of many small terms in less is wrong."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
