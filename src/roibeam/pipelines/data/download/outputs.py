"""What a download leaves for others: captions with local paths, dead letters, and a summary, written last."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX, fsync_folder, write_json_atomically
from roibeam.features.shard.manifest import DeadLetter
from roibeam.pipelines.common.files.dead_letters import write_letters
from roibeam.pipelines.data.datasets.drawn_world import DOWNLOAD_NAME, DRAWN_WORLD, world_of
from roibeam.pipelines.data.datasets.rows import BadRow
from roibeam.pipelines.data.download.image_files import StoredImage, image_id
from roibeam.pipelines.data.download.journal import FailedRow, Journal
from roibeam.pipelines.data.download.url_list import UrlList

CAPTIONS_NAME = "local.tsv"
SUMMARY_FORMAT = "roibeam-download"
SUMMARY_VERSION = 1


@dataclass(frozen=True)
class Coverage:
    """What a list gave.

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
        """Of the rows."""
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


def remove_unfinished(out: Path) -> None:
    """Removes what a run that was killed while it wrote these left aside."""
    for path in out.glob(f".*.*{TEMPORARY_SUFFIX}"):
        path.unlink()


def summary(coverage: Coverage) -> dict[str, object]:
    """The coverage as json."""
    return {
        "format": SUMMARY_FORMAT, "version": SUMMARY_VERSION, "rows": coverage.rows, "captions": coverage.captions,
        "urls": coverage.urls, "images": coverage.images, "bytes": coverage.num_bytes,
        "failures": dict(coverage.failures.most_common()),
    }  # fmt: skip


def _write_captions(path: Path, url_list: UrlList, journal: Journal) -> tuple[int, int]:
    """Caption TAB path below OUT, in the order of the list; returns how many, and the bytes of all images."""
    aside = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    count = num_bytes = 0
    with aside.open("w", encoding="utf-8", newline="\n") as file:
        for row, entry in url_list.rows():
            if isinstance(entry, BadRow):
                continue
            first = url_list.first_row(row)
            outcome = journal.outcome(first)
            if isinstance(outcome, StoredImage):
                # A tab or a line end inside a caption, as SBU's json may have it, would be another column or row.
                caption = re.sub(r"[\t\r\n]+", " ", entry.caption)
                if not count and caption.startswith("\ufeff"):
                    file.write("\ufeff")  # readers take one mark off the file's first line
                file.write(f"{caption}\t{outcome.path}\n")
                count += 1
                num_bytes += outcome.num_bytes if first == row else 0
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    return count, num_bytes


def _dead_letters(url_list: UrlList, journal: Journal) -> Iterator[DeadLetter]:
    """Of each bad row, and of each URL at the first row that has it, in the order of the list."""
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
        f"{counted(coverage.images, 'image')} ({coverage.num_bytes / 1e6:,.1f} MB) of {counted(coverage.urls, 'URL')}, "
        f"for {coverage.captions:,} of {counted(coverage.rows, 'row')} ({share:.1f} %); "
        f"{counted(coverage.failures.total(), 'dead letter')}",
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
