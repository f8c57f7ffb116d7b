"""Texts without images: the nine tasks of GLUE (gluebenchmark.com), and corpora to pre-train on.

<TASK>/{train,dev,test}.tsv are plain lines: no quoting, and quotes that are never closed. CoLA's train and dev have no
header. MNLI has two files each for dev and test. MRPC may be Microsoft's own files, msr_paraphrase_{train,test}.txt,
whose dev_ids.tsv lists the training rows that are dev. In today's parquet files a label is a number, whose word the
file itself or the tables below give; -1 is none. Id rule: the place of a row in its file, from 0, as submissions count.

A corpus has the form of BERT's own pre-training data: one sentence or paragraph on each line, a blank line between
documents, UTF-8.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roibeam.messages import plural, printable
from roibeam.pipelines.data.datasets.rows import BadRow, MissingFileError, read_lines
from roibeam.pipelines.data.datasets.tables import open_parquet

MATCHED, MISMATCHED = "dev_matched", "dev_mismatched"
_LONGEST = 5.0  # similarity of STS-B


@dataclass(frozen=True)
class GlueTask:
    """
    Attributes:
        name: the official one, of its folder and of its submission.
        other_folder: as parquet sets call it.
        texts, label: columns of its tsv files.
        parquet_texts: the same of parquet files, whose label is "label".
        labels: as submissions write them, by the numbers of roibeam's models; () for a number from 0 to 5.
        numbers: words of the numbers of parquet files; where these are the numbers as written, nothing.
        rows: official number of rows of each split, train first; the second one is what papers report on.
        header: of train and dev, where their files have none.
    """

    name: str
    other_folder: str
    texts: tuple[str, ...]
    label: str
    parquet_texts: tuple[str, ...]
    labels: tuple[str, ...]
    rows: Mapping[str, int]
    numbers: tuple[str, ...] = ()
    header: tuple[str, ...] = ()

    @property
    def validation(self) -> str:
        return list(self.rows)[1]


def _rows(train: int, dev: int, test: int) -> Mapping[str, int]:
    return MappingProxyType({"train": train, "dev": dev, "test": test})


_TWO = ("sentence1", "sentence2")
_BINARY, _ENTAILS = ("0", "1"), ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_MNLI_ROWS = MappingProxyType(
    {"train": 392_702, MATCHED: 9_815, MISMATCHED: 9_832, "test_matched": 9_796, "test_mismatched": 9_847}
)
GLUE_TASKS: Mapping[str, GlueTask] = MappingProxyType(
    {
        "cola": GlueTask(
            "CoLA", "cola", ("sentence",), "label", ("sentence",), _BINARY, _rows(8_551, 1_043, 1_063),
            header=("source", "label", "star", "sentence"),
        ),
        "sst-2": GlueTask(
            "SST-2", "sst2", ("sentence",), "label", ("sentence",), _BINARY, _rows(67_349, 872, 1_821)
        ),
        "mrpc": GlueTask(
            "MRPC", "mrpc", ("#1 String", "#2 String"), "Quality", _TWO, _BINARY, _rows(3_668, 408, 1_725)
        ),
        "sts-b": GlueTask("STS-B", "stsb", _TWO, "score", _TWO, (), _rows(5_749, 1_500, 1_379)),
        "qqp": GlueTask(
            "QQP", "qqp", ("question1", "question2"), "is_duplicate", ("question1", "question2"), _BINARY,
            _rows(363_849, 40_430, 390_965),
        ),
        "mnli": GlueTask("MNLI", "mnli", _TWO, "gold_label", ("premise", "hypothesis"), _NLI, _MNLI_ROWS, _NLI),
        "qnli": GlueTask(
            "QNLI", "qnli", ("question", "sentence"), "label", ("question", "sentence"), _ENTAILS,
            _rows(104_743, 5_463, 5_463), _ENTAILS,
        ),
        "rte": GlueTask("RTE", "rte", _TWO, "label", _TWO, _ENTAILS, _rows(2_490, 277, 3_000), _ENTAILS),
        "wnli": GlueTask("WNLI", "wnli", _TWO, "label", _TWO, _BINARY, _rows(635, 71, 146)),
    }
)  # fmt: skip


@dataclass(frozen=True)
class GlueRow:
    """
    Attributes:
        id: its place in the file.
        texts: one or two.
        label: one of `GlueTask.labels`, or a number as it is written; None without a label.
    """

    where: str
    id: str
    texts: tuple[str, ...]
    label: str | None


@dataclass
class GlueCounts:
    """Rows that are left out, counted while they are read."""

    left_out: Counter[str] = field(default_factory=Counter)

    def notes(self, split: str) -> list[str]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.left_out.items()))
        return [f"{split}: {plural(self.left_out.total(), 'row')} left out: {reasons}"] if reasons else []


def glue_files(folder: Path, task: GlueTask, split: str) -> tuple[Path, ...]:
    """The files of a split, tab-separated ones before parquet: in the folder of the task, or in the task's folder of
    the folder of all tasks. Raises ValueError for a split that the task has not, or when there is no such file."""
    if split not in task.rows:
        raise ValueError(f"{task.name} has no split {split!r}; choose one of {', '.join(task.rows)}")
    parquet = split.replace("dev", "validation")
    for place in (folder / task.name, folder / task.other_folder, folder):
        for names in (f"{split}.tsv", f"{parquet}-*.parquet", f"{parquet}.parquet"):
            found = tuple(sorted(place.glob(names)))
            if found:
                return found
        if task.name == "MRPC" and (own := _microsoft(place, split)):
            return own
    raise MissingFileError(
        f"--data {str(folder)!r} has no {split}.tsv and no {parquet}-*.parquet of {task.name}, in itself or in its "
        f"folder {task.name} or {task.other_folder}"
    )


def _microsoft(place: Path, split: str) -> tuple[Path, ...]:
    """MRPC's own file, with the list of dev rows where it is needed."""
    file = place / f"msr_paraphrase_{'test' if split == 'test' else 'train'}.txt"
    if not file.is_file():
        return ()
    chosen = place / "dev_ids.tsv"
    if split != "test" and not chosen.is_file():
        raise ValueError(f"{str(file)!r}: dev_ids.tsv is missing beside it, which says which of its rows are dev")
    return (file,) if split == "test" else (file, chosen)


