"""What a model reaches that knows nothing: guesses on the labels that an evaluation asked about."""

from __future__ import annotations

import math
from collections import Counter

import torch

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.analysis.evaluation.evaluation_samples import RegionObjective


class Chance:
    """What guessing reaches on the labels seen: in accuracy always the commonest one, in loss all of them alike.

    Args:
        vocab_size: words that a masked one may be.
        objective: what is predicted of a masked region; None for nothing.
    """

    def __init__(self, vocab_size: int, objective: RegionObjective | None) -> None:
        self._vocab_size, self._objective = vocab_size, objective
        self._words, self._classes, self._matches = Counter[int](), Counter[int](), Counter[int]()
        self._entropy, self._num_regions = 0.0, 0  # sum over the regions' class distributions

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
        self._num_regions += len(targets)

    def levels(self) -> dict[str, float]:
        """By the name of the loss or accuracy, as in `PreTrainingOutput`."""
        levels = {"masked_words": math.log(self._vocab_size)}
        for name, labels in self._asked().items():
            levels[name] = labels.most_common(1)[0][1] / labels.total()
        if self._matches:
            levels["matching"] = math.log(2)
        if self._objective is None or not self._num_regions:
            return levels
        uniform = math.log(self._objective.labels)
        # A divergence is the cross-entropy less what no prediction can avoid.
        unavoidable = self._entropy / self._num_regions if self._objective.loss == "kl" else 0.0
        return {**levels, "masked_regions": uniform - unavoidable}

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
