"""The list that is downloaded: its rows, and which of them name a URL that an earlier row has named.

Id rule: an image is known by the index of its row, from 0: the line of a Conceptual Captions file (blank and bad lines
count, a header does not), the entry of SBU's lists, the row of a table. Rows with one URL share the image of the first
of them.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import xxhash

from roibeam.pipelines.data.datasets.caption_lists import TsvColumns, columns_of, read_caption_urls, read_sbu_urls
from roibeam.pipelines.data.datasets.known_files import refuse_others
from roibeam.pipelines.data.datasets.rows import BadRow, UrlRow
from roibeam.pipelines.data.datasets.tables import URL_TABLE_KINDS, UrlColumns, read_url_table

LARGEST_NUM_ROWS = 100_000_000  # eight digits of an image's name
_ROW_WORDS = {".tsv": "line", ".json": "entry"}  # of a table "row"


class UrlList:
    """A caption list, read row by row at each iteration; 8 bytes per row are kept.

    Attributes:
        num_rows: rows that are not blank, bad ones included.
        num_bad_rows: without a caption or URL.
        num_urls: different ones.
        last_row: largest row index.
        state: of the file and of the columns that were chosen: with another one rows have other images.
        row_word: word for a row in messages, such as "line".
    Args:
        path: Conceptual Captions' .tsv, SBU's .json, or a table (.parquet, .csv).
    """

    def __init__(self, path: str, columns: UrlColumns | None = None) -> None:
        extension, columns = os.path.splitext(path)[1].lower(), columns or UrlColumns()
        self.path, self.row_word = path, _ROW_WORDS.get(extension, "row")
        tsv = columns_of(path, columns.caption) if extension == ".tsv" else TsvColumns()
        self._header = tsv.header
        self._read = _reader(path, extension, columns, tsv)
        self._state = self._file_state()
        with open(path, "rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self.state = self.sha256
        if columns != UrlColumns() or tsv.header:
            self.state = hashlib.sha256(repr((self.sha256, columns, *([tsv.header] * tsv.header))).encode()).hexdigest()
        high, low, indexes = array("Q"), array("Q"), array("q")  # 128 bits: two URLs of 64 could look the same
        self.num_bad_rows, self.last_row, first_bad = 0, -1, None
        for index, row in self.rows():
            self.last_row = index
            if isinstance(row, BadRow):
                self.num_bad_rows += 1
                first_bad = first_bad or row
                continue
            digest = xxhash.xxh3_128_intdigest(row.url.encode())
            high.append(digest >> 64)
            low.append(digest & 0xFFFFFFFFFFFFFFFF)
            indexes.append(index)
        if not indexes:
            example = f"; {self.row_word} {first_bad.line}: {first_bad.reason}" if first_bad else ""
            raise ValueError(f"{path!r}: no row with a caption and a URL{example}")
        self.num_rows = len(indexes) + self.num_bad_rows
        self._first_row = _first_rows(np.asarray(high), np.asarray(low), np.asarray(indexes))
        self.num_urls = int(np.count_nonzero(self._first_row == np.arange(len(self._first_row))))

    def rows(self) -> Iterator[tuple[int, UrlRow | BadRow]]:
        """(row index, row) in file order, without blank lines. Raises ValueError at the end, if the file has changed
        since this list was made."""
        for row in self._read(self.path):
            if row.line > LARGEST_NUM_ROWS:
                raise ValueError(f"{self.path!r}: over {LARGEST_NUM_ROWS:,} rows; cut it into several lists")
            yield row.line - 1 - self._header, row
        if self._file_state() != self._state:
            raise ValueError(f"{self.path!r}: changed while it was read; run again")

    def first_row(self, row: int) -> int:
        return int(self._first_row[row])

    def _file_state(self) -> tuple[int, int]:
        state = os.stat(self.path)
        return state.st_size, state.st_mtime_ns


def _reader(
    path: str, extension: str, columns: UrlColumns, tsv: TsvColumns
) -> Callable[[str], Iterator[UrlRow | BadRow]]:
    refuse_others(path, ("sbu", "url-list"))
    if extension in URL_TABLE_KINDS:
        return partial(read_url_table, columns=columns)
    if extension not in _ROW_WORDS:
        raise ValueError(
            f"{path!r}: expected a Conceptual Captions .tsv (caption TAB URL, or URL TAB caption), an SBU .json, or a "
            f"table with columns of URLs and captions ({' or '.join(URL_TABLE_KINDS)})"
        )
    if columns.url or (columns.caption and extension != ".tsv"):
        raise ValueError(
            f"{path!r}: --url-column and --caption-column are for a table ({' or '.join(URL_TABLE_KINDS)}); of a .tsv, "
            f"--caption-column 1 or 2 is the place of the captions"
        )
    return partial(read_caption_urls, columns=tsv) if extension == ".tsv" else read_sbu_urls


def _first_rows(high: np.ndarray, low: np.ndarray, indexes: np.ndarray) -> np.ndarray:
    """(last index + 1,) int64: for each row the smallest index of a row with its hash; -1 where no hash is given."""
    order = np.lexsort((indexes, low, high))
    high, low, indexes = high[order], low[order], indexes[order]
    is_first = np.ones(len(indexes), dtype=bool)
    is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    first = np.full(indexes.max() + 1, -1, dtype=np.int64)
    first[indexes] = indexes[is_first][np.cumsum(is_first) - 1]
    return first
