"""The metrics of GLUE (gluebenchmark.com), by scikit-learn and scipy, as its baselines and papers compute them.

One task has several figures, and tables print one of them, which they do not always name:

    task                                 headline of GLUE         others
    CoLA                                 Matthews correlation     accuracy
    MRPC, QQP                            mean of accuracy and F1  F1, accuracy
    STS-B                                mean of both             Pearson, Spearman
    SST-2, MNLI, QNLI, RTE, WNLI         accuracy

F1 is that of label 1. InterBERT's Table 3 prints F1, Spearman and for the rest "accuracy": its CoLA has Matthews' size.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from roibeam.pipelines.finetuning.metrics.drawn_rows import (
    Drawn,
    drawn_accuracy,
    drawn_f1,
    drawn_matthews,
    drawn_mean,
    drawn_pearson,
    drawn_spearman,
)
from roibeam.pipelines.finetuning.metrics.measure import Measure, Whole

ACCURACY, F1, MATTHEWS = "accuracy", "F1", "Matthews"
ACCURACY_AND_F1 = "accuracy and F1"
PEARSON, SPEARMAN, BOTH = "Pearson", "Spearman", "Pearson and Spearman"
WITHIN = "within 0.5"
NEAR = 0.5  # of a similarity from 0 to 5: what is called right of one row, for pages alone
# Sub-tasks by their official names, with the figures that they have, the headline first.
FIGURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CoLA": (MATTHEWS, ACCURACY),
        "SST-2": (ACCURACY,),
        "MRPC": (ACCURACY_AND_F1, F1, ACCURACY),
        "STS-B": (BOTH, PEARSON, SPEARMAN, WITHIN),
        "QQP": (ACCURACY_AND_F1, F1, ACCURACY),
        "MNLI": (ACCURACY,),
        "QNLI": (ACCURACY,),
        "RTE": (ACCURACY,),
        "WNLI": (ACCURACY,),
    }
)
# What InterBERT's Table 3 prints.
PAPER_COLUMN: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(("SST-2", "MNLI", "QNLI", "RTE"), ACCURACY),
     "CoLA": MATTHEWS, "MRPC": F1, "QQP": F1, "STS-B": SPEARMAN}
)  # fmt: skip
NINE = "average, nine tasks"
EIGHT = "average, without WNLI"
PAPER = "average, InterBERT's Table 3"


class MissingExtraError(ValueError):
    """What computes the metrics is not installed."""


_PACKAGES = {"sklearn": "scikit-learn", "scipy": "scipy"}


def has_extra(task: str) -> bool:
    """Whether what computes the figures of a task (a key of `FIGURES`) is installed; an accuracy needs nothing."""
    return FIGURES[task] == (ACCURACY,) or all(importlib.util.find_spec(name) for name in _PACKAGES)


def check_extra(task: str) -> None:
    """Raises MissingExtraError without what computes the figures of a task."""
    if not has_extra(task):
        missing = next(package for name, package in _PACKAGES.items() if importlib.util.find_spec(name) is None)
        raise MissingExtraError(
            f"{missing} is missing, which computes the figures of {task}; install the extra with: "
            "pip install 'roibeam[glue]'"
        )


def label_measures(task: str, said: Sequence[int], right: Sequence[int]) -> dict[str, Measure]:
    """The figures of a task of labels, the headline first.

    Args:
        task: a key of `FIGURES`.
        said, right: numbers of labels, 1 the one that F1 is of; at least one row.
    Raises:
        MissingExtraError: without scikit-learn.
    """
    hits = Measure(
        ACCURACY,
        [float(a == b) for a, b in zip(said, right, strict=True)],
        _rows(right),
        guess=lambda: max(Counter(right).values()) / len(right),
    )
    if FIGURES[task] == (ACCURACY,):
        return {ACCURACY: hits}
    check_extra(task)
    from sklearn.metrics import f1_score, matthews_corrcoef

    if MATTHEWS in FIGURES[task]:
        matthews = float(matthews_corrcoef(right, said))
        return {MATTHEWS: _whole(MATTHEWS, hits, matthews, 0.0, drawn_matthews(said, right)), ACCURACY: hits}
    f1 = float(f1_score(right, said, zero_division=0.0))
    both = drawn_mean(drawn_accuracy(said, right), drawn_f1(said, right))
    # Always label 1 finds all of them, and always label 0 none.
    ones = sum(each == 1 for each in right) / len(right)
    f1_of_ones = 2 * ones / (1 + ones)
    means = {
        ACCURACY_AND_F1: _whole(
            ACCURACY_AND_F1, hits, (hits.mean + f1) / 2, max((ones + f1_of_ones) / 2, (1 - ones) / 2), both
        ),
        F1: _whole(F1, hits, f1, f1_of_ones, drawn_f1(said, right)),
    }
    return {**means, ACCURACY: hits}


def number_measures(said: Sequence[float], right: Sequence[float]) -> dict[str, Measure]:
    """Those of STS-B. The correlation with what is always alike is not defined: NaN.

    Raises:
        MissingExtraError: without scipy.
    """
    check_extra("STS-B")
    from scipy.stats import pearsonr, spearmanr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant rows, which NaN tells
        few = len(right) < 2
        pearson = math.nan if few else float(pearsonr(said, right)[0])
        spearman = math.nan if few else float(spearmanr(said, right)[0])
    near = Measure(
        WITHIN,
        [float(abs(a - b) <= NEAR) for a, b in zip(said, right, strict=True)],
        _rows(right),
        guess=lambda: _near_one_number(right),
    )
    drawn = {PEARSON: drawn_pearson(said, right), SPEARMAN: drawn_spearman(said, right)}
    drawn[BOTH] = drawn_mean(drawn[PEARSON], drawn[SPEARMAN])
    values = {BOTH: (pearson + spearman) / 2, PEARSON: pearson, SPEARMAN: spearman}
    return {**{name: _whole(name, near, value, 0.0, drawn[name]) for name, value in values.items()}, WITHIN: near}


def averages(of_tasks: Mapping[str, Mapping[str, float]], mismatched: Mapping[str, float]) -> dict[str, float]:
    """GLUE's averages, in which MNLI's two files count as one task.

    Args:
        of_tasks: by sub-task its figures; "MNLI" is the matched file.
        mismatched: figures of MNLI's other file.
    Returns:
        those whose tasks are all there.
    """
    found = {}
    for name, tasks, columns in (
        (NINE, tuple(FIGURES), {task: own[0] for task, own in FIGURES.items()}),
        (EIGHT, tuple(task for task in FIGURES if task != "WNLI"), {task: own[0] for task, own in FIGURES.items()}),
        (PAPER, tuple(PAPER_COLUMN), PAPER_COLUMN),
    ):
        if not set(tasks) <= of_tasks.keys() or not mismatched:
            continue
        values = {task: of_tasks[task][columns[task]] for task in tasks}
        values["MNLI"] = (values["MNLI"] + mismatched[ACCURACY]) / 2
        found[name] = sum(values.values()) / len(values)
    return found


def _whole(name: str, rows: Measure, value: float, chance: float, drawn: Drawn) -> Whole:
    return Whole(name, rows.values, rows.images, value, guess=lambda: chance, drawn=drawn)


def _near_one_number(right: Sequence[float]) -> float:
    """The largest share of rows that one number is near to."""
    ordered = np.sort(np.asarray(right, np.float64))
    ends = np.searchsorted(ordered, ordered + 2 * NEAR, side="right")
    return float((ends - np.arange(len(ordered))).max() / len(ordered))


def _rows(of: Sequence[float]) -> list[str]:
    """Rows have no image: each moves by itself."""
    return [str(row) for row in range(len(of))]
