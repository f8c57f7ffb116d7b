"""GLUE (gluebenchmark.com): metrics by scikit-learn and scipy; submissions, "index<TAB>prediction", alone or in a zip.

    task                            headline                 others              predictions
    CoLA                            Matthews correlation     accuracy            0 or 1
    MRPC, QQP                       mean of accuracy and F1  F1, accuracy        0 or 1; F1 is that of label 1
    STS-B                           mean of both             Pearson, Spearman   a number from 0 to 5
    SST-2, MNLI, QNLI, RTE, WNLI    accuracy                                     words (MNLI, QNLI, RTE), or 0 or 1

InterBERT's Table 3 prints F1, Spearman and for the rest "accuracy": its CoLA has Matthews' size. The index counts rows
of the test file from 0. Files of a zip are called CoLA.tsv, SST-2.tsv, ..., MNLI-m.tsv and MNLI-mm.tsv.
"""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import numpy as np

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import printable
from roibeam.pipelines.common.statistics.paper_figures import figures_of
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS, GlueCounts, GlueTask, glue_files, read_glue
from roibeam.pipelines.finetuning.metrics.measure import (
    OFFICIAL,
    Drawn,
    Measure,
    Measures,
    OpenTask,
    Whole,
    check_labelled,
    drawn_accuracy,
    drawn_f1,
    drawn_matthews,
    drawn_mean,
    drawn_pearson,
    drawn_spearman,
    rows_by_id,
)

ACCURACY, F1, MATTHEWS = "accuracy", "F1", "Matthews"
ACCURACY_AND_F1 = "accuracy and F1"
PEARSON, SPEARMAN, BOTH = "Pearson", "Spearman", "Pearson and Spearman"
WITHIN = "within 0.5"
NEAR = 0.5  # of a similarity from 0 to 5: rows within count as right, for pages alone
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
    """Error for a missing package that computes the metrics."""


_PACKAGES = {"sklearn": "scikit-learn", "scipy": "scipy"}


def has_extra(task: str) -> bool:
    """Whether the packages for the figures of a task (a key of `FIGURES`) are installed; an accuracy needs none."""
    return FIGURES[task] == (ACCURACY,) or all(importlib.util.find_spec(name) for name in _PACKAGES)


def check_extra(task: str) -> None:
    """Raises MissingExtraError without the packages for the figures of a task."""
    if not has_extra(task):
        missing = next(package for name, package in _PACKAGES.items() if importlib.util.find_spec(name) is None)
        raise MissingExtraError(
            f"{missing} is missing, which computes the figures of {task}; install the extra with: "
            "pip install 'roibeam[glue]'"
        )


def label_measures(task: str, predicted: Sequence[int], right: Sequence[int]) -> dict[str, Measure]:
    """The figures of a task of labels, the headline first.

    Args:
        task: a key of `FIGURES`.
        predicted, right: numbers of labels, 1 the one that F1 is of; at least one row.
    """
    hits = Measure(
        ACCURACY,
        [float(a == b) for a, b in zip(predicted, right, strict=True)],
        _rows(right),
        guess=lambda: max(Counter(right).values()) / len(right),
    )
    if FIGURES[task] == (ACCURACY,):
        return {ACCURACY: hits}
    check_extra(task)
    from sklearn.metrics import f1_score, matthews_corrcoef

    if MATTHEWS in FIGURES[task]:
        matthews = float(matthews_corrcoef(right, predicted))
        return {MATTHEWS: _whole(MATTHEWS, hits, matthews, 0.0, drawn_matthews(predicted, right)), ACCURACY: hits}
    f1 = float(f1_score(right, predicted, zero_division=0.0))
    both = drawn_mean(drawn_accuracy(predicted, right), drawn_f1(predicted, right))
    # Always label 1 finds all of them, and always label 0 none.
    ones = sum(each == 1 for each in right) / len(right)
    f1_of_ones = 2 * ones / (1 + ones)
    means = {
        ACCURACY_AND_F1: _whole(
            ACCURACY_AND_F1, hits, (hits.mean + f1) / 2, max((ones + f1_of_ones) / 2, (1 - ones) / 2), both
        ),
        F1: _whole(F1, hits, f1, f1_of_ones, drawn_f1(predicted, right)),
    }
    return {**means, ACCURACY: hits}


