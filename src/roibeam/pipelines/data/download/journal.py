"""What became of each row, one json line each, appended as rows are done: a killed run goes on from here.

The first line says which list it is of. The last line of a row counts; a line cut short by a crash is removed. One is
written when its image is safely in its place, so an image without a line may be there, but no line without its image.
Each line ends with a sum of itself; damaged ones are removed, and their rows are done again. Lines of earlier versions
have none and count: to make them anew is to fetch all images, and those have sums of their own (`download_run.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roibeam.features.counted import counted
from roibeam.features.folders.kept_work import KeptFile
from roibeam.pipelines.data.download.image_files import StoredImage, image_id

JOURNAL_NAME = "journal.jsonl"
JOURNAL_FORMAT = "roibeam-download-journal"
JOURNAL_VERSION = 1
_UNKNOWN = -1
_SUM, _SUM_LETTERS = b', "sum": "', 16
_END = len(_SUM) + _SUM_LETTERS + len(b'"}\n')

logger = logging.getLogger(__name__)


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
        ValueError: if the file is another list's or has another `min_side`, or no line says of which list it is.
    """

    def __init__(self, path: Path, *, list_sha256: str, num_rows: int, min_side: int = 0) -> None:
        self._path, self._num_rows, self._seed = path, num_rows, list_sha256.encode()
        self._needs_sums = True
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
        found = self._parsed(self._file.readline())
        return None if found is None else found[1]

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
            line = _line({"row": row, **asdict(outcome)}, self._seed)
            self._file.write(line)
            self._note(row, outcome, offset)
            offset += len(line)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _load(self, header: dict[str, Any]) -> None:
        self._offsets = array("q", [_UNKNOWN]) * self._num_rows
        self._is_stored = bytearray(self._num_rows)
        self.num_stored, self.failures = 0, Counter[str]()
        self._file.seek(0)
        first = self._file.readline()
        if _line(header).startswith(first) and not first.endswith(b"\n"):  # new, or killed at its first line
            self._file.truncate(0)
            self._file.write(_line(header))
            self._file.flush()
            return
        damaged = [1] if self._is_damaged_header(first, header) else []
        self._needs_sums = _entry(first)[1] is True
        offset, number = len(first), 1
        while line := self._file.readline():
            number += 1
            if not line.endswith(b"\n"):
                self._file.truncate(offset)
                break
            found = self._parsed(line)
            if found is None:
                damaged.append(number)
            else:
                row, outcome = found
                if self.is_known(row):
                    self.forget(row)
                    self._file.seek(offset + len(line))
                self._note(row, outcome, offset)
            offset += len(line)
        if damaged:
            logger.warning(
                "%s: %s damaged, such as line %d; what is not in the others is done again", self._path,
                counted(len(damaged), "line is", "lines are"), damaged[0],
            )  # fmt: skip
            self._mend(header)

    def _is_damaged_header(self, first: bytes, header: dict[str, Any]) -> bool:
        """Raises ValueError for the journal of another list, and where no line says of which list it is."""
        found, is_summed = _entry(first)
        if found is not None and is_summed is not False:
            found = {"min_side": header["min_side"], **found}  # journals of earlier versions do not tell the least side
            if found == header:
                return False
        if any(_entry(line, self._seed)[1] for line in self._file):  # what only a line of this list has
            self._file.seek(len(first))
            if not is_summed:
                return True
        if found is None or is_summed is False or not isinstance(found.get("list_sha256"), str):
            raise ValueError(
                f"{self._path}: no line of it says of which list it is; is it damaged? Restore it, or remove the "
                f"folder {self._path.parent}, and all images are fetched again"
            )
        if found.get("format") != JOURNAL_FORMAT or found.get("version") != JOURNAL_VERSION:
            raise ValueError(f"{self._path}: no journal of this version of roibeam download")
        if found | {"min_side": header["min_side"]} == header:
            raise ValueError(
                f"{self._path.parent}: was begun with --min-side {found['min_side']}, not {header['min_side']}; "
                "give the same one, or name a new folder"
            )
        raise ValueError(f"{self._path.parent}: holds images of another list (or this one was changed since)")

    def _mend(self, header: dict[str, Any]) -> None:
        """Leaves the lines that are whole."""
        with KeptFile(self._path) as mended:
            mended.write(_line(header))
            self._file.seek(0)
            self._file.readline()
            for line in self._file:
                if (found := self._parsed(line)) is not None:
                    mended.write(_line({"row": found[0], **asdict(found[1])}, self._seed))
            mended.finish()
        self._file.close()
        self._file = self._path.open("a+b")
        self._load(header)

    def _parsed(self, line: bytes) -> tuple[int, Outcome] | None:
        """The row of a line and what became of it; None for a damaged line."""
        entry, is_summed = _entry(line, self._seed)
        if entry is None or is_summed is False or (is_summed is None and self._needs_sums):
            return None
        try:
            row, path = entry["row"], entry.get("path")
            if type(row) is not int or not 0 <= row < self._num_rows:
                return None
            if path is None:
                texts = [entry[name] for name in ("stage", "reason", "detail")]
                return (row, FailedRow(*texts)) if all(isinstance(text, str) for text in texts) else None
            is_own = isinstance(path, str) and path.rpartition(".")[0] == image_id(row)
            return (row, StoredImage(path, entry["num_bytes"], entry["sha256"])) if is_own else None
        except KeyError:
            return None

    def _note(self, row: int, outcome: Outcome, offset: int) -> None:
        self._offsets[row] = offset
        self._is_stored[row] = isinstance(outcome, StoredImage)
        if isinstance(outcome, StoredImage):
            self.num_stored += 1
        else:
            self.failures[outcome.reason] += 1


def _line(entry: dict[str, Any], seed: bytes = b"") -> bytes:
    """
    Args:
        seed: sets the sums of one list apart from those of others.
    """
    text = json.dumps(entry).encode("ascii")
    return text[:-1] + _SUM + _sum(seed + text) + b'"}\n'


def _entry(line: bytes, seed: bytes = b"") -> tuple[dict[str, Any] | None, bool | None]:
    """The object of a line, None for none; and whether its sum is right, None for a line without one."""
    text, is_summed = line, None
    if line[-_END : -_END + len(_SUM)] == _SUM:
        text = line[:-_END] + b"}"
        is_summed = line[-_END:] == _SUM + _sum(seed + text) + b'"}\n'
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None, is_summed
    return (found if isinstance(found, dict) else None), is_summed


def _sum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest()[:_SUM_LETTERS].encode()


def least_side(path: Path) -> int:
    """The `min_side` that a journal was begun with; 0 where it does not tell."""
    with path.open("rb") as file:
        found, is_summed = _entry(file.readline())
    if found is None or is_summed is False:
        raise ValueError(f"{path}, line 1: is damaged; run the command that wrote it again, which mends it")
    return int(found.get("min_side", 0))
