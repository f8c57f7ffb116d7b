"""Measures of predictions: one number for each counted row, with intervals over images; and the ids of scored rows.

A measure has the image of each row, and the level of guessing. Figures that are no means over rows have intervals from
rows drawn with replacement: (N, rows) weights, how often each row was drawn, give (N,) values. A result file must have
one row for each question and no other. `OpenTask` has the splits and rules of a task for `roibeam score`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import plural, printable
from roibeam.pipelines.common.statistics.verdict import Bootstrap, Figure, mean_figure, whole_figure


@dataclass(frozen=True)
class Measure:
    """A mean over rows.

    Attributes:
        name: such as "overall" or "answer type number".
        values: of the rows, 0..1.
        images: of the rows; rows of one image are drawn together for intervals.
        guess: computes the level of guessing on these rows: of always the commonest answer, or of a choice among the
            candidates by lot. None where that is not defined. It may take as long as the metric, so it is computed on
            demand.
    """

    name: str
    values: Sequence[float]
    images: Sequence[str]
    guess: Callable[[], float] | None = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    def mean(self) -> float:
        """Mean of the values; NaN without a row."""
        return sum(self.values) / len(self.values) if self.values else math.nan

    @property
    def percent(self) -> float:
        """The mean in percent, computed in the order of the official codes, so that it rounds as there."""
        return 100.0 * sum(self.values) / len(self.values) if self.values else math.nan

    def by_image(self, number_of_image: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
        """(images,) sums of values and counts of rows, at the place of each image."""
        places = np.array([number_of_image[image] for image in self.images], dtype=np.int64)
        values = np.asarray(self.values, dtype=np.float64)
        sums = np.bincount(places, weights=values, minlength=len(number_of_image))
        return sums, np.bincount(places, minlength=len(number_of_image))

    def figure(self, number_of_image: Mapping[str, int], bootstrap: Bootstrap, chance: float | None) -> Figure:
        """The measure with its interval over these images."""
        return mean_figure(self.name, *self.by_image(number_of_image), bootstrap, chance=chance)


@dataclass(frozen=True)
class Whole(Measure):
    """A figure of all rows together, such as a correlation, and no mean over them.

    Attributes:
        values: accuracy of each row; the figure is not computed from them.
        value: -1..1, or NaN where it is not defined.
        drawn: (N, rows) int, how often each row was drawn -> (N,) the value in each draw; None without intervals.
    """

    value: float = math.nan
    drawn: Callable[[np.ndarray], np.ndarray] | None = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    def mean(self) -> float:
        return self.value

    @property
    def percent(self) -> float:
        return 100.0 * self.value

    def figure(self, number_of_image: Mapping[str, int], bootstrap: Bootstrap, chance: float | None) -> Figure:
        places = np.array([number_of_image[image] for image in self.images], dtype=np.int64)
        ends = bootstrap.whole(self.drawn, places) if self.drawn is not None and len(places) else None
        return whole_figure(self.name, self.value, ends, len(set(self.images)), len(self.values), chance)


def numbers_of_images(measures: Iterable[Measure]) -> dict[str, int]:
    """Numbers of the images of rows, in the order in which rows name them."""
    images = dict.fromkeys(image for measure in measures for image in measure.images)
    return {image: number for number, image in enumerate(images)}


def figures_of(
    measures: Mapping[str, Measure], chances: MutableMapping[str, float | None] | None = None
) -> list[Figure]:
    """Figures of measures, each with its interval over the images of all of them, and beside chance.

    Args:
        chances: by name, of an earlier call on the same rows; missing ones are computed and added.
    """
    known = {} if chances is None else chances
    number_of = numbers_of_images(measures.values())
    bootstrap = Bootstrap(len(number_of))
    for name, measure in measures.items():
        if name not in known:
            known[name] = None if measure.guess is None or not measure.values else measure.guess()
    return [measure.figure(number_of, bootstrap, known[name]) for name, measure in measures.items()]


Drawn = Callable[[np.ndarray], np.ndarray]


def drawn_matthews(predicted: Sequence[int], right: Sequence[int]) -> Drawn:
    """Matthews correlation of labels; 0 where either side is constant, as in scikit-learn."""

    def drawn(weights: np.ndarray) -> np.ndarray:
        table = _confusion(weights, predicted, right)
        of_right, of_predicted = table.sum(axis=2), table.sum(axis=1)
        total, hits = table.sum(axis=(1, 2)), np.trace(table, axis1=1, axis2=2)
        spread = (total**2 - (of_predicted**2).sum(axis=1)) * (total**2 - (of_right**2).sum(axis=1))
        together = hits * total - (of_right * of_predicted).sum(axis=1)
        return np.divide(together, np.sqrt(spread), out=np.zeros(len(total)), where=spread > 0)

    return drawn


def drawn_f1(predicted: Sequence[int], right: Sequence[int]) -> Drawn:
    """F1 of label 1; 0 without a row of that label."""

    def drawn(weights: np.ndarray) -> np.ndarray:
        table = _confusion(weights, predicted, right)
        both = table[:, 1].sum(axis=1) + table[:, :, 1].sum(axis=1)
        return np.divide(2 * table[:, 1, 1], both, out=np.zeros(len(both)), where=both > 0)

    return drawn


def drawn_accuracy(predicted: Sequence[int], right: Sequence[int]) -> Drawn:
    hits = np.asarray(predicted) == np.asarray(right)
    return lambda weights: weights @ hits.astype(np.float64) / weights.sum(axis=1)


def drawn_balanced(hits: Sequence[float], labels: Sequence[str]) -> Drawn:
    """The mean over labels of the accuracy of their own rows, of the labels that were drawn."""
    order, starts = _groups(np.unique(np.asarray(labels), return_inverse=True)[1])
    ordered = np.asarray(hits, np.float64)[order]

    def drawn(weights: np.ndarray) -> np.ndarray:
        chosen = weights[:, order]
        counts = np.add.reduceat(chosen, starts, axis=1)
        right = np.add.reduceat(chosen * ordered, starts, axis=1)
        shares = np.divide(right, counts, out=np.zeros(right.shape), where=counts > 0)
        return shares.sum(axis=1) / (counts > 0).sum(axis=1)

    return drawn


def drawn_pearson(predicted: Sequence[float], right: Sequence[float]) -> Drawn:
    """Pearson correlation; NaN where either side is constant."""
    first, second = np.asarray(predicted, np.float64)[None], np.asarray(right, np.float64)[None]
    return lambda weights: _correlation(weights, first, second)


def drawn_spearman(predicted: Sequence[float], right: Sequence[float]) -> Drawn:
    """Pearson correlation of ranks; equal numbers share their mean rank."""
    return lambda weights: _correlation(weights, _ranks(weights, predicted), _ranks(weights, right))


def drawn_mean(first: Drawn, second: Drawn) -> Drawn:
    return lambda weights: (first(weights) + second(weights)) / 2


def _confusion(weights: np.ndarray, predicted: Sequence[int], right: Sequence[int]) -> np.ndarray:
    """(N, K, K) confusion tables of labels 0..K - 1, at least two: rows are right, columns predicted labels."""
    count = max(2, 1 + max(*predicted, *right))
    place = np.asarray(right, np.int64) * count + np.asarray(predicted, np.int64)
    return (weights @ np.eye(count * count)[place]).reshape(-1, count, count)


def _ranks(weights: np.ndarray, values: Sequence[float]) -> np.ndarray:
    """(N, rows) ranks from 1, among the rows that were drawn."""
    group = np.unique(np.asarray(values, np.float64), return_inverse=True)[1]
    order, starts = _groups(group)
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    middle = np.cumsum(counts, axis=1) - counts + (counts + 1) / 2
    return middle[:, group]


def _groups(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order in which rows of one group stand side by side, and where each group starts."""
    order = np.argsort(group, kind="stable")
    return order, np.flatnonzero(np.diff(group[order], prepend=-1))


