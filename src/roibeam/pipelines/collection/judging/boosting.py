"""Trains a boosted model by scikit-learn (the extra roibeam[collect]), and finds its threshold on held-out rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roibeam.pipelines.collection.judging.boosted_model import BoostedModel, Tree

NO_EXTRA = "scikit-learn is not installed; training a judge needs the extra: pip install 'roibeam[collect]'"
HELD_OUT_SHARE = 0.25


@dataclass(frozen=True)
class BoostingSettings:
    """scikit-learn's GradientBoostingClassifier; all ours, the paper names no model."""

    trees: int = 150
    depth: int = 4
    learning_rate: float = 0.1
    subsample: float = 0.7
    seed: int = 0


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """
    Attributes:
        features: (N, F) float64.
        labels: (N,) bool.
        groups: (N,) names; rows of one group are never on both sides of the split.
        kinds: (N,) what a row is ("labelled", "random", ...), for figures by kind.
        counts_for_threshold: (N,) bool: rows as they come in life; the threshold is set on these.
        keeps_best: whether of each group only the row with the best score is kept in life: then that row alone counts
            for the threshold. A group of several wrong rows has several chances to pass.
    """

    features: np.ndarray
    labels: np.ndarray
    groups: Sequence[str]
    kinds: Sequence[str]
    counts_for_threshold: np.ndarray
    keeps_best: bool = False


def check_extra() -> None:
    """
    Raises:
        ValueError: where scikit-learn is missing.
    """
    try:
        import sklearn.ensemble  # noqa: F401
    except ImportError:
        raise ValueError(NO_EXTRA) from None


def train_boosted(
    kind: str,
    names: Sequence[str],
    rows: LabelledRows,
    *,
    precision: float,
    settings: BoostingSettings | None = None,
    needs: dict[str, Any] | None = None,
    pooled: np.ndarray | None = None,
) -> BoostedModel:
    """Trains on three quarters of the groups; the rest sets the threshold and gives the figures.

    Args:
        precision: wanted of what passes the threshold, 0..1.
    Raises:
        ValueError: if one side of the split lacks an answer, or no threshold is that precise.
    """
    from sklearn.ensemble import GradientBoostingClassifier

    settings = settings or BoostingSettings()
    held = np.array([is_held_out(group) for group in rows.groups])
    _check_both_answers(rows.labels[~held], "to train on")
    fitted = GradientBoostingClassifier(
        n_estimators=settings.trees,
        max_depth=settings.depth,
        learning_rate=settings.learning_rate,
        subsample=settings.subsample,
        random_state=settings.seed,
    ).fit(rows.features[~held], rows.labels[~held])
    share = float(rows.labels[~held].mean())
    trees = tuple(_as_tree(each.tree_, settings.learning_rate) for each in fitted.estimators_[:, 0])
    start = float(np.log(share / (1 - share)))
    untold = BoostedModel(kind, tuple(names), start, trees, 0.5)
    decides = held & rows.counts_for_threshold
    _check_both_answers(rows.labels[decides], "held out")
    scores = untold.score(rows.features)
    if rows.keeps_best:
        decides = best_of_groups(scores, rows.groups, decides)
        _check_both_answers(rows.labels[decides], "held out")
    threshold = threshold_for_precision(scores[decides], rows.labels[decides], precision)
    facts = {
        "rows": {"trained": int((~held).sum()), "held_out": int(held.sum()), "threshold_from": int(decides.sum())},
        "wanted_precision": precision,
        "held_out": figures(scores[decides], rows.labels[decides], threshold),
        "kinds": _by_kind(scores[held], rows.labels[held], np.array(rows.kinds)[held], threshold),
        "settings": vars(settings),
        "importance": _importance(names, fitted.feature_importances_),
    }
    return BoostedModel(kind, tuple(names), start, trees, threshold, facts, needs or {}, pooled)