def read_glue(files: Sequence[Path], task: GlueTask, split: str, counts: GlueCounts) -> Iterator[GlueRow]:
    """The rows of a split in the order of its files.

    Args:
        files: of `glue_files`.
        counts: gets the rows of train and dev that are left out: those with too few fields, as some of QQP, and those
            without a gold label. Every row of test must be there.
    """
    if files[0].suffix == ".parquet":
        number = 0
        for path in files:
            with open_parquet(path, "no parquet table") as file:
                words = _words(file.schema_arrow.metadata or {}, task)
                columns = [*task.parquet_texts, "label"]
                _check_columns(path, file.schema_arrow.names, columns, task)
                for batch in file.iter_batches(columns=columns):
                    for row in batch.to_pylist():
                        yield _parquet_row(row, number, f"{str(path)!r}, row {number}", task, words)
                        number += 1
        return
    listed = _dev_ids(files[1]) if len(files) > 1 else None
    number = 0
    for where, fields in _tsv_rows(files[0], task, split):
        reason = "" if isinstance(fields, Mapping) else fields
        label = None
        if isinstance(fields, Mapping):
            if listed is not None and ((fields["#1 ID"], fields["#2 ID"]) in listed) != (split == "dev"):
                continue
            label = fields.get(task.label)
            if label == "-":
                reason = "without a gold label"
        if reason and split.startswith("test"):
            raise ValueError(f"{where}: {reason}; a submission needs every row")
        if reason:
            counts.left_out[reason] += 1
        else:
            assert isinstance(fields, Mapping)
            texts = tuple(fields[name] for name in task.texts)
            yield GlueRow(where, str(number), texts, None if label is None else _checked(label, task, where))
        number += 1


