"""Step 5, the fetch: image addresses of all candidates -> a list -> `roibeam download` -> units of pictures.

Images that an earlier collection fetched are taken along: no server gets a second request when pages or rules have
changed. Addresses and candidates go through a table on disk, so memory does not grow with them.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from roibeam.features.folders.durable_files import fsync_folder, sha256_of, write_bytes_atomically
from roibeam.features.folders.folder_protocol import store_lock
from roibeam.features.folders.kept_work import KeptFile
from roibeam.pipelines.collection.pairs import Reason
from roibeam.pipelines.collection.part import Counts, read_rows
from roibeam.pipelines.collection.picture_job import FetchedFile, PictureUnit, unit_state
from roibeam.pipelines.common.scratch_database import ScratchDatabase
from roibeam.pipelines.data.datasets.rows import UrlRow
from roibeam.pipelines.data.download.download_folder import (
    JOURNAL_NAME,
    FailedRow,
    ImageFiles,
    Journal,
    RowOutcome,
    StoredImage,
    least_side,
)
from roibeam.pipelines.data.download.download_run import DownloadOptions, run_download
from roibeam.pipelines.data.download.limits import DownloadLimits
from roibeam.pipelines.data.download.response import DownloadError
from roibeam.pipelines.data.download.robots import REASON as ROBOTS_REASON
from roibeam.pipelines.data.download.url_list import UrlList

LIST_NAME, FETCH_NAME, WORK_NAME = "images.tsv", "fetched", "work"
_ROWS_AT_ONCE = 1000
log = logging.getLogger(__name__)


def check_earlier(folder: Path, out: Path) -> None:
    """Checks the folder of --images-from.

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
    """Adds the images of an earlier collection, and its failures, to the download in `work`.

    Files become links; each is checked as a fetched one is. A killed call is resumed by the next one.

    Args:
        earlier: the other collection's folder.
        work: has the new list of images already, sorted by address as the other one's is.
    Returns:
        How many images were taken.
    Raises:
        ValueError: if the earlier download is damaged.
        LocalFaultError, OSError: a fault of this machine.
    """
    url_list, out = UrlList(str(work / LIST_NAME)), work / FETCH_NAME
    out.mkdir(exist_ok=True)
    count = 0
    with (
        store_lock(earlier, held="another run is writing the collection of --images-from"),
        store_lock(out),
        closing(_journal(out, url_list, limits.min_side)) as journal,
    ):
        files = ImageFiles(out, max_pixels=limits.max_pixels, min_side=limits.min_side)
        files.start()
        rows = _taken(_earlier_outcomes(earlier / WORK_NAME, limits.min_side), url_list, journal, files)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            files.sync()
            journal.append(batch)
            count += sum(isinstance(outcome, StoredImage) for _, outcome in batch)
        files.finish()
        fsync_folder(out)
    return count


def _journal(folder: Path, url_list: UrlList, min_side: int) -> Journal:
    return Journal(folder / JOURNAL_NAME, list_sha256=url_list.state, num_rows=url_list.last_row + 1, min_side=min_side)


def _earlier_outcomes(work: Path, min_side: int) -> Iterator[tuple[str, tuple[Path, str] | FailedRow]]:
    """Yields (address, its file and that file's SHA-256, or the failure) of the earlier list, in its order.

    Args:
        min_side: of the new download: an image too small for another one may be large enough.
    """
    url_list, folder = UrlList(str(work / LIST_NAME)), work / FETCH_NAME
    old_side = least_side(folder / JOURNAL_NAME)
    with closing(_journal(folder, url_list, old_side)) as journal:
        for row, entry in url_list.rows():
            outcome: RowOutcome | None = journal.outcome(row) if isinstance(entry, UrlRow) else None
            if not isinstance(entry, UrlRow) or outcome is None:
                continue
            if isinstance(outcome, StoredImage):
                yield entry.url, (folder / outcome.path, outcome.sha256)
            elif outcome.reason != "too small" or min_side >= old_side:
                yield entry.url, outcome


def _taken(
    earlier: Iterator[tuple[str, tuple[Path, str] | FailedRow]], url_list: UrlList, journal: Journal, files: ImageFiles
) -> Iterator[tuple[int, RowOutcome]]:
    """Yields rows of the new list that the earlier one has, with their outcomes. Both lists come by address."""
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


def _kept(source: Path, sha256: str, row: int, files: ImageFiles) -> RowOutcome | None:
    """Takes over a file; None for one that is missing or has other bytes than were fetched, to be fetched again."""
    if not source.is_file() or source.is_symlink():
        return None
    try:
        os.link(source, files.scratch(row))
    except OSError:  # another file system
        shutil.copyfile(source, files.scratch(row))
    try:
        if sha256_of(files.scratch(row)) != sha256:
            log.warning("%s: has other bytes than were fetched; fetching it again", source)
            files.scratch(row).unlink()
            return None
        return files.keep(row)
    except DownloadError as error:
        files.scratch(row).unlink()
        return FailedRow(error.stage, error.reason, str(error))


