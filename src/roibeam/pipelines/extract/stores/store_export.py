"""`roibeam store export`: a store as a feature file that another code base reads, read back and compared at the end."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from roibeam.features.exchange.check_report import NO_REGIONS, CheckReport
from roibeam.features.exchange.exact_records import ExactFormat
from roibeam.features.exchange.export_output import check_free
from roibeam.features.exchange.formats import FeatureFormat, format_named
from roibeam.features.folders.durable_files import scratch_folder
from roibeam.features.folders.local_folder import is_at_url
from roibeam.features.reading.temporary_copy import local_store
from roibeam.features.record.fingerprint import ABSENT, has_classes
from roibeam.features.record.region_record import RegionRecord, check_dtype
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.console.command_files import UPLOADING
from roibeam.pipelines.common.console.progress import FILES, RECORDS, Progress
from roibeam.pipelines.extract.stores.locations import StoreLocation
from roibeam.pipelines.extract.stores.shard_export import export_shards, for_store, in_key_order

log = logging.getLogger(__name__)


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

    def note(self, problem: str) -> None:
        if len(self.problems) < 5:
            self.problems.append(problem)


@dataclass(frozen=True)
class ExportSummary:
    """Result of an export.

    Attributes:
        num_records: that were written; of shards, by this call.
        left_out: field -> records that have it and whose file has no place for it.
        without_classes: the store has none, so class ids and scores in the file, if any, are zeros.
        report, layout: of what was written; None where all shards were there.
        read_back: the comparison with the store.
        shards: written, and those that are still missing; None for one file.
        seconds: wall time.
    """

    format: str
    layout: str | None
    num_records: int
    left_out: dict[str, int]
    without_classes: bool
    report: CheckReport | None
    read_back: ReadBack
    shards: Sequence[int] | None
    seconds: float


def export_store(
    store: StoreLocation, out: StoreLocation, *, format_name: str, layout: str | None = None, dtype: str | None = None,
    shard_size: int | None = None, part: tuple[int, int] = (1, 1), scratch: str | None = None,
) -> ExportSummary:  # fmt: skip
    """Writes the records of `store`, in the store's order, to the new file or folder `out`, and reads it back.

    The file is written beside its place and renamed when it was read back: a killed export leaves nothing under its
    name, and the next one goes on with what it left, where the format can. parquet and webdataset without the suffix
    of a file become a folder of shards, see `export_shards`. Memory: one record, and what the format keeps per image.

    Args:
        format_name: a name in `roibeam.features.exchange.formats.FORMATS`.
        layout: one of the format's; None: that of the file that the store was imported from, else the default.
        dtype: of the features, key of `FEATURE_DTYPES`; None for the format's own. For parquet and webdataset.
        shard_size: images in a shard of these; None for about 500 MB.
        part: writes only the I-th of N parts of the shards.
        scratch: parent of the scratch folders that URLs need: for shards of `store` (see `local_store`), and for
            `out`, which is uploaded once it was read back. None for the machine's temporary folder.
    Raises:
        ValueError: when `out` exists, a record is damaged or does not fit the format, or what was written cannot be
            read back.
    """
    start = time.monotonic()
    found = format_named(format_name)
    if layout is not None and layout not in found.layouts:
        raise ValueError(f"--layout {layout!r}: {format_name} has {', '.join(found.layouts)}")
    check_dtype(dtype)
    exact = found if isinstance(found, ExactFormat) else None
    in_shards = exact is not None and not str(out).endswith(found.suffixes)
    if exact is None and dtype is not None:
        raise ValueError(f"--dtype {dtype}: {format_name} has one number type; it is for parquet and webdataset")
    if in_shards and Path(str(out)).suffix in (".tar", ".parquet"):
        raise ValueError(f"{out}: its name is that of another format's file; {format_name} ends in {found.suffixes[0]}")
    if not in_shards and (shard_size is not None or part != (1, 1)):
        raise ValueError("--shard-size and --part are for a folder of shards: of parquet or webdataset, OUT a folder")
    read_back = _Check()
    left_out: dict[str, int] = {}
    shards: list[int] | None = None
    with local_store(store, scratch=scratch) as opened:
        if not len(opened):
            raise ValueError(f"{store} holds no record; there is nothing to export")
        if exact is not None and in_shards:
            records, *shards = export_shards(
                opened, out, exact, dtype=dtype, shard_size=shard_size, part=part, scratch=scratch, check=read_back
            )
        else:
            names = opened.vocabulary["classes"], opened.vocabulary["attributes"]
            found = found.with_names(*names) if exact is None else for_store(exact, opened, dtype)
            layout = layout or _imported_layout(found, opened)
            plan = json.dumps([opened.manifest.content_digest, found.name, layout])
            with _written_to(out, plan, scratch) as path:
                _tell_losses(found, opened, layout)
                each = opened.scan(check=True) if exact is None else in_key_order(opened)
                left_out = found.write(
                    _counted(each, len(opened)),
                    path,
                    layout=layout,
                    check=partial(read_back, found, opened, len(opened)),
                )
                records = len(opened) - left_out.get(NO_REGIONS, 0)
                if exact is None and opened.manifest.annotations is not None:
                    left_out["captions and labels"] = opened.manifest.annotations.rows
        return ExportSummary(
            found.name, read_back.layout, records, left_out, not has_classes(opened.fingerprint), read_back.report,
            read_back.found, shards, time.monotonic() - start,
        )  # fmt: skip


def _counted(records: Iterator[RegionRecord], total: int) -> Iterator[RegionRecord]:
    with Progress("writing", total, RECORDS) as progress:
        yield from progress.counting(records)


def _imported_layout(found: FeatureFormat, store: FeatureStore) -> str | None:
    """The layout of the file that the store was imported from, where it has this format."""
    details = store.fingerprint.details
    layout = details.get("layout") if details.get("format") == found.name else None
    return layout if layout in found.layouts else None


def _tell_losses(found: FeatureFormat, store: FeatureStore, layout: str | None) -> None:
    """Tells what of the first record its file has no place for, before all are written."""
    with scratch_folder(None) as folder:
        path = folder / f"first{(found.suffixes or ('',))[0]}"
        losses = found.losses(next(store.scan(check=True)), path, layout)
    losses += ["captions and labels"] * (store.manifest.annotations is not None and not isinstance(found, ExactFormat))
    if losses:
        log.warning("%s has no place for %s", found.name, ", ".join(losses))


@contextmanager
def _written_to(out: StoreLocation, plan: str, scratch: str | None) -> Iterator[Path]:
    """Path to write the export to: its own, or a scratch folder that it is uploaded from when the block ends well. The
    files of a folder come one by one; while they do, a note with `plan` lies beside them, by which a stopped upload
    goes on."""
    if not is_at_url(out):
        check_free(Path(out))
        yield Path(out)
        return
    # Not above: it needs fsspec, which a local export can do without.
    from roibeam.features.folders.object_folder import ObjectFolder

    url = str(out).rstrip("/")
    parent, _, name = url.rpartition("/")
    folder, inside = ObjectFolder(parent), ObjectFolder(url)

    def check(note: bytes) -> None:
        is_taken = folder.num_bytes(name) is not None
        there = {} if is_taken else inside.files_below()
        if is_taken or (there and (UPLOADING not in there or inside.read_bytes(UPLOADING) != note)):
            raise ValueError(f"{url} exists already; choose another name, or delete it first")

    check(plan.encode("utf-8"))
    with scratch_folder(scratch) as here:
        yield here / name
        check(plan.encode("utf-8"))  # hours later
        if (here / name).is_file():
            folder.put_file(here / name, name)
            return
        if not inside.put_first(UPLOADING, plan.encode("utf-8")):
            raise ValueError(f"{url} is being written by another export; choose another name")
        files = sorted(each for each in (here / name).rglob("*") if each.is_file())
        with Progress("uploading", len(files), FILES) as progress:
            for each in files:
                inside.put_file(each, str(each.relative_to(here / name)))
                progress.one_more()
        inside.delete(UPLOADING)


class _Check:
    """Reads files back: their report, how they differ from the store, and their layout."""

    def __init__(self) -> None:
        self.found = ReadBack()
        self.report: CheckReport | None = None
        self.layout: str | None = None

    def __call__(
        self, found: FeatureFormat, store: FeatureStore, given: int, path: Path, losses: Counter[str]
    ) -> None:  # fmt: skip
        """ValueError where a file does not hold the records that it was given, less those without regions."""
        before, expected = self.found.records, given - losses[NO_REGIONS]
        with found.open(path) as file:
            file.use_names(found.classes, found.attributes)
            self.layout = file.layout
            self.report = self.report or CheckReport(file.layout, file.details)
            size = file.details.get("image_size")
            ids = {found.name_of(image_id): image_id for image_id in store.ids()} if found.numbered else {}
            with Progress("reading back", file.num_entries, RECORDS) as progress:
                for outcome in self.report.watch(file.outcomes(file.dtype or "float32")):
                    if isinstance(outcome, RegionRecord):
                        progress.one_more()
                        image_id = ids.get(outcome.image_id, outcome.image_id)
                        _compare(store.get(image_id, copy=False, check=True), outcome, self.found, size=size)
                    elif isinstance(outcome, DeadLetter):
                        self.found.note(f"{outcome.location}: {outcome.detail}")
        records = self.found.records - before
        if records != expected or self.found.problems:
            problems = "; ".join(self.found.problems) or "images are missing"
            what = f"{records:,} of {expected:,} records read back from what was written: {problems}"
            raise ValueError(f"{path}: {what}; it is not kept")


def _compare(kept: RegionRecord, written: RegionRecord, read_back: ReadBack, *, size: str | None) -> None:
    """Args: size: of `FeatureFile.details`; for a format without image sizes `ABSENT` or `FAR_EDGES`."""
    read_back.records += 1
    same_size = size is not None or (kept.height, kept.width) == (written.height, written.width)
    if not same_size or kept.features.shape != written.features.shape:
        read_back.note(f"{kept.image_id!r}: image size, number of regions or feature width differs")
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
