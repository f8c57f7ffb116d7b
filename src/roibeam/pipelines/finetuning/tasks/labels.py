"""One label for an image and a text: from a table of one's own, or from a data set's own files (`label_task`).

The labels are those of the training rows, and are kept with the model. Accuracy is the metric, of all rows and as the
mean over labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.messages import plural, printable
from roibeam.pipelines.data.compatibility import check_choices, check_least
from roibeam.pipelines.data.datasets.tables import TableRow, read_table, table_of
from roibeam.pipelines.finetuning.metrics.measure import Measure, check_row_ids
from roibeam.pipelines.finetuning.metrics.own_labels import (
    ACCURACY,
    BALANCED,
    own_label_measures,
    read_label_results,
    write_label_entries,
    write_label_results,
)
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup, text_row
from roibeam.pipelines.finetuning.scored_tasks import BOTH_RULES, OpenTask, OwnTask, ScoredTask, find_file, opened_rows
from roibeam.pipelines.finetuning.task import (
    DownstreamTask,
    Kept,
    NamedTask,
    Prediction,
    QuestionRows,
    TaskSplit,
    labelled_answers,
)

EQUAL, BALANCED_LOSS = "equal", "balanced"
WEIGHTS = (EQUAL, BALANCED_LOSS)
_SPLITS = ("train", "val", "test")
RowLabel = tuple[str, str]  # id of a row and its predicted label
Rows = Callable[[Path], Iterable[TableRow]]


@dataclass(frozen=True)
class LabelsOptions:
    """
    Attributes:
        validation: the split that a run is judged on; "" for none.
        weights: of rows in the loss: "equal"; or "balanced", N / (K n) for each of the n rows of a label, with K labels
            and N rows to train on, so that all labels count alike and the mean over rows is 1.
    """

    validation: str = "val"
    weights: str = EQUAL

    def __post_init__(self) -> None:
        check_choices(self, weights=WEIGHTS)
        if self.validation not in ("", "val", "test"):
            raise ValueError(f"LabelsOptions: validation must be val, test or nothing, got {self.validation!r}")


@dataclass(frozen=True)
class OwnLabelsOptions:
    """
    Attributes:
        min_occurrence: training rows that a label needs; rows of rarer ones are not trained on.
        weights: of `LabelsOptions`.
    """

    min_occurrence: int = 1
    weights: str = EQUAL

    def __post_init__(self) -> None:
        check_choices(self, weights=WEIGHTS)
        check_least(self, min_occurrence=1)


def open_labels(folder: Path, options: LabelsOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """The task of a table for each split in `folder`, see pipelines/data/datasets/tables.py.

    Args:
        labels: of a trained model; None for those of the training table.
    """
    return _labels_task(
        "labels", lambda split: table_of(folder, split), read_table, labels, splits=_SPLITS,
        validation=options.validation or None, write=write_label_entries, weights=options.weights, own_table=True,
    )  # fmt: skip


def label_task(
    name: str,
    files: Mapping[str, str],
    rows: Rows,
    *,
    validation: str | None = "val",
    write: Callable[[Path, Iterable[RowLabel]], None] = write_label_results,
    read: Callable[[str], Iterable[RowLabel]] = read_label_results,
    official_rows: Mapping[str, int] | None = None,
) -> OwnTask:
    """Task of a data set with one label for an image and a text, for the file of a task of one's own.

    Args:
        files: name of the official file of each split, the training split first.
        rows: such a file -> its rows.
        validation: the split that a run is judged on; None for none.
        write: result file, (id, label) of each row; as the data set's test server takes them.
        read: the same file -> (id, label) of each row.
        official_rows: numbers of rows of the splits, where known.
    """

    rows, read = _own_rows(rows), _own_results(read)

    def file_of(folder: Path, split: str) -> Path:
        return find_file(folder, files[split])

    def open_task(folder: Path, options: OwnLabelsOptions, labels: Sequence[str] | None) -> DownstreamTask:
        return _labels_task(
            name, lambda split: file_of(folder, split), rows, labels, splits=tuple(files), validation=validation,
            write=write, min_occurrence=options.min_occurrence, weights=options.weights,
        )  # fmt: skip

    def open_scored(folder: Path, split: str, rules: str) -> OpenTask:
        path = file_of(folder, split)
        return opened_rows(path, list(rows(path)), read, rules)

    counts = official_rows or {}
    splits = [*([validation] if validation else []), *files]
    scored = ScoredTask({split: counts.get(split) for split in splits}, BOTH_RULES, open_scored)
    if validation is not None and validation not in files:
        raise ValueError(f"{name}: no file of the validation split {validation!r}; there are {', '.join(files)}")
    return OwnTask(NamedTask(OwnLabelsOptions, open_task), scored)


def _own_rows(rows: Rows) -> Rows:
    """Wraps a user's reader of rows: its exceptions, and results that are no rows, become a ValueError."""

    def checked(path: Path) -> Iterator[TableRow]:
        read = 0
        try:
            for row in rows(path):
                texts = (row.where, row.id, row.image, row.text, row.label or "")
                if not all(isinstance(text, str) for text in texts):
                    raise TypeError(f"a row must be of texts, got {row}")
                yield row
                read += 1
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            words = printable(f"{type(error).__name__}: {error}", 200)
            raise ValueError(f"{str(path)!r}, row {read}: the reader of the task failed: {words}") from error

    return checked


