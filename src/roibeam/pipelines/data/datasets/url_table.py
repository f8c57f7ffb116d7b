"""A table of URLs with captions, as LAION, COYO, DataComp and img2dataset's users have them: .parquet, or .csv.

Columns are found by their usual names, or named by the caller. Rows are numbered from 1; the header of a .csv is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.folders.durable_files import check_regular_file
from roibeam.near_names import name_hint
from roibeam.pipelines.common.files.image_ids import is_utf8
from roibeam.pipelines.data.datasets.csv_rows import read_csv_table, refuse_same_names
from roibeam.pipelines.data.datasets.rows import NOT_UTF8, BadRow, UrlRow, caption_text, is_web_url

KINDS = (".parquet", ".csv")
URL_NAMES, CAPTION_NAMES = ("url", "image_url"), ("caption", "text", "top_caption")
_BATCH_ROWS = 4096


@dataclass(frozen=True)
class UrlColumns:
    """The columns that are read; "" stands for one of the usual names, in any case: `URL_NAMES`, `CAPTION_NAMES`."""

    url: str = ""
    caption: str = ""

    def of(self, path: str, names: Sequence[str]) -> tuple[str, str]:
        """
        Args:
            names: of the columns of the table.
        Raises:
            ValueError: naming the columns that there are, if one is missing or several may be meant.
        """
        return (
            _column(path, names, self.url, URL_NAMES, "--url-column"),
            _column(path, names, self.caption, CAPTION_NAMES, "--caption-column"),
        )


def read_url_table(path: str, columns: UrlColumns) -> Iterator[UrlRow | BadRow]:
    """Rows in file order; one without a caption, or without an http or https URL, is a bad row.

    Raises:
        ValueError: if the file is no such table, or lacks a column.
        OSError: if it cannot be read.
    """
    read = _parquet_rows if Path(path).suffix.lower() == ".parquet" else _csv_rows
    for number, row in enumerate(read(path, columns), start=1):
        if isinstance(row, str):
            yield BadRow(number, row)
            continue
        url = (row[0] or "").strip()
        if not is_web_url(url):
            yield BadRow(number, "no http or https URL")
            continue
        try:
            yield UrlRow(number, caption_text(row[1]), url)
        except ValueError as error:
            yield BadRow(number, str(error))


def _column(path: str, names: Sequence[str], asked: str, usual: Sequence[str], option: str) -> str:
    if asked:
        if asked not in names:
            raise ValueError(f"{path!r}: {option} {asked!r}: no such column; {name_hint(asked, names)}")
        return asked
    found = [name for name in names if name.lower() in usual]
    if len(found) != 1:
        what = "more than one column may be meant" if found else f"no column {' or '.join(usual)}"
        raise ValueError(f"{path!r}: {what}; choose with {option}; it has {', '.join(names)}")
    return found[0]


def _parquet_rows(path: str, columns: UrlColumns) -> Iterator[tuple[str | None, str | None]]:
    """(URL, caption) of each row, some thousand rows in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_regular_file(path)
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid:
        raise ValueError(f"{path!r}: no parquet file, or a damaged one") from None
    with file:
        refuse_same_names(path, file.schema_arrow.names)
        chosen = columns.of(path, file.schema_arrow.names)
        for name in chosen:
            kind = file.schema_arrow.field(name).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise ValueError(f"{path!r}: the column {name!r} has values of {kind}, expected texts")
        try:
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys(chosen))):
                yield from zip(*(batch.column(name).to_pylist() for name in chosen), strict=True)
        except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path!r}: damaged: {str(error).splitlines()[0]:.120}") from None


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