def is_held_out(group: str) -> bool:
    """The same for the same group, whatever else there is."""
    digest = hashlib.sha256(f"roibeam judge\n{group}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def best_of_groups(scores: np.ndarray, groups: Sequence[str], among: np.ndarray) -> np.ndarray:
    """(N,) bool: of each group the row with the best score, the first of equal ones.

    Args:
        among: (N,) bool, rows that are looked at.
    """
    best: dict[str, int] = {}
    for row in np.flatnonzero(among).tolist():
        if groups[row] not in best or scores[row] > scores[best[groups[row]]]:
            best[groups[row]] = row
    chosen = np.zeros(len(scores), bool)
    chosen[list(best.values())] = True
    return chosen


def threshold_for_precision(scores: np.ndarray, labels: np.ndarray, wanted: float) -> float:
    """The lowest threshold at which the rows that pass it are right as often as wanted: so most right rows pass.

    Args:
        scores: (N,) 0..1.
        labels: (N,) bool.
    Raises:
        ValueError: if there is none.
    """
    order = np.argsort(-scores, kind="stable")
    right = np.cumsum(labels[order])
    precision = right / np.arange(1, len(order) + 1)
    # Only where the next score is lower can a threshold stand.
    last_of_score = np.append(scores[order][1:] < scores[order][:-1], True)
    enough = np.flatnonzero((precision >= wanted) & last_of_score & labels[order].astype(bool).cumsum().astype(bool))
    if not len(enough):
        raise ValueError(
            f"precision {wanted:g} is not reached at any threshold, {precision[last_of_score].max():.3f} is the most; "
            "ask for less (--precision), or label more rows"
        )
    last, ordered = enough[-1], scores[order]
    # Midway to the next lower score, not on the lowest that was seen: new rows lie a little beside.
    return float((ordered[last] + (ordered[last + 1] if last + 1 < len(ordered) else 0.0)) / 2)


def figures(scores: np.ndarray, labels: np.ndarray, threshold: float) -> dict[str, float]:
    """Precision and recall of what passes, and the share of pairs of a right and a wrong row in the right order."""
    from sklearn.metrics import roc_auc_score

    passed = scores >= threshold
    right = float((passed & labels).sum())
    area = float(roc_auc_score(labels, scores)) if labels.any() and not labels.all() else float("nan")
    return {
        "rows": float(len(labels)),
        "precision": right / max(float(passed.sum()), 1.0),
        "recall": right / max(float(labels.sum()), 1.0),
        "auc": area,
    }


def _by_kind(scores: np.ndarray, labels: np.ndarray, kinds: np.ndarray, threshold: float) -> dict[str, Any]:
    """Of each kind of row the share that passes."""
    found = {}
    for kind in sorted(set(kinds.tolist())):
        for label in (True, False):
            mine = (kinds == kind) & (labels == label)
            if mine.any():
                name = f"{kind}, {'right' if label else 'wrong'}"
                found[name] = {"rows": int(mine.sum()), "passed": float((scores[mine] >= threshold).mean())}
    return found


def _importance(names: Sequence[str], shares: np.ndarray) -> dict[str, float]:
    best = np.argsort(-shares, kind="stable")[:12]
    return {names[place]: round(float(shares[place]), 4) for place in best}


def _as_tree(tree: Any, learning_rate: float) -> Tree:
    """Of scikit-learn's documented arrays (sklearn.tree, "Understanding the decision tree structure")."""
    leaf = tree.children_left == -1
    return Tree(
        feature=np.where(leaf, -1, tree.feature).astype(np.int64),
        at_most=np.where(leaf, 0.0, tree.threshold).astype(np.float64),
        left=np.where(leaf, 0, tree.children_left).astype(np.int64),
        right=np.where(leaf, 0, tree.children_right).astype(np.int64),
        value=np.where(leaf, learning_rate * tree.value[:, 0, 0], 0.0),
    )


def _check_both_answers(labels: np.ndarray, where: str) -> None:
    if not labels.any() or labels.all():
        raise ValueError(
            f"{len(labels)} labelled rows {where}, {int(labels.sum())} of them right: both answers are needed on both "
            "sides; label more rows"
        )