def _own_results(read: Callable[[str], Iterable[RowLabel]]) -> Callable[[str], Iterator[RowLabel]]:
    def checked(path: str) -> Iterator[RowLabel]:
        try:
            yield from [(str(row), str(label)) for row, label in read(path)]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            words = printable(f"{type(error).__name__}: {error}", 200)
            raise ValueError(f"{path!r}: the reader of the task's results failed: {words}") from error

    return checked


def _labels_task(
    name: str,
    file_of: Callable[[str], Path],
    rows: Rows,
    labels: Sequence[str] | None,
    *,
    splits: tuple[str, ...],
    validation: str | None,
    write: Callable[[Path, Iterable[Any]], None],
    min_occurrence: int = 1,
    weights: str,
    own_table: bool = False,
) -> DownstreamTask:
    train = splits[0]
    counts = {} if labels is not None else _labels(file_of(train), rows, min_occurrence)
    chosen = tuple(counts) if labels is None else tuple(labels)
    places = {label: place for place, label in enumerate(chosen)}

    def words(predictions: Iterable[Prediction]) -> list[str]:
        return [chosen[int(prediction.scores.argmax())] for prediction in predictions]

    def judge(groups: Sequence[TaskGroup], predicted: Sequence[str]) -> Mapping[str, Measure]:
        right, images = [str(group.facts["label"]) for group in groups], [group.images[0] for group in groups]
        measures = own_label_measures(predicted, right, images)
        return {name: measures[name] for name in (ACCURACY, BALANCED) if name in measures}

    def entry(group: TaskGroup, word: str) -> Any:
        row = {"id": group.id, "image": group.images[0], "text": group.rows[0].parts[0].text, "label": word}
        return row if own_table else (group.id, word)

    def write_entries(path: Path, entries: Sequence[Any]) -> None:
        write(path, entries if own_table else [(row, label) for row, label in entries])

    return DownstreamTask(
        name=name,
        form=LABEL,
        loss="class",
        read=lambda split: _read(file_of(split), rows, places, split, is_trained=split == train),
        train=train,
        validation=validation,
        judge=lambda groups, predictions: judge(groups, words(predictions)),
        kept=Kept(words, judge),
        answers=labelled_answers(words, entry),
        own_table=own_table,
        write=write_entries,
        labels=chosen,
        # N / (K n) of each of K labels with n of N rows.
        label_weights=tuple(sum(counts.values()) / (len(counts) * count) for count in counts.values())
        if weights == BALANCED_LOSS
        else (),
        splits=splits,
        has_label=lambda group: group.facts["label"] is not None,
        right_words=lambda group: str(group.facts["label"]),
        directly=QuestionRows(lambda texts: text_row(*texts), words),
    )


def _labels(path: Path, rows: Rows, min_occurrence: int) -> dict[str, int]:
    """The labels, in their order, and how many rows each has."""
    counts = Counter(row.label for row in rows(path) if row.label is not None)
    found = sorted(label for label, times in counts.items() if times >= min_occurrence)
    if not counts:
        raise ValueError(f"{str(path)!r}: no row has a label in a column label; for columns of answers: --task vqa")
    if len(found) < 2:
        raise ValueError(f"{str(path)!r}: {plural(len(found), 'label')} in its column label; expected at least 2")
    return {label: counts[label] for label in found}


def _read(path: Path, rows_of: Rows, places: Mapping[str, int], split: str, *, is_trained: bool) -> TaskSplit:
    rows = list(rows_of(path))
    if not rows:
        raise ValueError(f"{str(path)!r} holds no row")
    check_row_ids(repr(str(path)), [row.id for row in rows], unit="id")
    unknown = 0
    groups = []
    for row in rows:
        if is_trained and row.label is None:
            raise ValueError(f"{row.where}: no label, and this is trained on")
        target = None if row.label is None else places.get(row.label)
        is_unknown = row.label is not None and target is None
        unknown += is_unknown
        if not (is_trained and is_unknown):
            groups.append(TaskGroup(row.id, (row.image,), (text_row(row.text),), target, facts={"label": row.label}))
    has = "has" if unknown == 1 else "have"
    words = "of a label that is too rare: left out" if is_trained else f"{has} a label that nothing is trained on"
    notes = [f"{split}: {plural(unknown, 'row')} {words}"] * bool(unknown)
    labels = Counter(row.label for row in rows if row.label is not None)
    if labels and unknown == labels.total():
        some, known = (printable(", ".join(sorted(each)[:4]), 120) for each in (labels, places))
        hint = ""
        if set(map(_number, labels)) & set(map(_number, places)) - {None}:
            hint = (
                "; as numbers they are equal: pandas writes a column of whole numbers with a gap as 0.0, 1.0; write it "
                'with astype("Int64"), or as texts'
            )
        raise ValueError(
            f"{str(path)!r}: none of its labels ({some}, ...) is one of those trained on ({known}, ...){hint}"
        )
    if labels:
        # The accuracy of always one label: accuracy means little without it.
        (commonest, times), *_ = labels.most_common(1)
        notes.append(
            f"{split}: {plural(len(labels), 'label')}; the commonest, {printable(commonest, 60)!r}, is that of "
            f"{100 * times / labels.total():.1f} % of the rows"
        )
    return TaskSplit(groups, (path,), tuple(notes))


def _number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None