def number_measures(predicted: Sequence[float], right: Sequence[float]) -> dict[str, Measure]:
    """The figures of STS-B. Correlations of constant numbers are not defined: NaN."""
    check_extra("STS-B")
    from scipy.stats import pearsonr, spearmanr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant rows, which give NaN
        few = len(right) < 2
        pearson = math.nan if few else float(pearsonr(predicted, right)[0])
        spearman = math.nan if few else float(spearmanr(predicted, right)[0])
    near = Measure(
        WITHIN,
        [float(abs(a - b) <= NEAR) for a, b in zip(predicted, right, strict=True)],
        _rows(right),
        guess=lambda: _near_one_number(right),
    )
    drawn = {PEARSON: drawn_pearson(predicted, right), SPEARMAN: drawn_spearman(predicted, right)}
    drawn[BOTH] = drawn_mean(drawn[PEARSON], drawn[SPEARMAN])
    values = {BOTH: (pearson + spearman) / 2, PEARSON: pearson, SPEARMAN: spearman}
    return {**{name: _whole(name, near, value, 0.0, drawn[name]) for name, value in values.items()}, WITHIN: near}


def averages(of_tasks: Mapping[str, Mapping[str, float]], mismatched: Mapping[str, float]) -> dict[str, float]:
    """GLUE's averages, in which MNLI's two files count as one task.

    Args:
        of_tasks: by sub-task its figures; "MNLI" is the matched file.
        mismatched: figures of MNLI's other file.
    Returns:
        the averages whose tasks are all there.
    """
    found: dict[str, float] = {}
    every = {task: own[0] for task, own in FIGURES.items()}
    eight = {task: column for task, column in every.items() if task != "WNLI"}
    for name, columns in ((NINE, every), (EIGHT, eight), (PAPER, PAPER_COLUMN)):
        if not columns.keys() <= of_tasks.keys() or not mismatched:
            continue
        values = {task: of_tasks[task][column] for task, column in columns.items()}
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
    """Names of rows in place of images, so that each row is drawn by itself."""
    return [str(row) for row in range(len(of))]


HEADER = "index\tprediction"
SUBMISSION = "glue"  # the task of all tasks
_HIGHEST = 5.0  # of STS-B
_MOST_BYTES = 64 * 2**20  # of a file in a zip; the largest, of QQP's test rows, has 3.5 MB
IndexedPrediction = tuple[str, str]  # index and prediction


def prediction_text(task: GlueTask, value: float) -> str:
    """Text of a label's number, or of a similarity, which is cut to 0 to 5 and has three digits."""
    return task.labels[int(value)] if task.labels else f"{min(max(value, 0.0), _HIGHEST):.3f}"


def write_glue_results(path: Path, rows: Iterable[IndexedPrediction]) -> None:
    lines = (f"{index}\t{prediction}\n" for index, prediction in [HEADER.split("\t"), *rows])
    write_bytes_atomically(path, "".join(lines).encode())


def read_glue_results(path: str, task: GlueTask) -> Iterator[IndexedPrediction]:
    """Index and prediction of each line. Raises ValueError naming the damaged line."""
    with open(path, "rb") as file:
        yield from _result_rows(file.read(), repr(path), task)


def _result_rows(content: bytes, where: str, task: GlueTask) -> Iterator[IndexedPrediction]:
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{where}: not UTF-8") from None
    if not lines or lines[0] != HEADER:
        first = printable(lines[0], 60) if lines else "nothing"
        raise ValueError(f"{where}: expected a first line index<TAB>prediction, got {first}")
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("\t")
        if len(fields) != 2 or not fields[0].isdigit() or not _is_prediction(fields[1], task):
            wanted = " or ".join(task.labels) or "a number"
            raise ValueError(
                f"{where}, line {number}: expected an index, a tab and {wanted}, got {printable(line, 60)}"
            )
        yield str(int(fields[0])), fields[1]


def _is_prediction(text: str, task: GlueTask) -> bool:
    if task.labels:
        return text in task.labels
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class _Labels:
    """The label file of one split of a task, and the lines of a result file beside it."""

    def __init__(self, folder: Path, task: GlueTask, split: str, rules: str) -> None:
        self.task, self.files = task, glue_files(folder, task, split)
        self.rows, self._rules = list(read_glue(self.files, task, split, GlueCounts())), rules

    def by_index(self, predictions: Iterable[IndexedPrediction], where: str) -> dict[str, str]:
        return rows_by_id(where, predictions, [row.id for row in self.rows], unit="row", rules=self._rules)

    def scored(self, predictions: Mapping[str, str]) -> Measures:
        check_labelled(row.where for row in self.rows if row.label is None)
        predicted = (predictions[row.id] for row in self.rows)
        number = {label: place for place, label in enumerate(self.task.labels)}
        values = (number[each] if number else float(each) for each in predicted)
        return measures_of(self.task, values, [row.label or "" for row in self.rows])