def _correlation(weights: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson correlation of (N, rows) or (1, rows) numbers."""
    total = weights.sum(axis=1, keepdims=True)
    first, second = (each - (weights * each).sum(axis=1, keepdims=True) / total for each in (first, second))
    spread = (weights * first**2).sum(axis=1) * (weights * second**2).sum(axis=1)
    together = (weights * first * second).sum(axis=1)
    # A constant side has a spread of rounding alone.
    scale = (weights.sum(axis=1) * np.finfo(np.float64).eps) ** 2
    return np.divide(together, np.sqrt(spread), out=np.full(len(together), np.nan), where=spread > scale)


STRICT, OFFICIAL = "strict", "official"
Id = TypeVar("Id", bound=Hashable)
Row = TypeVar("Row")


def check_row_ids(
    source: str,
    ids: Iterable[Hashable],
    expected: Collection[Hashable] | None = None,
    *,
    unit: str,
    allow_duplicates: bool = False,
    allow_unknown: bool = False,
) -> None:
    """Compares the ids of a file's rows with those that it must have.

    Args:
        expected: once each; None for any, so that only doubled ids are refused.
        unit: what an id is of, in the singular, such as "question".
    Raises:
        ValueError: with the counts and the first id of each kind.
    """
    given = Counter(ids)
    expected = given if expected is None else expected
    wanted = set(expected)
    missing = [each for each in expected if each not in given]
    doubled = [] if allow_duplicates else [each for each, times in given.items() if times > 1]
    unknown = [] if allow_unknown else [each for each in given if each not in wanted]
    problems = [
        f"{plural(len(found), unit)} {what} (first: {printable(str(found[0]))})"
        for found, what in ((missing, "without a row"), (doubled, "with several rows"), (unknown, "not in the split"))
        if found
    ]
    if problems:
        raise ValueError(f"{source}: {'; '.join(problems)}; expected one row for each of {plural(len(wanted), unit)}")


def rows_by_id(
    source: str,
    rows: Iterable[tuple[Id, Row]],
    expected: Collection[Id],
    *,
    unit: str,
    rules: str = STRICT,
    allow_unknown: bool = False,
) -> dict[Id, Row]:
    """The rows of a result file by their ids; official rules take the last of several rows of one id.

    Args:
        source, expected, unit: of `check_row_ids`, whose errors this has.
    """
    given = list(rows)
    check_row_ids(
        source,
        [name for name, _ in given],
        expected,
        unit=unit,
        allow_duplicates=rules == OFFICIAL,
        allow_unknown=allow_unknown,
    )
    return dict(given)


def write_entries(path: Path, entries: Iterable[Any]) -> None:
    """Writes a result file that is a json list, whole or not at all."""
    write_bytes_atomically(path, json.dumps(list(entries), allow_nan=False).encode())


def is_csv(path: str | Path) -> bool:
    return str(path).lower().endswith(".csv")


def write_csv_entries(path: Path, entries: Sequence[Mapping[str, str]]) -> None:
    """Writes a result file as a table, whole or not at all; the columns are the fields of the entries."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, entries[0], lineterminator="\n")
    table.writeheader()
    table.writerows(entries)
    write_bytes_atomically(path, text.getvalue().encode())


def check_labelled(unlabelled: Iterable[str], what: str = "label") -> None:
    """Raises ValueError for the first of these rows, which have no label."""
    for where in unlabelled:
        raise ValueError(f"{where}: no {what}, so that nothing can be scored; --check checks a submission")


Measures = dict[str, Measure]


@dataclass(frozen=True)
class OpenTask:
    """The label files of one split, read.

    Attributes:
        metric: the metric and the source of its rule, for the card.
        rules: the effect of the chosen rules, for the card.
        read: a result file -> its rows; raises ValueError for its faults.
        score: such rows -> measures.
        read_whole: `read` for a file that is to be complete; None for `read`.
        is_own: whether the data are the user's, so that no official number of rows is known.
        numbers: rows -> figures that are no means over rows, for the card; None for none.
        ids: of the rows, in the order of the files.
    """

    metric: str
    rules: str
    files: tuple[Path, ...]
    rows: int
    read: Callable[[str], Any]
    score: Callable[[Any], Measures]
    read_whole: Callable[[str], object] | None = None
    is_own: bool = False
    numbers: Callable[[Any], Mapping[str, float]] | None = None
    ids: Sequence[Any] = ()

    def check(self, results: str) -> None:
        """Raises ValueError for the faults of a result file."""
        (self.read_whole or self.read)(results)

    def measures(self, results: str) -> Measures:
        return self.score(self.read(results))


@dataclass(frozen=True)
class ScoredTask:
    """Attributes:
    splits: the official ones with their numbers of rows, None where unknown; the first is the default.
    rules: names of its rule sets.
    open: reads the label files of a folder by split and rules.
    """

    splits: Mapping[str, int | None]
    rules: Collection[str]
    open: Callable[[Path, str, str], OpenTask]