def _tsv_rows(path: Path, task: GlueTask, split: str) -> Iterator[tuple[str, Mapping[str, str] | str]]:
    """File and line, and the fields by column, or why the row cannot be used."""
    header = task.header if task.header and not split.startswith("test") else ()
    for row in read_lines(str(path)):
        line = row.line if isinstance(row, BadRow) else row[0]
        where = f"{str(path)!r}, line {line}"
        if isinstance(row, BadRow):
            yield where, row.reason
            continue
        fields = row[1].split("\t")
        if not header:
            header = tuple(fields)
            labels = () if split.startswith("test") else (task.label,)
            _check_columns(path, header, (*task.texts, *labels), task)
            continue
        if not row[1]:
            continue
        last = max(header.index(name) for name in {*task.texts, *({task.label} & set(header))})
        if len(fields) <= last:
            yield where, f"with {plural(len(fields), 'field')} of {len(header)}"
            continue
        yield where, dict(zip(header, fields, strict=False))


def _check_columns(path: Path, has: Sequence[str], columns: Sequence[str], task: GlueTask) -> None:
    for name in columns:
        if name not in has:
            found = f"{task.name} has {', '.join(columns)}, the file {printable(', '.join(has), 200)}"
            raise ValueError(f"{str(path)!r}: no column {name!r}; {found}")


def _dev_ids(path: Path) -> set[tuple[str, str]]:
    rows = (row[1].split("\t") for row in read_lines(str(path)) if not isinstance(row, BadRow))
    return {(row[0], row[1]) for row in rows if len(row) > 1}


def _checked(label: str, task: GlueTask, where: str) -> str:
    """Raises ValueError for what is no label of the task."""
    if task.labels:
        if label not in task.labels:
            raise ValueError(
                f"{where}: label must be one of {', '.join(task.labels)}, got {printable(repr(label), 60)}"
            )
        return label
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LONGEST:
        raise ValueError(f"{where}: score must be a number from 0 to 5, got {printable(repr(label), 60)}")
    return label


def _words(metadata: Mapping[bytes, bytes], task: GlueTask) -> tuple[str, ...]:
    """Labels by number: from the file's metadata, else as the published files number them."""
    if not task.numbers:
        return task.labels
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"]["label"]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return task.numbers
    return tuple(map(str, names)) if sorted(map(str, names)) == sorted(task.labels) else task.numbers


def _parquet_row(row: Mapping[str, Any], number: int, where: str, task: GlueTask, words: Sequence[str]) -> GlueRow:
    texts, label = tuple(row[name] for name in task.parquet_texts), row["label"]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{where}: its texts must be texts, got {printable(repr(texts), 80)}")
    checked = None
    if label is not None and label != -1:
        if task.labels:
            if not isinstance(label, int) or not 0 <= label < len(words):
                raise ValueError(f"{where}: label must be 0 to {len(words) - 1}, got {printable(repr(label), 60)}")
            label = words[label]
        checked = _checked(str(label), task, where)
    return GlueRow(where, str(number), texts, checked)


@dataclass(frozen=True)
class TextLine:
    """One line: its number (from 1), its document's (from 0), and its text without white space around it."""

    line: int
    document: int
    text: str


NO_TEXT = "no text in it; expected UTF-8, a sentence or paragraph on each line"


def check_has_text(path: str) -> None:
    """Reads a corpus up to its first line of text. Raises ValueError where there is none."""
    if not any(isinstance(row, TextLine) for row in read_text_corpus(path)):
        raise ValueError(f"{path}: {NO_TEXT}")


def read_text_corpus(path: str) -> Iterator[TextLine | BadRow]:
    """Lines in file order, those of one document together. Bad lines are in a document, but do not begin one."""
    document = 0
    has_text = False  # several blank lines in a row, or at the beginning, part nothing
    for row in read_lines(path):
        if isinstance(row, BadRow):
            yield row
            continue
        line, text = row[0], row[1].strip()
        if text:
            has_text = True
            yield TextLine(line, document, text)
        elif has_text:
            document += 1
            has_text = False
