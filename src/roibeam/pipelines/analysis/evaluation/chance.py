"""What a model reaches that knows only how often each answer is right, of the labels that an evaluation asked about."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from roibeam.model.imagebert.model import ImageBertConfig
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.interbert.config import InterBertConfig
from roibeam.pipelines.analysis.evaluation.evaluation_samples import region_objective

_ROWS = "rows"  # of VL-BERT's settings: a loss is a mean over rows


class Chance:
    """What guessing reaches on the labels seen: in accuracy always the commonest one, in loss each as often as it is
    right, of features always their mean. A loss is then the entropy of the labels' frequencies, in nats, or the
    features' variance; one of several candidates is drawn.

    Args:
        config: of the model.
    """

    def __init__(self, config: Any) -> None:
        self._config, self._objective = config, region_objective(config)
        self._word_means = getattr(config, "word_loss_mean", "") == _ROWS
        self._region_means = getattr(config, "region_loss_mean", "") == _ROWS
        self._words, self._text_only_words, self._matches, self._classes = (_Frequencies() for _ in range(4))
        self._distributions, self._features = _Distributions(), _Features()
        self._num_contrasted = 0

    def see(self, batch: VLBatch) -> None:
        """
        Args:
            batch: with labels and targets where the model is scored, and nowhere else.
        """
        text_only = torch.zeros(batch.batch_size, dtype=torch.bool, device=batch.text_ids.device)
        text_only = text_only if batch.text_only is None else batch.text_only
        if batch.text_labels is not None:
            for frequencies, rows in ((self._words, ~text_only), (self._text_only_words, text_only)):
                hidden = (batch.text_labels != IGNORE_INDEX) & rows[:, None]
                frequencies.see(batch.text_labels[hidden], _weights(hidden, by_row=self._word_means))
        if batch.match_labels is not None:
            labels = batch.match_labels[(batch.match_labels != IGNORE_INDEX) & ~text_only]
            self._matches.see(labels, torch.ones(len(labels)))
        if batch.region_target_mask is not None and batch.region_targets is not None:
            self._see_regions(batch, batch.region_target_mask)

    def _see_regions(self, batch: VLBatch, predicted: Tensor) -> None:
        objective, config = self._objective, self._config
        if isinstance(config, ImageBertConfig) and config.with_region_feature_head:
            stored = batch.region_feature_targets
            self._features.see((batch.region_features if stored is None else stored)[predicted])
        if objective is None:
            return
        if objective.loss == "contrastive":
            self._num_contrasted += int(predicted.sum())
        elif objective.loss == "regression" and not isinstance(config, ImageBertConfig):
            self._features.see(batch.targets_of(predicted))
        if not objective.labels:
            return
        targets = batch.targets_of(predicted)[:, : objective.labels]
        weights = _weights(predicted, by_row=self._region_means)
        # A hard label is the best class; background, the last one, is none.
        is_hard = getattr(config, "region_labels", "") == "hard"
        best, classes = (targets[:, :-1] if is_hard else targets).max(dim=1)
        counted = torch.ones_like(best, dtype=torch.bool) if is_hard else best > 0
        self._classes.see(classes[counted], weights[counted])
        self._distributions.see(targets, weights)

    def levels(self) -> dict[str, float]:
        """By the name of the loss or accuracy, as in `PreTrainingOutput`; none of what was not asked."""
        found = {
            "masked_word_accuracy": self._words.commonest,
            "text_only_word_accuracy": self._text_only_words.commonest,
            "masked_region_accuracy": self._classes.commonest,
            "matching_accuracy": self._matches.commonest,
            "masked_words": self._words.entropy,
            "text_only_words": self._text_only_words.entropy,
            "matching": self._matches.entropy,
            **self._of_regions(),
        }
        return {name: level for name, level in found.items() if level is not None}

    def _of_regions(self) -> dict[str, float | None]:
        """Of the losses of regions."""
        objective, config = self._objective, self._config
        summed = isinstance(config, InterBertConfig) or getattr(config, "feature_reduction", "mean") == "sum"
        spread = self._features.variance(over_width="sum" if summed else "mean")
        if isinstance(config, ImageBertConfig):
            return {"masked_regions": self._classes.entropy, "masked_region_features": spread}
        if objective is None:
            return {}
        if objective.loss == "contrastive":
            return {"masked_regions": math.log(1 + objective.negatives) if self._num_contrasted else None}
        if objective.loss == "regression":
            return {"masked_regions": spread}
        if getattr(config, "region_labels", "") == "hard":
            return {"masked_regions": self._classes.entropy}
        # A divergence is the cross-entropy less what no prediction can avoid.
        return {"masked_regions": self._distributions.entropy(less_unavoidable=objective.loss == "kl")}


class _Frequencies:
    """How often each label was seen."""

    def __init__(self) -> None:
        self._counts = Counter[int]()
        self._weights: dict[int, float] = {}

    def see(self, labels: Tensor, weights: Tensor) -> None:
        """(n,) long, and (n,) float, what each counts in the loss."""
        self._counts.update(labels.tolist())
        for label, weight in zip(labels.tolist(), weights.tolist(), strict=True):
            self._weights[label] = self._weights.get(label, 0.0) + weight

    @property
    def commonest(self) -> float | None:
        """The share of the commonest label."""
        return max(self._counts.values()) / self._counts.total() if self._counts else None

    @property
    def entropy(self) -> float | None:
        return _entropy(torch.tensor([*self._weights.values()], dtype=torch.float64)) if self._weights else None


class _Distributions:
    """Sums over distributions: of each one's entropy, and of themselves."""

    def __init__(self) -> None:
        self._entropy, self._weight, self._total = 0.0, 0.0, torch.zeros(1, dtype=torch.float64)

    def see(self, targets: Tensor, weights: Tensor) -> None:
        """(n, C) float, and (n,) float, what each counts in the loss."""
        targets, weights = targets.double().cpu(), weights.double().cpu()
        self._entropy += float((torch.special.entr(targets).sum(dim=1) * weights).sum())
        self._weight += float(weights.sum())
        self._total = self._total + (targets * weights[:, None]).sum(dim=0)

    def entropy(self, *, less_unavoidable: bool) -> float | None:
        if not self._weight:
            return None
        return _entropy(self._total) - (self._entropy / self._weight if less_unavoidable else 0.0)


class _Features:
    """How far features lie from their mean."""

    def __init__(self) -> None:
        self._count, self._squares, self._total = 0, 0.0, torch.zeros(1, dtype=torch.float64)

    def see(self, features: Tensor) -> None:
        """(n, D) float."""
        features = features.double().cpu()
        self._count += len(features)
        self._squares += float(features.square().sum())
        self._total = self._total + features.sum(dim=0)

    def variance(self, *, over_width: str) -> float | None:
        """Mean over features of the squared distance, its sum or mean over the width."""
        if not self._count:
            return None
        summed = self._squares / self._count - float((self._total / self._count).square().sum())
        return summed / len(self._total) if over_width == "mean" else summed


def _weights(chosen_BX: Tensor, *, by_row: bool) -> Tensor:
    """(n,) float64, what each True counts in a mean over all of them, or over the means of the rows."""
    counts = chosen_BX.sum(dim=1, keepdim=True).double()
    weights = 1.0 / counts.clamp(min=1) if by_row else torch.ones_like(counts)
    return weights.expand(chosen_BX.shape)[chosen_BX].cpu()


def _entropy(counts: Tensor) -> float:
    """In nats, of frequencies: (labels,) counts, at least one of them above 0."""
    return float(torch.special.entr(counts / counts.sum()).sum())
