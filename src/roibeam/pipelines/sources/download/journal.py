"""What became of each row, one json line each, appended as rows are done: a killed run goes on from here.

The first line says which list it is of. The last line of a row counts; a line cut short by a crash is removed. One is
written when its image is safely in its place, so an image without a line may be there, but no line without its image.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roibeam.pipelines.sources.download.image_files import StoredImage

JOURNAL_NAME = "journal.jsonl"
JOURNAL_FORMAT = "roibeam-download-journal"
JOURNAL_VERSION = 1
_UNKNOWN = -1


@dataclass(frozen=True)
class FailedRow:
    """A row without an image, see `DownloadError`."""

    stage: str
    reason: str
    detail: str


Outcome = StoredImage | FailedRow


class Journal:
    """The journal of one list; 9 bytes of memory per row.

    Args:
        path: of the file, which is made if it is not there.
        list_sha256: of the list; `UrlList.state`.
        num_rows: largest row index plus 1.
        min_side: of the images, pixels; a smaller one is no image of this list.
    Raises:
        ValueError: if the file is another list's or has another `min_side`, or is damaged other than at its end.
    """

    def __init__(self, path: Path, *, list_sha256: str, num_rows: int, min_side: int = 0) -> None:
        self._path = path
        self._offsets = array("q", [_UNKNOWN]) * num_rows
        self._is_stored = bytearray(num_rows)
        self.num_stored, self.failures = 0, Counter[str]()
        header: dict[str, Any] = {"format": JOURNAL_FORMAT, "version": JOURNAL_VERSION, "list_sha256": list_sha256}
        header["min_side"] = min_side
        self._file = path.open("a+b")
        try:
            self._load(header)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def is_known(self, row: int) -> bool:
        return self._offsets[row] != _UNKNOWN

    def outcome(self, row: int) -> Outcome | None:
        """What became of this row; None when nothing is known, or the list has no such row."""
        offset = self._offsets[row] if row < len(self._offsets) else _UNKNOWN
        if offset == _UNKNOWN:
            return None
        self._file.seek(offset)
        return _parse(json.loads(self._file.readline()))[1]

    def forget(self, row: int) -> None:
        """The row is to be done again. Not written down: the line of its next outcome replaces the old one."""
        outcome = self.outcome(row)
        if isinstance(outcome, FailedRow):
            self.failures[outcome.reason] -= 1
            self.failures += Counter()  # drops what is 0
        elif outcome is not None:
            self.num_stored -= 1
        self._offsets[row], self._is_stored[row] = _UNKNOWN, False

    def rows(self, *, stored: bool) -> Iterator[int]:
        """The rows that have an image, or those that have failed, in order."""
        for row, offset in enumerate(self._offsets):
            if offset != _UNKNOWN and self._is_stored[row] == stored:
                yield row

    def append(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        """Writes outcomes of rows that have none, and waits until they are on the disk."""
        self._file.seek(0, os.SEEK_END)
        offset = self._file.tell()
        for row, outcome in outcomes:
            line = _line({"row": row, **asdict(outcome)})
            self._file.write(line)
            self._note(row, outcome, offset)
            offset += len(line)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _load(self, header: dict[str, Any]) -> None:
        self._file.seek(0)
        first = self._file.readline()
        if _line(header).startswith(first) and not first.endswith(b"\n"):  # new, or killed at its first line
            self._file.truncate(0)
            self._file.write(_line(header))
            self._file.flush()
            return
        # Journals of earlier versions do not tell the least side.
        if (found := {"min_side": header["min_side"], **_parse_json(first, self._path, 1)}) != header:
            if found.get("format") != JOURNAL_FORMAT or found.get("version") != JOURNAL_VERSION:
                raise ValueError(f"{self._path}: no journal of this version of roibeam download")
            if found | {"min_side": header["min_side"]} == header:
                raise ValueError(
                    f"{self._path.parent}: was begun with --min-side {found['min_side']}, not {header['min_side']}; "
                    "give the same one, or name a new folder"
                )
            raise ValueError(f"{self._path.parent}: holds images of another list (or this one was changed since)")
        offset, number = len(first), 1
        while line := self._file.readline():
            number += 1
            if not line.endswith(b"\n"):
                self._file.truncate(offset)
                return
            entry = _parse_json(line, self._path, number)
            try:
                row, outcome = _parse(entry)
                if row < 0:
                    raise IndexError(row)
                if self.is_known(row):
                    self.forget(row)
                    self._file.seek(offset + len(line))
                self._note(row, outcome, offset)
            except (KeyError, TypeError, IndexError):
                raise ValueError(f"{self._path}, line {number}: not an outcome of a row; is it damaged?") from None
            offset += len(line)

    def _note(self, row: int, outcome: Outcome, offset: int) -> None:
        self._offsets[row] = offset
        self._is_stored[row] = isinstance(outcome, StoredImage)
        if isinstance(outcome, StoredImage):
            self.num_stored += 1
        else:
            self.failures[outcome.reason] += 1


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry).encode("ascii") + b"\n"


def _parse(entry: dict[str, Any]) -> tuple[int, Outcome]:
    if "path" in entry:
        return entry["row"], StoredImage(entry["path"], entry["num_bytes"], entry["sha256"])
    return entry["row"], FailedRow(entry["stage"], entry["reason"], entry["detail"])


def _parse_json(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise ValueError(f"{path}, line {number}: not json; is it damaged?")
    return entry
