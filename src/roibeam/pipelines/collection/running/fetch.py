"""Step 5, the fetch: image addresses of all candidates -> a list -> `roibeam download` -> units of pictures.

Addresses and candidates go through a table on disk, so memory does not grow with them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.pipelines.collection.pictures.picture_step import FetchedFile
from roibeam.pipelines.collection.reasons import Reason
from roibeam.pipelines.collection.running.earlier_images import FETCH_NAME, LIST_NAME, take_images
from roibeam.pipelines.collection.running.part import Counts, read_rows
from roibeam.pipelines.collection.running.picture_job import PictureUnit, unit_state
from roibeam.pipelines.common.files.scratch_database import ScratchDatabase
from roibeam.pipelines.data.download.download_run import run_download
from roibeam.pipelines.data.download.image_files import StoredImage
from roibeam.pipelines.data.download.journal import JOURNAL_NAME, FailedRow, Journal
from roibeam.pipelines.data.download.options import DownloadOptions
from roibeam.pipelines.data.download.robots_txt import REASON as ROBOTS_REASON
from roibeam.pipelines.data.download.url_list import UrlList

UNITS_NAME = "picture_units"
PICTURES_PER_UNIT = 200
MOST_PAGES_OF_AN_IMAGE = 1000  # the first of a site whose every page names one image; ours
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
        """(address, candidates of the pages that show it), by address; a row of the list each."""
        rows = self.table.stream("SELECT url, candidate FROM candidates ORDER BY url, number")
        for url, found in groupby(rows, key=lambda row: row[0]):
            yield url, [json.loads(candidate) for _, candidate in islice(found, MOST_PAGES_OF_AN_IMAGE)]


def gather(work: Path, pages: Path, num_units: int) -> Fetch:
    """The candidates that all units of pages left, in a table."""
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
        How many were taken from there in this run; None without such a folder.
    Raises:
        ValueError, LocalFaultError: as of `run_download` and `take_images`.
    """
    path = fetch.work / LIST_NAME
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with aside.open("w", encoding="utf-8", newline="\n") as file:
        for url, candidates in fetch.images():
            file.write(f"{candidates[0]['image']['texts'][0]['text']}\t{url}\n")
    os.replace(aside, path)
    limits = replace(options.limits, min_side=larger_than_px + 1)
    num_taken = None if earlier is None else take_images(earlier, fetch.work, limits)
    run_download(str(path), fetch.work / FETCH_NAME, replace(options, limits=limits))
    return num_taken


def picture_units(fetch: Fetch, *, larger_than_px: int) -> tuple[list[PictureUnit], Counts]:
    """The files that came, some hundred a unit, and counts of those that did not."""
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
    journal = Journal(
        folder / JOURNAL_NAME, list_sha256=url_list.state, num_rows=url_list.last_row + 1, min_side=least_side
    )
    try:
        for row, (url, candidates) in enumerate(fetch.images()):
            outcome = journal.outcome(url_list.first_row(row))
            counts.taken += 1
            if isinstance(outcome, StoredImage):
                counts.kept += 1
                file = FetchedFile(url, str(folder / outcome.path), outcome.sha256, outcome.num_bytes)
                yield {"file": asdict(file), "candidates": candidates}
            elif isinstance(outcome, FailedRow):
                reason = _REASONS.get(outcome.reason, Reason.NOT_FETCHED)
                counts.reasons[reason.value] += 1
                detail = f"{outcome.reason}: {outcome.detail}"
                text = candidates[0]["image"]["texts"][0]["text"]
                counts.add_example(reason.value, {"image": url[:300], "text": text[:200], "detail": detail[:300]})
    finally:
        journal.close()
