"""Tables with a header: any .csv file, tables of URLs with captions, and a task's own table.

A quote that is not closed costs its own row, and none below. A row with more or fewer fields than the header is a bad
row: a comma outside quotes has moved the fields behind it.

A table of URLs, as LAION, COYO, DataComp and img2dataset have them, is .parquet or .csv. Its columns are found by their
usual names, or named by the caller; rows are numbered from 1. A task's own table is train, val and test as .jsonl, .csv
or .parquet, with the columns image, text and label. Answers of people are a list of texts, or of objects with an
"answer", or one text with "|" between them; columns may be called "question" and "answer" too.
"""

from __future__ import annotations

import csv
import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roibeam.features.folders.durable_files import check_regular_file
from roibeam.messages import first_line, name_hint, plural, printable
from roibeam.pipelines.common.image_ids import is_utf8
from roibeam.pipelines.data.datasets.rows import (
    NO_URL,
    NOT_UTF8,
    OTHER_ENCODING,
    OTHER_FIELDS,
    BadRow,
    MissingFileError,
    UrlRow,
    caption_text,
    is_web_url,
    parsed_rows,
    refuse_utf16,
)

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_OPEN_QUOTE = "quote that is opened there and not closed"


def read_csv_table(path: str) -> tuple[list[str], Iterator[tuple[int, list[str]] | BadRow]]:
    """The names of the columns, without white space around them; and (line, fields) of each row that is not blank,
    lines numbered from 1. A row has as many fields as there are names. Bytes that are no UTF-8 come as lone surrogates.
    Raises ValueError if the first row cannot be read, or names two columns alike."""
    return _opened(path, checks_width=True)


def read_strict_csv(path: str) -> Iterator[dict[str, str]]:
    """The rows of a table of which none may be missing, by the names of their columns. Raises ValueError as
    `read_csv_table`, and naming the first row that is a bad one."""
    names, rows = _opened(path, checks_width=False)
    for number, row in enumerate(rows):
        line, fields = (row.line, []) if isinstance(row, BadRow) else row
        if isinstance(row, BadRow):
            reason = row.reason
        elif len(fields) != len(names):
            reason = f"{plural(len(fields), 'field')}, the header has {len(names)}; a text with commas stands in quotes"
        elif not is_utf8("".join(fields)):
            reason = f"{NOT_UTF8}; {OTHER_ENCODING}"
        else:
            yield dict(zip(names, fields, strict=True))
            continue
        raise ValueError(f"{path!r}, row {number} (line {line}): {reason}")


def _opened(path: str, *, checks_width: bool) -> tuple[list[str], Iterator[tuple[int, list[str]] | BadRow]]:
    """The names of the columns, and all rows below."""
    rows = _rows(path, checks_width=checks_width)
    header = next(rows, None)
    if header is None or isinstance(header, BadRow):
        raise ValueError(f"{path!r}: nothing in it, expected a table whose first line names the columns")
    names = [name.strip() for name in header[1]]
    refuse_same_names(path, names)
    return names, rows


def refuse_same_names(path: str, names: Sequence[str]) -> None:
    """Raises ValueError when two columns of a table have one name, in any letter case: which is meant cannot be known.

    Names that are empty, as of the columns that spreadsheets leave behind, may be there more than once.
    """
    again = [name for name, count in Counter(name.strip().lower() for name in names).items() if name and count > 1]
    if again:
        raise ValueError(
            f"{path!r}: two columns are called {printable(repr(again[0]), 60)}; rename one or take it out; it has "
            f"{printable(', '.join(names), 200)}"
        )


@contextmanager
def open_parquet(path: str | Path, otherwise: str) -> Iterator[ParquetFile]:
    """A parquet file to read.

    Args:
        otherwise: what the error calls a file that is none, or is found to be damaged while it is read.
    """
    import pyarrow
    from pyarrow import parquet

    check_regular_file(path)
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of what the file holds
            raise
        reason = first_line(error)
        raise ValueError(f"{str(path)!r}: {otherwise}: {reason}") from None


def _rows(path: str, *, checks_width: bool) -> Iterator[tuple[int, list[str]] | BadRow]:
    """(line, fields) of each row that is not blank, the header first.

    Args:
        checks_width: whether a row of another number of fields than the header is a bad one.
    """
    refuse_utf16(path)
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _Lines(file)
        reader = csv.reader(lines)
        width: int | None = None  # of the header
        while True:
            line = lines.begin_row()
            try:
                values = next(reader, None)
            except csv.Error as error:  # a field without end
                if len(lines.taken) == 1:
                    raise ValueError(f"{path!r}, line {line}: not a csv file ({error})") from None
                values = []
            if values is not None and (lines.is_at_end or len(lines.taken) > 1) and lines.have_open_quote():
                if width is None:
                    raise ValueError(f"{path!r}, line {line}: not a csv file ({_OPEN_QUOTE})")
                lines.put_back()
                yield BadRow(line, _OPEN_QUOTE)
            elif values is None:
                return
            elif width is None:
                width = len(values)
                yield line, values
            elif values:
                yield (line, values) if len(values) == width or not checks_width else BadRow(line, OTHER_FIELDS)