def open_glue(name: str) -> Callable[[Path, str, str], OpenTask]:
    """Function that opens the label files of one task, see `ScoredTask.open`."""
    task = GLUE_TASKS[name]

    def opened(folder: Path, split: str, rules: str) -> OpenTask:
        labels, others = _Labels(folder, task, split, rules), ""
        if task.name in PAPER_COLUMN:
            others = f"; InterBERT's Table 3 prints {PAPER_COLUMN[task.name]}: {_printed(f'GLUE {task.name}')}"
        metric = f"{', '.join(FIGURES[task.name])}, the headline first (scikit-learn, scipy){others}"
        return OpenTask(
            metric,
            _RULES[rules == OFFICIAL],
            labels.files,
            len(labels.rows),
            lambda results: labels.by_index(read_glue_results(results, task), repr(results)),
            labels.scored,
            ids=range(len(labels.rows)),
        )

    return opened


_RULES = ("an index that is missing, doubled or unknown is an error", "of several lines of one index the last counts")


def _printed(column: str) -> str:
    """The rows of InterBERT's Table 3, on dev, at the printed digits."""
    rows = ((row, figures_of("InterBERT", row, column)) for row in ("BERT-base", "Single Stream", "InterBERT"))
    return ", ".join(f"{row} {' / '.join(each.printed for each in found)}" for row, found in rows) + " (dev)"


def open_submission(folder: Path, split: str, rules: str) -> OpenTask:
    """Opens the labels for a zip with files of all tasks or some: figures of each, and averages over complete sets."""
    opened = {name: _Labels(folder, task, its_split, rules) for name, task, its_split in _files(split)}

    def read(results: str, *, whole: bool = False) -> dict[str, Mapping[str, str]]:
        given = read_submission(results)
        lacks = [name for name in opened if name not in given]
        if whole and lacks:
            raise ValueError(f"{results!r}: holds no {lacks[0]}; a submission has {', '.join(opened)}")
        if len(lacks) == len(opened):
            raise ValueError(f"{results!r}: holds none of {', '.join(opened)}")
        found: dict[str, Mapping[str, str]] = {}
        for name, labels in opened.items():
            if name in given:
                where = f"{results!r}, {name}"
                found[name] = labels.by_index(_result_rows(given[name], where, labels.task), where)
        return found

    metric = (
        "the figures of each task, its headline first, and their averages, in which MNLI counts once; InterBERT's "
        f"Table 3 prints {_printed('GLUE, average of the eight')}"
    )
    return OpenTask(
        metric,
        _RULES[rules == OFFICIAL],
        tuple(path for labels in opened.values() for path in labels.files),
        sum(len(labels.rows) for labels in opened.values()),
        read,
        lambda given: _submission_measures({name: opened[name].scored(own) for name, own in given.items()}),
        read_whole=partial(read, whole=True),
        is_own=True,
    )


def _files(split: str) -> Iterator[tuple[str, GlueTask, str]]:
    """Name in a submission, task, and split of its file."""
    for task in GLUE_TASKS.values():
        if task.name == "MNLI":
            yield from (
                (f"MNLI-{end}.tsv", task, f"{split}_{kind}") for end, kind in (("m", "matched"), ("mm", "mismatched"))
            )
        else:
            yield f"{task.name}.tsv", task, split


def read_submission(path: str) -> dict[str, bytes]:
    """The tables of a zip by their names, in any folder of it. Raises ValueError for one twice, or too large."""
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(Path(path).read_bytes())) as archive:
            for entry in archive.infolist():
                name = PurePosixPath(entry.filename).name
                if not name.endswith(".tsv"):
                    continue
                if name in found or entry.file_size > _MOST_BYTES:
                    what = "holds it twice" if name in found else f"it has over {_MOST_BYTES} bytes"
                    raise ValueError(f"{path!r}, {printable(name, 60)}: {what}")
                found[name] = archive.read(entry)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"{path!r}: no zip of GLUE's tables: {printable(str(error), 100)}") from None
    return found


def _submission_measures(of_files: Mapping[str, Measures]) -> Measures:
    found: Measures = {}
    values: dict[str, dict[str, float]] = {}
    for file, measures in of_files.items():
        task = file.removesuffix(".tsv")
        values["MNLI" if task == "MNLI-m" else task] = {name: each.mean for name, each in measures.items()}
        found |= {f"{task} {name}": each for name, each in measures.items()}
    mismatched = values.pop("MNLI-mm", {})
    rows = [value for measures in of_files.values() for value in next(iter(measures.values())).values]
    means = {name: Whole(name, rows, _rows(rows), value) for name, value in averages(values, mismatched).items()}
    return {**means, **found}


def measures_of(task: GlueTask, values: Iterable[float], right: Iterable[str]) -> dict[str, Measure]:
    """The figures of predictions: numbers of labels, or similarities as they are."""
    if not task.labels:
        return number_measures(list(values), [float(each) for each in right])
    number = {label: place for place, label in enumerate(task.labels)}
    return label_measures(task.name, [int(value) for value in values], [number[each] for each in right])
