"""Boosted trees: trained by scikit-learn (the extra roibeam[collect]), kept as JSON, read and applied without it.

The threshold is found on held-out rows. A file from a stranger is data: nothing in it is executed, and trees that would
not end, or point outside of themselves, are refused.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.folders.durable_files import read_regular_file
from roibeam.features.folders.kept_work import DamagedError, check_sum, write_summed_json
from roibeam.messages import printable

FORMAT, VERSION = "roibeam-judge", 1
MAX_FILE_BYTES = 64_000_000
_MAX_TREES, _MAX_NODES = 5000, 4096
_LEAF = -1


@dataclass(frozen=True, eq=False)
class Tree:
    """One regression tree: arrays of one length, a number a node; node 0 is the root.

    Attributes:
        feature: (N,) int64, the feature compared; -1 for a leaf.
        at_most: (N,) float64: with values up to it, the left child is next.
        left, right: (N,) int64, numbers of the children, larger than the node's own; 0 for a leaf.
        value: (N,) float64, what a leaf adds.
    """

    feature: np.ndarray
    at_most: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray

    def values(self, features_NF: np.ndarray) -> np.ndarray:
        """(N,) float64 values of (N, F) float64 features."""
        rows, nodes = np.arange(len(features_NF)), np.zeros(len(features_NF), np.int64)
        while (inner := self.feature[nodes] != _LEAF).any():
            at, row = nodes[inner], rows[inner]
            goes_left = features_NF[row, self.feature[at]] <= self.at_most[at]
            nodes[inner] = np.where(goes_left, self.left[at], self.right[at])
        return self.value[nodes]


@dataclass(frozen=True, eq=False)
class BoostedModel:
    """
    Attributes:
        kind: of its inputs: "pictures" or "pairs".
        features: names of the features, in order.
        start: log-odds before the first tree.
        trees: each adds to the log-odds.
        threshold: a lower score is a no; 0..1.
        facts: on its training and accuracy, for people.
        needs: values that must be equal where it is used, such as the names of the detector's classes.
        pooled: (D + 1,) float64, weights of a mean region feature and an offset; None for a judge without regions.
    """

    kind: str
    features: tuple[str, ...]
    start: float
    trees: tuple[Tree, ...]
    threshold: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)
    pooled: np.ndarray | None = None

    def score(self, features_NF: np.ndarray) -> np.ndarray:
        """(N,) float64 scores, 0..1, of (N, F) float64; a row's score does not depend on the others.

        Values are compared as float32, as they were in training.
        """
        log_odds = np.full(len(features_NF), self.start)
        values = features_NF.astype(np.float32).astype(np.float64)
        for tree in self.trees:
            log_odds = log_odds + tree.values(values)
        return 1 / (1 + np.exp(-log_odds))

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all that scores and decisions depend on."""
        content = {key: value for key, value in self._content().items() if key != "facts"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()

    def write(self, path: Path) -> None:
        write_summed_json(path, self._content(), indent=2, allow_nan=False)

    def _content(self) -> dict[str, Any]:
        trees = [{name: getattr(tree, name).tolist() for name in Tree.__dataclass_fields__} for tree in self.trees]
        head = {"format": FORMAT, "version": VERSION, "kind": self.kind, "features": list(self.features)}
        rest = {"start": self.start, "threshold": self.threshold, "facts": dict(self.facts), "needs": dict(self.needs)}
        pooled = {} if self.pooled is None else {"pooled": self.pooled.tolist()}
        return head | rest | pooled | {"trees": trees}


def read_boosted_model(path: Path, *, kind: str, features: Sequence[tuple[str, ...]]) -> BoostedModel:
    """Reads a judge's model.

    Args:
        features: allowed sets of features; a model of others is refused.
    """
    command = f"roibeam collect train-{_COMMANDS[kind]}"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"more than {MAX_FILE_BYTES:,} bytes")
        data = read_regular_file(path)
        check_sum(data, path)
        content = json.loads(data, parse_constant=_no_constant)
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"format {content['format']!r} {content['version']!r}, expected {FORMAT!r} {VERSION}")
        if content["kind"] != kind:
            raise ValueError(f"it judges {content['kind']!r}, expected {kind!r}")
        names = tuple(content["features"])
        if names not in features:
            raise ValueError(f"it has {len(names)} features that are not those of this version")
        start, threshold = (_number(content[name]) for name in ("start", "threshold"))
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold {threshold}, expected 0 to 1")
        if not 1 <= len(content["trees"]) <= _MAX_TREES:
            raise ValueError(f"{len(content['trees'])} trees, expected 1 to {_MAX_TREES}")
        trees = tuple(_tree(tree, len(names)) for tree in content["trees"])
        pooled = _numbers(content["pooled"], np.float64) if "pooled" in content else None
        facts, needs = dict(content["facts"]), dict(content["needs"])
        return BoostedModel(kind, names, start, trees, threshold, facts, needs, pooled)
    except DamagedError as error:
        raise ValueError(f"{error}; restore it, or run `{command}`") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a file of `{command}`") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        why = printable(str(error) or type(error).__name__, 200)
        raise ValueError(f"{path}: no model of `{command}`: {why}") from None