class _Lines(Iterator[str]):
    """The lines of a csv file, of which those after the first of a row can be put back.

    Attributes:
        taken: of the row that is being read.
        is_at_end: whether it was read on to the end of the file.
    """

    def __init__(self, file: Iterator[str]) -> None:
        self._file, self._waiting, self._last = file, deque[str](), 0
        self.is_at_end = False
        self.taken: list[str] = []

    def __next__(self) -> str:
        try:
            line = self._waiting.popleft() if self._waiting else next(self._file)
        except StopIteration:
            self.is_at_end = True
            raise
        self.taken.append(line)
        return line

    def begin_row(self) -> int:
        """The number of its first line, from 1."""
        self._last += len(self.taken)
        self.taken.clear()
        self.is_at_end = False  # lines that were put back follow
        return self._last + 1

    def put_back(self) -> None:
        self._waiting.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]

    def have_open_quote(self) -> bool:
        """Whether a row goes on over several lines, or to the end of the file, because a quote in the first line is not
        closed.

        The next quote below is inside a field then, there is none, or a field gets longer than any.
        """
        if not self.taken:
            return False
        try:
            next(csv.reader(self.taken, strict=True))
        except csv.Error:
            return True
        return False


URL_TABLE_KINDS = (".parquet", ".csv")
URL_NAMES, CAPTION_NAMES = ("url", "image_url"), ("caption", "text", "top_caption")
_BATCH_ROWS = 4096


@dataclass(frozen=True)
class UrlColumns:
    """The columns that are read; "" stands for one of the usual names, in any case: `URL_NAMES`, `CAPTION_NAMES`."""

    url: str = ""
    caption: str = ""

    def of(self, path: str, names: Sequence[str]) -> tuple[str, str]:
        """The two among a table\'s names; ValueError names what there is, if one is missing or several may be meant."""
        return (
            _column(path, names, self.url, URL_NAMES, "--url-column"),
            _column(path, names, self.caption, CAPTION_NAMES, "--caption-column"),
        )


def read_url_table(path: str, columns: UrlColumns) -> Iterator[UrlRow | BadRow]:
    """Rows in file order; one without a caption, or without an http or https URL, is a bad row."""

    def parse(number: int, row: tuple[str | None, str | None] | str) -> UrlRow:
        if isinstance(row, str):
            raise ValueError(row)
        url = (row[0] or "").strip()
        if not is_web_url(url):
            raise ValueError(NO_URL)
        return UrlRow(number, caption_text(row[1]), url)

    rows = _parquet_rows(path, columns) if Path(path).suffix.lower() == ".parquet" else _csv_rows(path, columns)
    return parsed_rows(enumerate(rows, start=1), parse)


def _column(path: str, names: Sequence[str], chosen: str, usual: Sequence[str], option: str) -> str:
    if chosen:
        if chosen not in names:
            raise ValueError(f"{path!r}: {option} {chosen!r}: no such column; {name_hint(chosen, names)}")
        return chosen
    found = [name for name in names if name.lower() in usual]
    if len(found) != 1:
        what = "more than one column may be meant" if found else f"no column {' or '.join(usual)}"
        raise ValueError(f"{path!r}: {what}; choose with {option}; it has {', '.join(names)}")
    return found[0]


def _parquet_rows(path: str, columns: UrlColumns) -> Iterator[tuple[str | None, str | None]]:
    """(URL, caption) of each row, some thousand rows in memory at a time."""
    with open_parquet(path, "no parquet file, or a damaged one") as file:
        schema = file.schema_arrow
        refuse_same_names(path, schema.names)
        chosen = columns.of(path, schema.names)
        for name in chosen:
            if str(schema.field(name).type) not in ("string", "large_string"):
                raise ValueError(
                    f"{path!r}: the column {name!r} has values of {schema.field(name).type}, expected texts"
                )
        for batch in file.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys(chosen))):
            yield from zip(*(batch.column(name).to_pylist() for name in chosen), strict=True)


def _csv_rows(path: str, columns: UrlColumns) -> Iterator[tuple[str, str] | str]:
    """(URL, caption) of each row, or what is wrong with it."""
    names, rows = read_csv_table(path)
    places = [names.index(name) for name in columns.of(path, names)]
    for row in rows:
        if isinstance(row, BadRow):
            yield row.reason
        elif not all(is_utf8(row[1][place]) for place in places):
            yield NOT_UTF8
        else:
            yield row[1][places[0]], row[1][places[1]]


TASK_TABLE_KINDS = (".jsonl", ".csv", ".parquet")
_ALSO_CALLED = {"question": "text", "answer": "answers"}
_BETWEEN = "|"  # of answers in one text


