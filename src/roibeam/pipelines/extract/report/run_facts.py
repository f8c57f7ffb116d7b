"""What a finished run shows: the facts of its report, and the tree of files it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.photos.image_ref import Failure
from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.record.imported import has_classes
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import (
    ANNOTATIONS_NAME,
    DEAD_LETTERS_NAME,
    STORE_MANIFEST_NAME,
    ShardManifest,
    StoreManifest,
)
from roibeam.features.shard.planned_shards import PLAN_NAME
from roibeam.features.shard.remote_reader import ShardObject
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.files.dead_letters import dead_letters_file
from roibeam.pipelines.common.files.locations import read_location
from roibeam.pipelines.data.feature_words import boxes_words
from roibeam.pipelines.data.shard_plan import Plan, read_members
from roibeam.pipelines.extract.report.region_meaning import warning_of_store
from roibeam.pipelines.extract.report.run_summary import last_extraction
from roibeam.pipelines.extract.report.store_report import ReportFacts, StoredRecords, write_report
from roibeam.pipelines.extract.shard.store_folder import SUMMARY_NAME

REPORT_NAME = "report.html"
MAX_RECORDS = 120  # of a store at a URL that its report reads: four small reads each


def write_run_report(
    store: Path | OutputFolder, plan: Plan, *, seconds: float | None = None, new_images: int = 0
) -> None:
    """Writes OUT/report.html from the published store. Of a store at a URL it reads some records only.

    Args:
        seconds: wall time of the run.
        new_images: images that it extracted; 0 shows the time and the number of the last run that extracted some.
    """
    folder = output_folder(store)
    if not new_images:
        last = last_extraction(folder) or {"seconds": None, "images": 0}
        seconds, new_images = last["seconds"], last["images"]
    manifest = StoreManifest.from_bytes(folder.read_bytes(STORE_MANIFEST_NAME), folder.where(STORE_MANIFEST_NAME))
    if folder.local_path is not None:
        with FeatureStore(folder.local_path) as opened:
            _write(folder, folder.local_path / REPORT_NAME, plan, manifest, opened, (seconds, new_images))
    else:
        with folder.written_aside(REPORT_NAME) as path:
            _write(folder, path, plan, manifest, SampledRecords(folder, manifest), (seconds, new_images))


def _write(
    folder: OutputFolder,
    path: Path,
    plan: Plan,
    manifest: StoreManifest,
    records: StoredRecords,
    timed: tuple[float | None, int],
) -> None:
    write_report(
        path,
        _facts(folder, plan, manifest, timed),
        records=records,
        failures=_dead_letters(folder),
        locations=_locations(folder, plan, manifest),
        read_bytes=read_location,
        decode=lambda data: decode_image(
            data,
            max_pixels=manifest.config["options"]["max_pixels"],
            exif_orientation=manifest.config["detector"]["conventions"]["exif_orientation"],
        ),
        class_names=manifest.classes if has_classes(manifest.fingerprint) else ("region",),
        attribute_names=manifest.attributes,
    )


def _facts(folder: OutputFolder, plan: Plan, manifest: StoreManifest, timed: tuple[float | None, int]) -> ReportFacts:
    detector, options = manifest.config["detector"], manifest.config["options"]
    config, selection = detector["config"], detector["selection"]
    numerics = manifest.fingerprint.numerics
    if "file" in config:
        network = f"detectron2, {Path(config['file']).name}" + (f", layer {config['layer']}" if config["layer"] else "")
    else:
        heads = f"{config['num_classes']} classes, {config['num_attributes']} attributes, "
        heads = heads if has_classes(manifest.fingerprint) else "no classes, "
        network = (
            f"ResNet-{config['depth']}-C4, {heads}{config['short_edge']}/{config['long_edge']} px, "
            f"{config['proposals_after_nms']} proposals"
        )
    kept = f"score {selection['min_score']}, {selection['min_regions']} to {selection['max_regions']} regions"
    boxes = plan.source.get("boxes")
    regions = f"{selection['method']}, {kept}" if boxes is None else f"the boxes given in {boxes}"
    details = (
        ("source", plan.source["location"]),
        ("detector", network),
        ("weights", detector["weights"]),
        ("conventions", manifest.config["conventions"]),
        ("regions", regions),
        ("features", f"{manifest.feature_dim} x {manifest.feature_dtype}, distribution {options['distribution']}"),
        (
            "device",
            f"{detector['device']}: {numerics['device']}, {numerics['threads']} threads, mode {numerics['mode']}",
        ),
        ("features mean", f"{manifest.fingerprint.meaning[:16]} (a model must match it)"),
        ("boxes", f"{boxes_words(manifest.fingerprint) or 'not known'} (may differ from a model's, and is told)"),
        ("feature space", manifest.fingerprint.feature_space[:16]),
        ("content digest", manifest.content_digest[:16]),
    )
    return ReportFacts(
        store_name=_name(folder),
        num_images=plan.num_images,
        num_records=manifest.num_records,
        num_regions=manifest.num_regions,
        num_failures=manifest.num_dead_letters,
        seconds=timed[0],
        timed_images=timed[1],
        details=details,
        banner=warning_of_store(manifest),
    )


def _name(folder: OutputFolder) -> str:
    return str(folder).rstrip("/") if folder.local_path is None else folder.local_path.absolute().name


def _dead_letters(folder: OutputFolder) -> Iterator[Failure]:
    with dead_letters_file(folder) as file:
        for batch in pq.ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                yield Failure(**row)


def _locations(folder: OutputFolder, plan: Plan, manifest: StoreManifest) -> Callable[[str], str | None]:
    """Image id -> location, reading one shard's members at a time; the report asks in the order of the shards."""
    shards = {shard.number: shard for shard in plan.shards}
    current: dict[str, str] = {}

    def locate(image_id: str) -> str | None:
        if image_id in current:
            return current[image_id]
        key = image_id.encode("utf-8")
        for entry in manifest.shards:
            first, last = entry.first_id, entry.last_id
            if first is None or last is None or not first.encode("utf-8") <= key <= last.encode("utf-8"):
                continue
            members = {member.image_id: member.location for member in read_members(folder, shards[entry.shard])}
            if image_id in members:
                current.clear()
                current.update(members)
                return members[image_id]
        return None

    return locate


