"""Phrase grounding on Flickr30k Entities: whether one of the k best boxes of a phrase covers what it means.

Counted are phrases whose chain has a box. One that no proposal covers is counted too: the upper bound is the share of
the others. Two protocols are published, and their figures are far apart where a phrase means several things:

    any      IoU >= 0.5 with any box of the chain (jnhwkim/ban-vqa, VisualBERT, MDETR's "any")
    merged   IoU >= 0.5 with the one box around all of them (BryanPlummer/pl-clc, MDETR's "merged")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from roibeam.pipelines.common.statistics.retrieval_ranks import recall_by_chance
from roibeam.pipelines.finetuning.metrics.measure import Measure

THRESHOLD = 0.5
RANKS = (1, 5, 10)
UPPER_BOUND = "upper bound"


@dataclass(frozen=True)
class GroundingRule:
    """When a box covers a chain.

    Attributes:
        merged: the chain's boxes count as the one around them.
        plus_one: a box has one pixel more than its corners are apart, as in the authors' Matlab code.
        words: for people.
    """

    merged: bool
    plus_one: bool
    words: str


GROUNDING_RULES: Mapping[str, GroundingRule] = MappingProxyType(
    {
        "any": GroundingRule(False, False, "IoU >= 0.5 with any box of the phrase"),
        "merged": GroundingRule(True, False, "IoU >= 0.5 with the box around all boxes of the phrase"),
        "merged-plus-one": GroundingRule(True, True, "as merged, boxes one pixel wider and higher (Matlab code)"),
    }
)


@dataclass(frozen=True, eq=False)
class GroundedPhrase:
    """One phrase that is counted.

    Attributes:
        image: that it is about.
        types: such as "people"; it counts once in each.
        covering: (P,) bool, of the proposals, the best first.
    """

    image: str
    types: Sequence[str]
    covering: np.ndarray


def overlaps(proposals: np.ndarray, boxes: np.ndarray, *, plus_one: bool = False) -> np.ndarray:
    """(P, G) float64 of (P, 4) and (G, 4), x1 y1 x2 y2 in pixels; NaN for two boxes without area."""
    first, second = np.asarray(proposals, np.float64)[:, None], np.asarray(boxes, np.float64)[None]
    more = float(plus_one)
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2]) + more
    shared = np.maximum(sides, 0.0).prod(axis=-1)
    areas = [(each[..., 2:] - each[..., :2] + more).prod(axis=-1) for each in (first, second)]
    union = areas[0] + areas[1] - shared
    return np.divide(shared, union, out=np.full(shared.shape, np.nan), where=union != 0)


def covering(proposals: np.ndarray, boxes: np.ndarray, rule: GroundingRule) -> np.ndarray:
    """(P,) bool, which proposals (P, 4) cover a chain of boxes (G, 4), G >= 1."""
    gold = np.asarray(boxes, np.float64)
    if rule.merged:
        gold = np.concatenate([gold[:, :2].min(axis=0), gold[:, 2:].max(axis=0)])[None]
    return np.asarray((overlaps(proposals, gold, plus_one=rule.plus_one) >= THRESHOLD).any(axis=1))


def region_shares(proposals: np.ndarray, boxes: np.ndarray, rule: GroundingRule) -> np.ndarray:
    """(P,) float64, what is learned of a phrase: 1/n at each of the n proposals that cover it, or zeros."""
    covers = covering(proposals, boxes, rule)
    return covers / max(int(covers.sum()), 1)


def ranked(scores: Sequence[float]) -> np.ndarray:
    """Places of proposals, the best first; of equal scores the first one."""
    return np.argsort(-np.asarray(scores, np.float64), kind="stable")


def grounding_measures(phrases: Iterable[GroundedPhrase], ranks: Sequence[int] = RANKS) -> dict[str, Measure]:
    """By name, "R@1", "R@1 people", "upper bound" and so on: over all phrases, and over those of each type."""
    counted = list(phrases)
    types = sorted({kind for phrase in counted for kind in phrase.types})
    measures = {}
    for name, most in (*((f"R@{rank}", rank) for rank in ranks), (UPPER_BOUND, None)):
        hits = [float(phrase.covering[:most].any()) for phrase in counted]
        for kind in ("", *types):
            rows = [phrase for phrase in counted if not kind or kind in phrase.types]
            values = [hit for hit, phrase in zip(hits, counted, strict=True) if not kind or kind in phrase.types]
            whole = f"{name} {kind}".strip()
            guess = None if most is None else partial(_by_lot, rows, most)
            measures[whole] = Measure(whole, values, [phrase.image for phrase in rows], guess=guess)
    return measures


def _by_lot(phrases: Sequence[GroundedPhrase], rank: int) -> float:
    """R@K of proposals in random order."""
    counts = Counter((int(phrase.covering.sum()), len(phrase.covering)) for phrase in phrases)
    found = sum(
        times * recall_by_chance(np.array([right]), proposals, rank)
        for (right, proposals), times in counts.items()
        if right
    )
    return found / len(phrases)
