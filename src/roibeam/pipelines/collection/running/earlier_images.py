"""Images that an earlier collection fetched, taken along: no server is asked twice when pages or rules have changed."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from roibeam.features.folders.durable_files import fsync_folder
from roibeam.features.folders.folder_lock import store_lock
from roibeam.pipelines.data.datasets.rows import UrlRow
from roibeam.pipelines.data.download.failures import DownloadError
from roibeam.pipelines.data.download.image_files import ImageFiles, StoredImage
from roibeam.pipelines.data.download.journal import JOURNAL_NAME, FailedRow, Journal, Outcome, least_side
from roibeam.pipelines.data.download.limits import DownloadLimits
from roibeam.pipelines.data.download.url_list import UrlList

LIST_NAME, FETCH_NAME, WORK_NAME = "images.tsv", "fetched", "work"
_ROWS_AT_ONCE = 1000
log = logging.getLogger(__name__)


def check_earlier(folder: Path, out: Path) -> None:
    """
    Args:
        out: folder of the new collection.
    Raises:
        ValueError: if `folder` holds no collection that has fetched images, or is the new one's.
    """
    if folder.resolve() == out.resolve():
        raise ValueError(f"--images-from {folder}: is the folder to write into; name an earlier collection")
    work = folder / WORK_NAME
    if not (work / LIST_NAME).is_file() or not (work / FETCH_NAME / JOURNAL_NAME).is_file():
        raise ValueError(f"--images-from {folder}: holds no collection with fetched images in {WORK_NAME}/")


def take_images(earlier: Path, work: Path, limits: DownloadLimits) -> int:
    """Makes what an earlier collection fetched, or failed to fetch, a part of the download in `work`.

    Files become links; each is checked as a fetched one is. Killed and run again it does the rest.

    Args:
        earlier: the other collection's folder.
        work: has the new list of images already, sorted by address as the other one's is.
        limits: of the new download.
    Returns:
        How many images were taken.
    Raises:
        ValueError: if the earlier download is damaged.
        LocalFaultError, OSError: a fault of this machine.
    """
    url_list, out = UrlList(str(work / LIST_NAME)), work / FETCH_NAME
    out.mkdir(exist_ok=True)
    count = 0
    with store_lock(earlier, held="another run is writing the collection of --images-from"), store_lock(out):
        journal = _journal(out, url_list, limits.min_side)
        files = ImageFiles(out, max_pixels=limits.max_pixels, min_side=limits.min_side)
        files.start()
        try:
            rows = _taken(_earlier_outcomes(earlier / WORK_NAME, limits.min_side), url_list, journal, files)
            while batch := list(islice(rows, _ROWS_AT_ONCE)):
                files.sync()
                journal.append(batch)
                count += sum(isinstance(outcome, StoredImage) for _, outcome in batch)
        finally:
            journal.close()
        files.finish()
        fsync_folder(out)
    return count


def _journal(folder: Path, url_list: UrlList, min_side: int) -> Journal:
    return Journal(folder / JOURNAL_NAME, list_sha256=url_list.state, num_rows=url_list.last_row + 1, min_side=min_side)


def _earlier_outcomes(work: Path, min_side: int) -> Iterator[tuple[str, tuple[Path, str] | FailedRow]]:
    """(address, its file and that file's SHA-256, or why there is none) of the earlier list, in its order.

    Args:
        min_side: of the new download: what was too small for another one may be large enough.
    """
    url_list, folder = UrlList(str(work / LIST_NAME)), work / FETCH_NAME
    old_side = least_side(folder / JOURNAL_NAME)
    journal = _journal(folder, url_list, old_side)
    try:
        for row, entry in url_list.rows():
            outcome: Outcome | None = journal.outcome(row) if isinstance(entry, UrlRow) else None
            if not isinstance(entry, UrlRow) or outcome is None:
                continue
            if isinstance(outcome, StoredImage):
                yield entry.url, (folder / outcome.path, outcome.sha256)
            elif outcome.reason != "too small" or min_side >= old_side:
                yield entry.url, outcome
    finally:
        journal.close()


def _taken(
    earlier: Iterator[tuple[str, tuple[Path, str] | FailedRow]], url_list: UrlList, journal: Journal, files: ImageFiles
) -> Iterator[tuple[int, Outcome]]:
    """Rows of the new list that the earlier one has, with what became of them. Both lists come by address."""
    found = next(earlier, None)
    for row, entry in url_list.rows():
        if not isinstance(entry, UrlRow):
            continue
        address = entry.url.encode()
        while found is not None and found[0].encode() < address:
            found = next(earlier, None)
        if found is None:
            return
        if found[0] != entry.url or journal.is_known(row):
            continue
        outcome = found[1] if isinstance(found[1], FailedRow) else _kept(*found[1], row, files)
        if outcome is not None:
            yield row, outcome


def _kept(source: Path, sha256: str, row: int, files: ImageFiles) -> Outcome | None:
    """None for a file that is not there any more, or has other bytes than were fetched: it is fetched again."""
    if not source.is_file() or source.is_symlink():
        return None
    try:
        os.link(source, files.scratch(row))
    except OSError:  # another file system
        shutil.copyfile(source, files.scratch(row))
    try:
        with files.scratch(row).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                log.warning("%s: has other bytes than were fetched; fetching it again", source)
                files.scratch(row).unlink()
                return None
        return files.keep(row)
    except DownloadError as error:
        files.scratch(row).unlink()
        return FailedRow(error.stage, error.reason, str(error))
