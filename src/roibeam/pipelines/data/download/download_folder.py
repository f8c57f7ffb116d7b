"""Folder of a download: images, the journal of rows, captions with local paths, dead letters, a summary.

Row 12,345 has its image in OUT/images/00012/00012345.jpg, a thousand rows in a folder. A file gets this name only when
it is whole, checked and on the disk; until then it is in OUT/.tmp.

The journal has a json line for each row, appended as rows are done: a killed run goes on from here. The first line
names the list. The last line of a row counts; a line cut short by a crash is removed. One is written when its image is
safely in its place, so an image without a line may be there, but no line without its image. The summary is written
last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from roibeam.extraction.photos.decode import DecodeError, check_encoded, image_sides
from roibeam.features.folders.durable_files import fsync_folder, sha256_of, write_json_atomically
from roibeam.features.folders.kept_work import KeptFile
from roibeam.features.shard.manifest import DeadLetter
from roibeam.messages import plural, printable
from roibeam.pipelines.common.dead_letters import write_letters
from roibeam.pipelines.data.datasets.photo_folders import DOWNLOAD_NAME, DRAWN_WORLD, world_of
from roibeam.pipelines.data.datasets.rows import BadRow
from roibeam.pipelines.data.download.response import DownloadError, LocalFaultError
from roibeam.pipelines.data.download.url_list import UrlList

IMAGES_NAME = "images"
SCRATCH_NAME = ".tmp"
_ROWS_PER_FOLDER = 1000
# Formats by content, not by the URL's extension; `roibeam extract` reads all of them.
_EXTENSIONS = {
    "JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "GIF": ".gif", "WEBP": ".webp", "AVIF": ".avif", "BMP": ".bmp",
    "TIFF": ".tif", "PPM": ".ppm", "JPEG2000": ".jp2",
}  # fmt: skip
_NAME = re.compile(r"(\d{8})\.[a-z0-9]+")


@dataclass(frozen=True)
class StoredImage:
    """An image in its place: path below OUT, size, SHA-256 (hex)."""

    path: str
    num_bytes: int
    sha256: str


def image_id(row: int) -> str:
    """Id of this row's image in captions, records and dead letters: its path without extension."""
    return f"{IMAGES_NAME}/{row // _ROWS_PER_FOLDER:05d}/{row:08d}"


class ImageFiles:
    """Writes images below `out`, one process at a time.

    Args:
        out: the folder of the download, there already.
        max_pixels: of an image, by its header.
        min_side: of an image, by its header; 0 takes all.
    """

    def __init__(self, out: Path, *, max_pixels: int, min_side: int = 0) -> None:
        self.folder, self._max_pixels, self._min_side = out, max_pixels, min_side
        self._unsynced: set[Path] = set()
        self._lock = threading.Lock()  # images are kept by several threads

    def start(self) -> None:
        """Makes an empty scratch folder; what a killed run left there goes."""
        shutil.rmtree(self.folder / SCRATCH_NAME, ignore_errors=True)
        (self.folder / SCRATCH_NAME).mkdir()
        (self.folder / IMAGES_NAME).mkdir(exist_ok=True)

    def finish(self) -> None:
        shutil.rmtree(self.folder / SCRATCH_NAME)

    def scratch(self, row: int) -> Path:
        return self.folder / SCRATCH_NAME / f"{row:08d}"

    def open_scratch(self, row: int) -> FileIO:
        """An empty file for the bytes of this row, without a buffer: closing it writes nothing that could fail."""
        try:
            return self.scratch(row).open("wb", buffering=0)
        except OSError as error:
            raise _local_fault(error) from error

    def keep(self, row: int) -> StoredImage:
        """Checks the scratch file of this row and moves it to its place.

        Raises:
            DownloadError: stage "decode", if it is no image that can be used.
            LocalFaultError: if it cannot be written.
        """
        path = self.scratch(row)
        try:
            data = path.read_bytes()
            kind = check_encoded(data, max_pixels=self._max_pixels)
            if self._min_side:
                width, height = image_sides(data)
                if min(width, height) < self._min_side:
                    detail = f"{width} x {height} pixels, each side must have {self._min_side} (--min-side)"
                    raise DownloadError("decode", "too small", detail)
            name = image_id(row) + _EXTENSIONS[kind]
            place = self.folder / name
            with path.open("rb") as file:
                os.fsync(file.fileno())
            with self._lock:
                if not place.parent.is_dir():
                    place.parent.mkdir()
                    self._unsynced.add(place.parent.parent)
                self._unsynced.add(place.parent)
            path.rename(place)
        except DecodeError as error:
            # A body that ends early without its server saying so may be whole next time.
            may_pass = error.reason == "truncated"
            raise DownloadError("decode", error.reason, printable(str(error), 200), may_pass=may_pass) from None
        except OSError as error:
            raise _local_fault(error) from error
        return StoredImage(name, len(data), hashlib.sha256(data).hexdigest())

    def sync(self) -> None:
        """Makes the names of all images kept so far durable."""
        with self._lock:
            folders, self._unsynced = self._unsynced, set()
        for folder in folders:
            fsync_folder(folder)

    def files(self) -> Iterator[tuple[int, str, int]]:
        """(row, path below OUT, size) of all files named as an image is."""
        for folder in sorted((self.folder / IMAGES_NAME).iterdir()):
            if not folder.is_dir():
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    if (match := _NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False):
                        yield int(match[1]), f"{IMAGES_NAME}/{folder.name}/{entry.name}", entry.stat().st_size

    def sha256(self, path: str) -> str:
        """SHA-256 of a file that `files` gave."""
        return sha256_of(self.folder / path)

    def remove(self, path: str) -> None:
        (self.folder / path).unlink()


