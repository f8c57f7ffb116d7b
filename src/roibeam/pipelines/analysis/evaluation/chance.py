"""What a model reaches that knows only how often each answer is right, of the labels that an evaluation asked about."""

from __future__ import annotations

from collections import Counter

import torch

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.analysis.evaluation.evaluation_samples import RegionObjective


class Chance:
    """What guessing reaches on the labels seen: in accuracy always the commonest one, in loss each as often as it is
    right. A loss is then the entropy of the labels' frequencies, in nats.

    Args:
        objective: what is predicted of a masked region; None for nothing.
    """

    def __init__(self, objective: RegionObjective | None) -> None:
        self._objective = objective
        self._words, self._classes, self._matches = Counter[int](), Counter[int](), Counter[int]()
        # Sums over the regions' class distributions: of each one's entropy, and of themselves.
        self._entropy, self._num_regions = 0.0, 0
        self._targets = torch.zeros(0 if objective is None else objective.labels, dtype=torch.float64)

    def see(self, batch: VLBatch) -> None:
        if batch.text_labels is not None:
            self._words.update(batch.text_labels[batch.text_labels != IGNORE_INDEX].tolist())
        if batch.match_labels is not None:
            self._matches.update(batch.match_labels[batch.match_labels != IGNORE_INDEX].tolist())
        if self._objective is None or not self._objective.labels or batch.region_targets is None:
            return
        predicted = batch.masked_regions
        if batch.region_target_mask is not None:
            predicted = predicted & batch.region_target_mask  # training asks nothing of a pair that does not match
        targets = batch.targets_of(predicted)
        best, classes = targets[:, : self._objective.labels].max(dim=1)
        self._classes.update(classes[best > 0].tolist())
        self._entropy += float(torch.special.entr(targets).sum())
        self._targets += targets[:, : self._objective.labels].double().sum(dim=0).cpu()
        self._num_regions += len(targets)

    def levels(self) -> dict[str, float]:
        """By the name of the loss or accuracy, as in `PreTrainingOutput`."""
        asked = self._asked()
        levels = {name: labels.most_common(1)[0][1] / labels.total() for name, labels in asked.items()}
        losses = {"masked_words": self._words, "matching": self._matches}
        if self._objective is not None and self._objective.loss == "class":
            losses["masked_regions"] = self._classes
        for name, labels in losses.items():
            if labels:
                levels[name] = _entropy(torch.tensor([*labels.values()], dtype=torch.float64))
        if "masked_regions" in levels or not self._num_regions:
            return levels
        # A divergence is the cross-entropy less what no prediction can avoid.
        unavoidable = self._entropy / self._num_regions if self._objective and self._objective.loss == "kl" else 0.0
        return {**levels, "masked_regions": _entropy(self._targets) - unavoidable}

    def items(self) -> dict[str, int]:
        """How many labels each accuracy is the mean over."""
        return {name: labels.total() for name, labels in self._asked().items()}

    def _asked(self) -> dict[str, Counter[int]]:
        found = {
            "masked_word_accuracy": self._words,
            "masked_region_accuracy": self._classes,
            "matching_accuracy": self._matches,
        }
        return {name: labels for name, labels in found.items() if labels}


def _entropy(counts: torch.Tensor) -> float:
    """In nats, of frequencies: (labels,) counts, at least one of them above 0."""
    return float(torch.special.entr(counts / counts.sum()).sum())
