"""Retrieval as it is published: R@1, R@5, R@10, median and mean rank of both directions, and their sum.

Ranks are those of `retrieval_ranks`, from 1, ties against us. A score that is not a number is refused: fartashf/vsepp
ranks it first, jiasenlu/vilbert_beta last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from roibeam.pipelines.common.statistics.bootstrap import floor_median
from roibeam.pipelines.common.statistics.retrieval_ranks import CUTS, CaptionedImages, recall_by_chance
from roibeam.pipelines.finetuning.metrics.measure import Measure

IMAGE, TEXT = "image", "sentence"  # what is found: as the papers name their columns


@dataclass(frozen=True)
class RankFigures:
    """Of one direction.

    Attributes:
        r1, r5, r10: percent of queries whose right candidate is among the first 1, 5 and 10.
        median_rank: from 1, rounded down between two ranks, as the published codes do.
        mean_rank: from 1.
    """

    r1: float
    r5: float
    r10: float
    median_rank: float
    mean_rank: float

    @property
    def recalls(self) -> float:
        """Their sum, in percent."""
        return self.r1 + self.r5 + self.r10


def rank_figures(ranks: np.ndarray) -> RankFigures:
    """
    Args:
        ranks: (queries,) int, from 1.
    """
    r1, r5, r10 = (100.0 * int(np.count_nonzero(ranks <= cut)) / len(ranks) for cut in CUTS)
    return RankFigures(r1, r5, r10, float(floor_median(ranks)), float(np.mean(ranks)))


def mean_figures(folds: Sequence[RankFigures]) -> RankFigures:
    """Of several folds the plain mean of every number, the median rank too (vsepp, "COCO 1k")."""
    return RankFigures(*(sum(getattr(fold, each.name) for fold in folds) / len(folds) for each in fields(RankFigures)))


def rsum(image_to_text: RankFigures, text_to_image: RankFigures) -> float:
    """The sum of the six recalls, in percent; 600 is all."""
    return image_to_text.recalls + text_to_image.recalls


def recall_measures(
    ranks_of: Mapping[str, tuple[np.ndarray, Sequence[str]]], folds: Sequence[CaptionedImages]
) -> dict[str, Measure]:
    """R@K of each direction as means over queries, 0..1.

    Args:
        ranks_of: by `IMAGE` or `TEXT`, ranks from 1 and the image that each query is about.
        folds: what is searched, each by itself; chance is the mean over them.
    """
    found = {}
    for what, (ranks, images) in ranks_of.items():
        for cut in CUTS:
            name = f"{what} R@{cut}"
            hits = (np.asarray(ranks) <= cut).astype(float).tolist()
            found[name] = Measure(name, hits, images, guess=partial(_by_lot, what, cut, folds))
    return found


def _by_lot(what: str, cut: int, folds: Sequence[CaptionedImages]) -> float:
    """R@K of candidates in random order."""
    recalls = []
    for fold in folds:
        captions = len(fold.image_of_caption)
        if what == IMAGE:
            recalls.append(recall_by_chance(np.ones(captions, np.int64), fold.num_images, cut))
        else:
            recalls.append(recall_by_chance(np.bincount(fold.image_of_caption), captions, cut))
    return sum(recalls) / len(recalls)
