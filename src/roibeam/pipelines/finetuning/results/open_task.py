"""What `roibeam score` knows of a task: its splits and rules, and what opens its label files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from roibeam.pipelines.finetuning.metrics.measure import Measure

Measures = dict[str, Measure]


@dataclass(frozen=True)
class OpenTask:
    """The label files of one split, read.

    Attributes:
        metric: what is computed and whose rule it is, for the card.
        rules: what the chosen rules do, for the card.
        files: that say what is right.
        rows: of a result file.
        check: reads a result file and raises ValueError for what is wrong with it.
        measures: scores a result file.
        is_own: whether the data are the user's, so that no official number of rows is known.
        numbers: what of a result file is no mean over rows, for the card; None for nothing.
    """

    metric: str
    rules: str
    files: tuple[Path, ...]
    rows: int
    check: Callable[[str], object]
    measures: Callable[[str], Measures]
    is_own: bool = False
    numbers: Callable[[str], Mapping[str, float]] | None = None


@dataclass(frozen=True)
class ScoredTask:
    """Attributes:
    splits: the official ones with their numbers of rows, None where nobody knows; the first is the default.
    rules: names of its rule sets.
    open: reads the label files of a folder by split and rules.
    """

    splits: Mapping[str, int | None]
    rules: Collection[str]
    open: Callable[[Path, str, str], OpenTask]