def _local_fault(error: OSError) -> LocalFaultError:
    return LocalFaultError(f"{error.filename or 'writing an image'}: {error.strerror}; nothing is lost, run again")


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


RowOutcome = StoredImage | FailedRow


class Journal:
    """The journal of one list; 9 bytes of memory per row.

    Args:
        path: of the file, which is made if it is not there.
        list_sha256: of the list; `UrlList.state`.
        num_rows: largest row index plus 1.
        min_side: of the images, pixels; a smaller one is no image of this list.
    Raises:
        ValueError: if the file is another list's or has another `min_side`, or no line names its list.
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

    def outcome(self, row: int) -> RowOutcome | None:
        """Outcome of this row; None when nothing is known, or the list has no such row."""
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

    def append(self, outcomes: Iterable[tuple[int, RowOutcome]]) -> None:
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
                "%s: %s damaged, such as line %d; the rest is done again", self._path,
                plural(len(damaged), "line is", "lines are"), damaged[0],
            )  # fmt: skip
            self._mend(header)

    def _is_damaged_header(self, first: bytes, header: dict[str, Any]) -> bool:
        """Raises ValueError for the journal of another list, and where no line names the list."""
        found, is_summed = _entry(first)
        if found is not None and is_summed is not False:
            found = {"min_side": header["min_side"], **found}  # journals of earlier versions lack the least side
            if found == header:
                return False
        if any(_entry(line, self._seed)[1] for line in self._file):  # what only a line of this list has
            self._file.seek(len(first))
            if not is_summed:
                return True
        if found is None or is_summed is False or not isinstance(found.get("list_sha256"), str):
            raise ValueError(
                f"{self._path}: no line of it names its list; is it damaged? Restore it, or remove the folder "
                f"{self._path.parent}, and all images are fetched again"
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

    def _parsed(self, line: bytes) -> tuple[int, RowOutcome] | None:
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

    def _note(self, row: int, outcome: RowOutcome, offset: int) -> None:
        self._offsets[row] = offset
        self._is_stored[row] = isinstance(outcome, StoredImage)
        if isinstance(outcome, StoredImage):
            self.num_stored += 1
        else:
            self.failures[outcome.reason] += 1


def _line(entry: dict[str, Any], seed: bytes = b"") -> bytes:
    """A line with its sum; `seed` sets the sums of one list apart from those of others."""
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
    """The `min_side` of a journal's first line; 0 where it has none."""
    with path.open("rb") as file:
        found, is_summed = _entry(file.readline())
    if found is None or is_summed is False:
        raise ValueError(f"{path}, line 1: is damaged; run the command that wrote it again, which mends it")
    return int(found.get("min_side", 0))


CAPTIONS_NAME = "local.tsv"
SUMMARY_FORMAT = "roibeam-download"
SUMMARY_VERSION = 1