UNITS_NAME = "picture_units"
PICTURES_PER_UNIT = 200
MOST_PAGES_OF_AN_IMAGE = 1000  # the first of a site whose every page names one image; roibeam's number
_REASONS = {"too small": Reason.TOO_SMALL, "opted out": Reason.IMAGE_OPTED_OUT, ROBOTS_REASON: Reason.IMAGE_OPTED_OUT}


@dataclass(frozen=True)
class Fetch:
    """The candidates by the address of their image.

    Attributes:
        work: folder for the list, the fetched files and the units.
        table: candidates, see `gather`.
    """

    work: Path
    table: ScratchDatabase

    @property
    def num_images(self) -> int:
        return int(self.table.rows("SELECT COUNT(DISTINCT url) FROM candidates")[0][0])

    def images(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yields (address, candidates of the pages with it), by address; a row of the list each."""
        rows = self.table.stream("SELECT url, candidate FROM candidates ORDER BY url, number")
        for url, found in groupby(rows, key=lambda row: row[0]):
            yield url, [json.loads(candidate) for _, candidate in islice(found, MOST_PAGES_OF_AN_IMAGE)]


def gather(work: Path, pages: Path, num_units: int) -> Fetch:
    """Collects the candidates of all units of pages in a table."""
    table = ScratchDatabase("CREATE TABLE candidates (url TEXT, number INTEGER, candidate TEXT)")
    table.add(
        "INSERT INTO candidates VALUES (?, ?, ?)",
        (
            (row["image"]["url"], number, json.dumps(row, sort_keys=True))
            for number, row in enumerate(read_rows(pages, num_units))
        ),
    )
    table.rows("CREATE INDEX by_url ON candidates (url, number)")
    return Fetch(work, table)


def fetch_images(
    fetch: Fetch, options: DownloadOptions, *, larger_than_px: int, earlier: Path | None = None
) -> int | None:
    """Writes the list and downloads what is missing; private addresses, opt-outs and the journal are the download's.

    Args:
        earlier: folder of a collection whose images are taken first.
    Returns:
        Number of images taken from there in this run; None without such a folder.
    """
    path = fetch.work / LIST_NAME
    with KeptFile(path) as file:
        for url, candidates in fetch.images():
            file.write(f"{candidates[0]['image']['texts'][0]['text']}\t{url}\n".encode())
        file.finish()
    limits = replace(options.limits, min_side=larger_than_px + 1)
    num_taken = None if earlier is None else take_images(earlier, fetch.work, limits)
    run_download(str(path), fetch.work / FETCH_NAME, replace(options, limits=limits))
    return num_taken


def picture_units(fetch: Fetch, *, larger_than_px: int) -> tuple[list[PictureUnit], Counts]:
    """Returns the fetched files, some hundred a unit, and counts of the others."""
    counts = Counts()
    units: list[PictureUnit] = []
    rows = _fetched(fetch, counts, larger_than_px + 1)
    while chunk := list(islice(rows, PICTURES_PER_UNIT)):
        data = "".join(json.dumps(row, sort_keys=True) + "\n" for row in chunk).encode()
        path = fetch.work / UNITS_NAME / f"unit-{len(units):05d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            write_bytes_atomically(path, data)
        units.append(PictureUnit(len(units), str(path), unit_state(data)))
    return units, counts


def _fetched(fetch: Fetch, counts: Counts, least_side: int) -> Iterator[dict[str, Any]]:
    folder = fetch.work / FETCH_NAME
    url_list = UrlList(str(fetch.work / LIST_NAME))
    with closing(_journal(folder, url_list, least_side)) as journal:
        for row, (url, candidates) in enumerate(fetch.images()):
            outcome = journal.outcome(url_list.first_row(row))
            counts.taken += 1
            if isinstance(outcome, StoredImage):
                counts.kept += 1
                file = FetchedFile(url, str(folder / outcome.path), outcome.sha256, outcome.num_bytes)
                yield {"file": asdict(file), "candidates": candidates}
            elif isinstance(outcome, FailedRow):
                reason = _REASONS.get(outcome.reason, Reason.NOT_FETCHED)
                detail = f"{outcome.reason}: {outcome.detail}"
                text = candidates[0]["image"]["texts"][0]["text"]
                counts.drop(reason.value, {"image": url[:300], "text": text[:200], "detail": detail[:300]})
