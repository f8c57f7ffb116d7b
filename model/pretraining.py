"""The pre-training tasks that ViLBERT, its baseline and its heirs share, each as (loss, accuracy).

Logits are computed at masked positions only: over all positions they would be most of a head's work and memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from model.inputs import IGNORE_INDEX
from model.losses import PreTrainingOutput, SumCount, accuracy, cross_entropy, kl_divergence, squared_error


class PreTrainingTerms:
    """Collects losses and metrics by the names of `PreTrainingOutput`."""

    def __init__(self) -> None:
        self.losses: dict[str, SumCount] = {}
        self.metrics: dict[str, SumCount] = {}

    def masked_words(self, head: Callable[[Tensor], Tensor], states_BTH: Tensor, labels_BT: Tensor) -> None:
        """`head` gives logits (n, V) for states (n, H); labels as in `VLBatch.text_labels`."""
        labelled = labels_BT != IGNORE_INDEX
        labels = labels_BT[labelled]
        logits = head(states_BTH[labelled])
        self.losses["masked_words"] = cross_entropy(logits, labels)
        self.metrics["masked_word_accuracy"] = accuracy(logits, labels, torch.ones_like(labels, dtype=torch.bool))

    def masked_regions(
        self, head: Callable[[Tensor], Tensor], states_BRI: Tensor, targets_BRC: Tensor, mask_BR: Tensor, *, loss: str
    ) -> None:
        """`loss`: "kl" against class distributions, "regression" of features."""
        targets = targets_BRC[mask_BR]
        predictions, every_row = head(states_BRI[mask_BR]), mask_BR.new_ones(len(targets))
        if loss == "kl":
            self.losses["masked_regions"] = kl_divergence(predictions, targets, every_row)
            self.metrics["masked_region_accuracy"] = accuracy(predictions, targets.argmax(dim=-1), every_row)
        else:
            self.losses["masked_regions"] = squared_error(predictions, targets, every_row)

    def matching(self, logits_B2: Tensor, match_labels: Tensor, *, match_logit: int) -> None:
        """`match_logit`: which of the two logits says match. Each code's order stays, so that its weights load."""
        counted = match_labels != IGNORE_INDEX
        labels = match_labels if match_logit == 1 else torch.where(counted, 1 - match_labels, match_labels)
        self.losses["matching"] = cross_entropy(logits_B2, labels)
        self.metrics["matching_accuracy"] = accuracy(logits_B2, labels, counted)

    def output(self) -> PreTrainingOutput:
        return PreTrainingOutput(self.losses, self.metrics)