@dataclass(frozen=True)
class Coverage:
    """Counts of a list's rows, images and failures.

    Attributes:
        rows: of the list, not blank.
        captions: rows whose image is there.
        urls: different ones.
        images: files stored, one for each URL that gave one.
        num_bytes: of the images.
        failures: by reason: rows without a usable caption or URL, and URLs without an image.
    """

    rows: int
    captions: int
    urls: int
    images: int
    num_bytes: int
    failures: Counter[str]

    @property
    def failed_share(self) -> float:
        return 1 - self.captions / self.rows


def write_outputs(out: Path, url_list: UrlList, journal: Journal) -> Coverage:
    """Writes local.tsv, dead_letters.parquet and, last, download.json. Few rows are in memory at a time."""
    captions, num_bytes = _write_captions(out / CAPTIONS_NAME, url_list, journal)
    failures = Counter[str]()

    def counted_letters() -> Iterator[DeadLetter]:
        for letter in _dead_letters(url_list, journal):
            failures[letter.reason] += 1
            yield letter

    write_letters(out, counted_letters())
    coverage = Coverage(url_list.num_rows, captions, url_list.num_urls, journal.num_stored, num_bytes, failures)
    drawn = {DRAWN_WORLD: True} if world_of(url_list.path) is not None else {}  # the list of a collected toy web
    whole = summary(coverage) | {"list": {"sha256": url_list.sha256}} | drawn
    write_json_atomically(out / DOWNLOAD_NAME, whole)
    fsync_folder(out)
    return coverage


def summary(coverage: Coverage) -> dict[str, object]:
    return {
        "format": SUMMARY_FORMAT, "version": SUMMARY_VERSION, "rows": coverage.rows, "captions": coverage.captions,
        "urls": coverage.urls, "images": coverage.images, "bytes": coverage.num_bytes,
        "failures": dict(coverage.failures.most_common()),
    }  # fmt: skip


def _write_captions(path: Path, url_list: UrlList, journal: Journal) -> tuple[int, int]:
    """Caption TAB path below OUT, in the order of the list; returns how many, and the bytes of all images."""
    count = num_bytes = 0
    with KeptFile(path) as file:
        for row, entry in url_list.rows():
            if isinstance(entry, BadRow):
                continue
            first = url_list.first_row(row)
            outcome = journal.outcome(first)
            if isinstance(outcome, StoredImage):
                # A tab or a line end inside a caption, as SBU's json may have it, would be another column or row.
                caption = re.sub(r"[\t\r\n]+", " ", entry.caption)
                mark = "\ufeff" if not count and caption.startswith("\ufeff") else ""  # readers take one off the file
                file.write(f"{mark}{caption}\t{outcome.path}\n".encode())
                count += 1
                num_bytes += outcome.num_bytes if first == row else 0
        file.finish()
    return count, num_bytes


def _dead_letters(url_list: UrlList, journal: Journal) -> Iterator[DeadLetter]:
    """Dead letters of bad rows, and of URLs at the first row that has each, in the order of the list."""
    for row, entry in url_list.rows():
        if isinstance(entry, BadRow):
            location = f"{os.path.basename(url_list.path)}, {url_list.row_word} {entry.line}"
            yield DeadLetter(image_id(row), location, "list", entry.reason, "this row cannot be used")
        elif url_list.first_row(row) == row and isinstance(outcome := journal.outcome(row), FailedRow):
            yield DeadLetter(image_id(row), entry.url, outcome.stage, outcome.reason, outcome.detail)


def summary_text(coverage: Coverage, out: Path) -> str:
    """The end of a download for the terminal, with the tree that was written."""
    share = 100 * coverage.captions / coverage.rows
    lines = [
        f"{plural(coverage.images, 'image')} ({coverage.num_bytes / 1e6:,.1f} MB) of {plural(coverage.urls, 'URL')}, "
        f"for {coverage.captions:,} of {plural(coverage.rows, 'row')} ({share:.1f} %); "
        f"{plural(coverage.failures.total(), 'dead letter')}",
        *(f"  {count:>9,} {reason}" for reason, count in coverage.failures.most_common()),
        "",
        f"{out}/",
        "  local.tsv             captions with the paths of their images: roibeam extract reads it",
        "  images/               the images, a thousand rows in a folder",
        "  dead_letters.parquet  rows that gave no image, with stage and reason",
        "  download.json         these counts; written last",
        "  journal.jsonl         what became of each row; a rerun goes on from it",
    ]
    return "\n".join(lines)