@dataclass(frozen=True)
class TableRow:
    """
    Attributes:
        id: of the column "id", else the number of the row, from 0.
        label: None where the table has no such column, or nothing in it.
    """

    where: str
    id: str
    image: str
    text: str
    label: str | None


@dataclass(frozen=True)
class AnswerRow:
    """A question: `TableRow` with answers of one or more people in place of a label; () without answers."""

    where: str
    id: str
    image: str
    text: str
    answers: tuple[str, ...]


def tables_in(folder: Path, splits: Sequence[str] = ("train", "val", "test")) -> list[Path]:
    return [path for split in splits for kind in TASK_TABLE_KINDS if (path := folder / f"{split}{kind}").is_file()]


def table_of(folder: Path, split: str) -> Path:
    """The file of a split. Raises ValueError when there is none, or several."""
    found = tables_in(folder, (split,))
    if len(found) != 1:
        names = ", ".join(f"{split}{kind}" for kind in TASK_TABLE_KINDS)
        what = "no" if not found else "more than one"
        kind = ValueError if found else MissingFileError
        others = ", ".join(path.name for path in tables_in(folder) if path not in found)
        unjudged = (
            "finetune does without by --set labels.validation= (or vqa.validation=), and " if split == "val" else ""
        )
        more = f"; it holds {others}: {unjudged}predict takes another split by --split" if others else ""
        raise kind(f"--data {str(folder)!r} holds {what} table of the split {split}: expected one of {names}{more}")
    return found[0]


def check_first_row(path: Path, rows: Iterator[object]) -> None:
    """Raises ValueError where a table has no row, or its first one cannot be used."""
    if next(rows, None) is None:
        raise ValueError(f"{str(path)!r}: no row below the names of its columns")


def read_table(path: Path) -> Iterator[TableRow]:
    """The rows of a table in its order. Raises ValueError, naming the row that lacks an image or a text, or is not as
    its kind of file writes it."""
    for where, number, row in _task_rows(path):
        image, text, name = _common_fields(row, where, number, "label")
        label = _text(row, "label", where)
        yield TableRow(where, name, image, text, None if label is None else label.strip())


def read_answer_table(path: Path) -> Iterator[AnswerRow]:
    """`read_table` for questions with the column "answers"."""
    for where, number, row in _task_rows(path):
        image, text, name = _common_fields(row, where, number, "answers")
        answers = row.get("answers")
        if isinstance(answers, list):  # VQA's own files have objects
            answers = [each.get("answer") if isinstance(each, dict) else each for each in answers]
        given = answers if isinstance(answers, list) else (_text(row, "answers", where) or "").split(_BETWEEN)
        if not all(isinstance(each, str) for each in given):
            raise ValueError(f"{where}: answers must be texts, got {printable(repr(answers), 60)}")
        yield AnswerRow(where, name, image, text, tuple(each.strip() for each in given if each.strip()))


def _task_rows(path: Path) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    for number, row in enumerate(_READERS[path.suffix](path)):
        for name, usual in _ALSO_CALLED.items():
            if name in row and usual not in row:
                row = {**row, usual: row[name]}
        yield f"{str(path)!r}, row {number}", number, row


def _common_fields(row: Mapping[str, Any], where: str, number: int, last: str) -> tuple[str, str, str]:
    """Image, text and id of a row; `last` is the table's third column."""
    image, text = _text(row, "image", where), _text(row, "text", where)
    if image is None or text is None:
        lacks = "image" if image is None else "text"
        if lacks in row:
            raise ValueError(f"{where}: its {lacks} is empty; fill it, or take the row out")
        has = printable(", ".join(map(str, row)), 200) or "none"
        hint = (
            "; is it separated by semicolons or tabs? commas are expected" if len(row) == 1 and "," not in has else ""
        )
        also = " (or question, answer)" if last == "answers" else ""
        raise ValueError(
            f"{where}: no {lacks}; a table has the columns image, text and {last}{also}, this one {has}{hint}"
        )
    return image, text, _text(row, "id", where) or str(number)


def _text(row: Mapping[str, Any], name: str, where: str) -> str | None:
    value = row.get(name)
    if isinstance(value, bool | int | float):
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where}: {name} must be a text, got {printable(repr(value), 60)}")
    return value if value and value.strip() else None


def _jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{str(path)!r}, line {number + 1}: no JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{str(path)!r}, line {number + 1}: expected an object with image, text and label")
            yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    with open_parquet(path, "no parquet table") as file:
        refuse_same_names(str(path), file.schema_arrow.names)
        for batch in file.iter_batches():
            yield from batch.to_pylist()


_READERS: Mapping[str, Callable[[Path], Iterator[Mapping[str, Any]]]] = {
    ".csv": lambda path: read_strict_csv(str(path)),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
