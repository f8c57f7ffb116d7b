"""Losses as sum and count, so that a mean can be taken over more than one batch and never divides by zero."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from model.inputs import IGNORE_INDEX


@dataclass(frozen=True, eq=False)
class SumCount:
    """A sum over some elements and how many there were.

    Whoever adds up micro-batches or processes divides the added sums by the added counts: a mean of means would weigh a
    word in a short batch more than one in a long batch.

    Attributes:
        total: scalar.
        count: scalar, integer.
    """

    total: Tensor
    count: Tensor

    @property
    def mean(self) -> Tensor:
        """total / count; 0 (with a gradient graph where `total` has one) when there was no element."""
        return self.total / self.count.clamp(min=1)

    def __add__(self, other: SumCount) -> SumCount:
        return SumCount(self.total + other.total, self.count + other.count)

    def detach(self) -> SumCount:
        """The same without its gradient graph."""
        return SumCount(self.total.detach(), self.count)


def cross_entropy(logits: Tensor, labels: Tensor) -> SumCount:
    """Cross-entropy of `logits` (N, V) with `labels` (N,) long; rows labelled `IGNORE_INDEX` do not count."""
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return SumCount(total, (labels != IGNORE_INDEX).sum())


def soft_cross_entropy(logits: Tensor, targets: Tensor, mask: Tensor) -> SumCount:
    """Cross-entropy of `logits` (N, C) with distributions `targets` (N, C), over the rows where `mask` (N,) is True.

    VL-BERT's masked region loss (jackroos/VL-BERT common/utils/misc.py, soft_cross_entropy).
    """
    per_row = -(targets.float() * F.log_softmax(logits.float(), dim=-1)).sum(dim=-1)
    return SumCount((per_row * mask).sum(), mask.sum())


def accuracy(logits: Tensor, labels: Tensor, mask: Tensor) -> SumCount:
    """How often the largest of `logits` (N, C) is `labels` (N,), over the rows where `mask` (N,) is True."""
    return SumCount(((logits.argmax(dim=-1) == labels) & mask).sum(), mask.sum())
