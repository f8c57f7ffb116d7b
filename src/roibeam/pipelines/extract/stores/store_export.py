"""`roibeam store export`: a store as a feature file that another code base reads, read back and compared at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from roibeam.features.exchange.check_report import NO_REGIONS, CheckReport
from roibeam.features.exchange.formats import FeatureFormat, format_named
from roibeam.features.folders.durable_files import scratch_folder
from roibeam.features.folders.local_folder import is_at_url
from roibeam.features.reading.temporary_copy import local_store
from roibeam.features.record.fingerprint import ABSENT, has_classes
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.console.progress import RECORDS, Progress
from roibeam.pipelines.extract.stores.locations import StoreLocation


@dataclass
class ReadBack:
    """Differences between the file, read again, and the store.

    Attributes:
        box_error_px: largest difference of a box edge.
        feature_error: largest difference of a feature value, as a share of the record's largest one.
        same_classes: records whose class ids are the same.
        problems: image id and its problem, the first few.
    """

    records: int = 0
    box_error_px: float = 0.0
    feature_error: float = 0.0
    same_classes: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ExportSummary:
    """Result of an export.

    Attributes:
        left_out: field -> records that have it and whose file has no place for it.
        without_classes: the store has none, so class ids and scores in the file, if any, are zeros.
        read_back: the comparison with the store.
        seconds: wall time.
    """

    format: str
    layout: str
    num_records: int
    left_out: dict[str, int]
    without_classes: bool
    report: CheckReport
    read_back: ReadBack
    seconds: float


def export_store(
    store: StoreLocation, out: StoreLocation, *, format_name: str, layout: str | None = None, scratch: str | None = None
) -> ExportSummary:
    """Writes the records of `store`, in the store's order, to the new file or folder `out`; then reads it back.

    The file is written beside its place and renamed when it is whole: a killed export leaves nothing under its name,
    and the next one goes on with what it left, where the format can (all but those of HDF5). Memory: one record, and
    what the format keeps per image.

    Args:
        format_name: a name in `roibeam.features.exchange.formats.FORMATS`.
        layout: one of the format's; None: its default.
        scratch: parent of the scratch folders that URLs need: for shards of `store` (see `local_store`), and for the
            whole of `out`, which is uploaded once it was read back. None for the machine's temporary folder.
    Raises:
        ValueError: when `out` exists, a record is damaged or does not fit the format, or what was written cannot be
            read back.
    """
    start = time.monotonic()
    found = format_named(format_name)
    if layout is not None and layout not in found.layouts:
        raise ValueError(f"--layout {layout!r}: {format_name} has {', '.join(found.layouts)}")
    with _written_to(out, found, scratch) as path, local_store(store, scratch=scratch) as opened:
        if not len(opened):
            raise ValueError(f"{store} holds no record; there is nothing to export")
        with Progress("writing", len(opened), RECORDS) as progress:
            found = found.with_names(opened.vocabulary["classes"], opened.vocabulary["attributes"])
            left_out = found.write(progress.counting(opened.scan(check=True)), path, layout=layout)
        report, read_back, written = _checked(found, path, opened)
        summary = ExportSummary(
            found.name, written, len(opened), {name: count for name, count in left_out.items() if count},
            not has_classes(opened.fingerprint), report, read_back, time.monotonic() - start,
        )  # fmt: skip
    _require_whole(summary, out)
    return summary


def _require_whole(summary: ExportSummary, out: StoreLocation) -> None:
    expected = summary.num_records - summary.left_out.get(NO_REGIONS, 0)
    read_back = summary.read_back
    if read_back.records != expected or read_back.problems:
        problems = "; ".join(read_back.problems) or "images are missing"
        raise ValueError(
            f"{out}: {read_back.records:,} of {expected:,} records read back from what was written: "
            f"{problems}; the file is kept, its other records are whole"
        )


@contextmanager
def _written_to(out: StoreLocation, found: FeatureFormat, scratch: str | None) -> Iterator[Path]:
    """Path to write the export to: its own, or a scratch folder that it is uploaded from when the block ends well."""
    if not is_at_url(out):
        yield Path(out)
        return
    # Not above: it needs fsspec, which a local export can do without.
    from roibeam.features.folders.object_folder import ObjectFolder

    url = str(out).rstrip("/")
    parent, _, name = url.rpartition("/")
    folder = ObjectFolder(parent)
    if not found.suffixes:
        raise ValueError(
            f"{url}: {found.name} is a folder of files, which cannot appear whole at a URL; export it to a folder of "
            f"this machine, and copy that"
        )
    if folder.num_bytes(name) is not None or ObjectFolder(url).listing():
        raise ValueError(f"{url} exists already; choose another name, or delete it first")
    with scratch_folder(scratch) as here:
        yield here / name
        folder.put_file(here / name, name)


def _checked(found: FeatureFormat, out: Path, store: FeatureStore) -> tuple[CheckReport, ReadBack, str]:
    """The file's check report, how it differs from the store, and its layout."""
    read_back = ReadBack()
    with found.open(out) as file:
        file.use_names(found.classes, found.attributes)
        report = CheckReport(file.layout, file.details)
        size = file.details.get("image_size")
        ids = {found.name_of(image_id): image_id for image_id in store.ids()} if found.numbered else {}
        with Progress("reading back", len(store), RECORDS) as progress:
            for outcome in report.watch(file.outcomes("float32")):
                if isinstance(outcome, RegionRecord):
                    progress.one_more()
                    image_id = ids.get(outcome.image_id, outcome.image_id)
                    _compare(store.get(image_id, copy=False, check=True), outcome, read_back, size=size)
                elif isinstance(outcome, DeadLetter):
                    _note(read_back, f"{outcome.location}: {outcome.detail}")
        return report, read_back, file.layout


def _compare(kept: RegionRecord, written: RegionRecord, read_back: ReadBack, *, size: str | None) -> None:
    """Args: size: of `FeatureFile.details`; for a format without image sizes `ABSENT` or `FAR_EDGES`."""
    read_back.records += 1
    same_size = size is not None or (kept.height, kept.width) == (written.height, written.width)
    if not same_size or kept.features.shape != written.features.shape:
        _note(read_back, f"{kept.image_id!r}: image size, number of regions or feature width differs")
        return
    read_back.same_classes += np.array_equal(kept.class_ids, written.class_ids)
    if not kept.num_regions:
        return
    sides = np.array([kept.width, kept.height] if size == ABSENT else [1, 1], np.float32)
    box_error = float(np.abs(kept.boxes - written.boxes * np.tile(sides, 2)).max())
    read_back.box_error_px = max(read_back.box_error_px, box_error)
    features = kept.features.astype(np.float32)
    largest = max(float(np.abs(features).max()), 1e-30)
    error = float(np.abs(features - written.features).max()) / largest
    read_back.feature_error = max(read_back.feature_error, error)


def _note(read_back: ReadBack, problem: str) -> None:
    if len(read_back.problems) < 5:
        read_back.problems.append(problem)