_COMMANDS = {"pictures": "images", "pairs": "pairs"}


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of a model")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _tree(content: dict[str, Any], num_features: int) -> Tree:
    whole = {name: _numbers(content[name], np.int64) for name in ("feature", "left", "right")}
    real = {name: _numbers(content[name], np.float64) for name in ("at_most", "value")}
    tree = Tree(whole["feature"], real["at_most"], whole["left"], whole["right"], real["value"])
    count = len(tree.feature)
    if not 1 <= count <= _MAX_NODES or any(len(each) != count for each in (*whole.values(), *real.values())):
        raise ValueError(f"a tree of {count} nodes whose lists differ in length, or of more than {_MAX_NODES}")
    if tree.feature.min() < _LEAF or tree.feature.max() >= num_features:
        raise ValueError("a tree uses a feature that does not exist")
    inner = np.flatnonzero(tree.feature != _LEAF)
    for children in (tree.left[inner], tree.right[inner]):
        # Larger numbers only: so every way through the tree ends.
        if (children <= inner).any() or (children >= count).any():
            raise ValueError("a tree whose child stands before its parent, or nowhere")
    return tree


def _numbers(values: Any, dtype: type) -> np.ndarray:
    if not isinstance(values, list) or len(values) > _MAX_NODES:
        raise ValueError("a tree without its lists of numbers")
    if dtype is np.int64 and any(type(value) is not int for value in values):
        raise ValueError("a tree whose node numbers are no whole numbers")
    array = np.array([_number(value) for value in values], np.float64)
    if dtype is np.int64 and (np.abs(array) > 2**31).any():
        raise ValueError("a tree with a number out of range")
    return array.astype(dtype)


NO_EXTRA = "scikit-learn is not installed; training a judge needs the extra: pip install 'roibeam[collect]'"
HELD_OUT_SHARE = 0.25


@dataclass(frozen=True)
class BoostingSettings:
    """Settings of scikit-learn's GradientBoostingClassifier; all roibeam's, the paper names no model."""

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
        kinds: (N,) kind of each row ("labelled", "random", ...), for figures by kind.
        counts_for_threshold: (N,) bool: rows as in a collection; the threshold is set on these.
        keeps_best: whether a collection keeps only the row with the best score of each group: then that row alone
            counts for the threshold. A group of several wrong rows has several chances to pass.
    """

    features: np.ndarray
    labels: np.ndarray
    groups: Sequence[str]
    kinds: Sequence[str]
    counts_for_threshold: np.ndarray
    keeps_best: bool = False


def check_extra() -> None:
    """Raises ValueError where scikit-learn is missing."""
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
        precision: wanted of the rows that pass the threshold, 0..1.
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
    draft = BoostedModel(kind, tuple(names), start, trees, 0.5)
    decides = held & rows.counts_for_threshold
    _check_both_answers(rows.labels[decides], "held out")
    scores = draft.score(rows.features)
    if rows.keeps_best:
        decides = best_of_groups(scores, rows.groups, decides)
        _check_both_answers(rows.labels[decides], "held out")
    threshold = threshold_for_precision(scores[decides], rows.labels[decides], precision)
    best = np.argsort(-fitted.feature_importances_, kind="stable")[:12]
    facts = {
        "rows": {"trained": int((~held).sum()), "held_out": int(held.sum()), "threshold_from": int(decides.sum())},
        "wanted_precision": precision,
        "held_out": figures(scores[decides], rows.labels[decides], threshold),
        "kinds": _by_kind(scores[held], rows.labels[held], np.array(rows.kinds)[held], threshold),
        "settings": vars(settings),
        "importance": {names[place]: round(float(fitted.feature_importances_[place]), 4) for place in best},
    }
    return BoostedModel(kind, tuple(names), start, trees, threshold, facts, needs or {}, pooled)


def is_held_out(group: str) -> bool:
    """Whether a group is held out, by its name alone."""
    digest = hashlib.sha256(f"roibeam judge\n{group}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def best_of_groups(scores: np.ndarray, groups: Sequence[str], among: np.ndarray) -> np.ndarray:
    """(N,) bool mask of the row with the best score of each group, the first of equal ones, of those `among` (N,)."""
    best: dict[str, int] = {}
    for row in np.flatnonzero(among).tolist():
        if groups[row] not in best or scores[row] > scores[best[groups[row]]]:
            best[groups[row]] = row
    chosen = np.zeros(len(scores), bool)
    chosen[list(best.values())] = True
    return chosen


def threshold_for_precision(scores: np.ndarray, labels: np.ndarray, wanted: float) -> float:
    """Returns the lowest threshold at which the rows that pass are right as often as wanted: so most right rows pass.

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
            "request less (--precision), or label more rows"
        )
    last, ordered = enough[-1], scores[order]
    # Midway to the next lower score, not on the lowest that was seen: new rows lie a little beside.
    return float((ordered[last] + (ordered[last + 1] if last + 1 < len(ordered) else 0.0)) / 2)


def figures(scores: np.ndarray, labels: np.ndarray, threshold: float) -> dict[str, float]:
    """Precision and recall of passing rows, and the share of pairs of a right and a wrong row in the right order."""
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
    """Share of rows of each kind that pass."""
    found = {}
    for kind in sorted(set(kinds.tolist())):
        for label in (True, False):
            mine = (kinds == kind) & (labels == label)
            if mine.any():
                name = f"{kind}, {'right' if label else 'wrong'}"
                found[name] = {"rows": int(mine.sum()), "passed": float((scores[mine] >= threshold).mean())}
    return found


def _as_tree(tree: Any, learning_rate: float) -> Tree:
    """Converts scikit-learn's documented arrays (sklearn.tree, "Understanding the decision tree structure")."""
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