def output_tree(store: Path | OutputFolder) -> list[str]:
    """The files of a store with a word on each, for the terminal; of the shards the first and the number."""
    folder = output_folder(store)
    there = folder.listing()
    manifests = sorted(name for name in there if name.startswith("part-") and name.endswith(".json"))
    data = sorted(name for name in there if name.startswith("part-") and name.endswith(".lmdb"))
    rows = [
        (REPORT_NAME, "look here first: counts, failures, photos with boxes"),
        (STORE_MANIFEST_NAME, "what is in the store; written last"),
        (DEAD_LETTERS_NAME, "images that gave no record, with stage and reason"),
        (PLAN_NAME, "which images are in which shard"),
        ("plan/", "ids and locations of the images, a file per shard"),
    ]
    if ANNOTATIONS_NAME in there:
        rows.append((ANNOTATIONS_NAME, "captions and labels of the images"))
    if SUMMARY_NAME in there:
        rows.append((SUMMARY_NAME, "what the last run did: counts, times, versions"))
    if manifests:
        rows.append((manifests[0], f"shard manifest ({len(manifests):,} of them)"))
    if data:
        megabytes = sum(there[name].num_bytes for name in data) / 1e6
        rows.append((data[0], f"records of a shard ({len(data):,} of them, {megabytes:,.1f} MB)"))
    width = max(len(name) for name, _ in rows)
    return [f"{folder}/", *(f"  {name:<{width}}  {what}" for name, what in rows)]


class SampledRecords:
    """A few records of a store at a URL, read one by one: up to `MAX_RECORDS`, in the middle of equal parts of it.

    Raises:
        OSError, ValueError: naming the file that cannot be read.
    """

    def __init__(self, folder: OutputFolder, manifest: StoreManifest) -> None:
        self._folder = folder
        total = manifest.num_records
        count = min(total, MAX_RECORDS)
        positions = [(2 * i + 1) * total // (2 * count) for i in range(count)]
        self._records: dict[str, RegionRecord] = {}
        first = 0
        for entry in manifest.shards:
            rows = [position - first for position in positions if first <= position < first + entry.num_records]
            first += entry.num_records
            if rows:
                data = folder.read_bytes(entry.manifest)
                shard = ShardObject(folder, ShardManifest.from_bytes(data, folder.where(entry.manifest)))
                for record in map(shard.record_at, rows):
                    self._records[record.image_id] = record

    def __len__(self) -> int:
        return len(self._records)

    def ids(self) -> Iterator[str]:
        """In the order of the store."""
        return iter(self._records)

    def get(self, image_id: str, *, copy: bool) -> RegionRecord:
        """One of them; KeyError for another. They are copies already."""
        return self._records[image_id]
