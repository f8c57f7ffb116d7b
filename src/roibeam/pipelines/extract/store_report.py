"""`report.html` of a store: one page about an extraction run, which needs neither network nor script; and its facts.

Memory does not grow with the store: records are counted one by one, and only the regions drawn on the chosen photos are
kept. Nor does time: over `SAMPLED_RECORDS` records the figures come from an evenly spread sample, and the page says so.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
import pyarrow.parquet as pq

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.extraction.photos.image_ref import Failure
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.record.fingerprint import has_classes, has_grid
from roibeam.features.record.region_drawing import ATTRIBUTE_SCORE, NamedRegions, name_of, region_name
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import (
    ANNOTATIONS_NAME,
    DEAD_LETTERS_NAME,
    PLAN_NAME,
    STORE_MANIFEST_NAME,
    ShardManifest,
    StoreManifest,
)
from roibeam.features.shard.reader import ShardObject
from roibeam.features.store import FeatureStore
from roibeam.messages import printable
from roibeam.pipelines.common.charts import DrawnRegion
from roibeam.pipelines.common.dead_letters import dead_letters_file
from roibeam.pipelines.common.locations import read_location
from roibeam.pipelines.data.feature_settings import boxes_words
from roibeam.pipelines.data.shard_plan import Plan, read_members
from roibeam.pipelines.extract.shard.store_folder import SUMMARY_NAME, last_extraction
from roibeam.pipelines.extract.store_page import (
    FailureGroup,
    Photo,
    RegionFigures,
    ReportFacts,
    page_html,
    warning_of_store,
)

SAMPLED_RECORDS = 20_000
_SCORE_BARS = 20
_LISTED_CLASSES = 18
_LISTED_REASONS = 40
_EXAMPLES_PER_REASON = 5
_REGIONS_PER_PHOTO = 10
_DRAWN_OVERLAP = 0.5  # IoU with a better region above which a region is not drawn: boxes on boxes cannot be read
_THUMBNAIL_SIDE_PX = 480
_THUMBNAIL_JPEG_QUALITY = 80


class StoredRecords(Protocol):
    """Part of a `FeatureStore` that a report needs.

    `get(..., copy=False)` and not `meta`, which has no attributes: the features it maps are never touched.
    """

    def __len__(self) -> int: ...
    def ids(self) -> Iterable[str]: ...
    def get(self, image_id: str, *, copy: bool) -> NamedRegions: ...


def report_page(
    facts: ReportFacts,
    *,
    records: StoredRecords,
    failures: Iterable[Failure],
    thumbnail_of: Callable[[str, tuple[int, int]], tuple[bytes | None, str]],
    class_names: Sequence[str] | None = None,
    attribute_names: Sequence[str] | None = None,
    max_photos: int = 24,
    has_classes: bool = True,
) -> str:
    """The report. Equal input gives equal text.

    Args:
        records: the store; its ids come in a stable order.
        failures: all of them, in a stable order; read once.
        thumbnail_of: image id and (height, width) of its record -> what `photo_thumbnail` returns.
        class_names, attribute_names: names by id; ids are displayed when they are None or too short.
        max_photos: size of the grid; they are spread evenly over the store.
        has_classes: False leaves out the charts of classes and scores, which only fill their place.
    """
    figures, chosen = _read_records(records, class_names, attribute_names, max_photos)
    figures = figures if has_classes else replace(figures, classes=(), score_counts=())
    photos = []
    for image_id in chosen:
        regions = records.get(image_id, copy=False)
        image_hw = (int(regions.height), int(regions.width))
        drawn = _regions_to_draw(regions, class_names, attribute_names)
        drawn = drawn if has_classes else tuple(replace(each, score=None) for each in drawn)
        photos.append(Photo(image_id, image_hw, len(regions.class_ids), drawn, *thumbnail_of(image_id, image_hw)))
    return page_html(
        facts, figures, _failure_groups(failures), photos, regions_per_photo=_REGIONS_PER_PHOTO,
        attribute_score=ATTRIBUTE_SCORE,
    )  # fmt: skip


def write_page(folder: OutputFolder, name: str, page: str) -> None:
    """Writes a page; a reader finds the old file or the new one, never half of one."""
    with folder.atomic_path(name) as path, path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(page)


def _read_records(
    records: StoredRecords, class_names: Sequence[str] | None, attribute_names: Sequence[str] | None, max_photos: int
) -> tuple[RegionFigures, list[str]]:
    """One pass over the ids: figures of the (sampled) records, and the ids of the photos to show."""
    total = len(records)
    sampled = set(_spread(total, SAMPLED_RECORDS))
    drawn = set(_spread(total, max_photos))
    chosen: list[str] = []
    regions_per_image: Counter[int] = Counter()
    score_counts = np.zeros(_SCORE_BARS, np.int64)
    classes: Counter[int] = Counter()
    attributes: Counter[int] = Counter()
    for position, image_id in enumerate(records.ids()):
        if position in drawn:
            chosen.append(image_id)
        if position not in sampled:
            continue
        regions = records.get(image_id, copy=False)
        regions_per_image[len(regions.class_ids)] += 1
        # Not np.histogram: it takes most of the time of a large report.
        bars = np.clip((regions.class_scores * _SCORE_BARS).astype(np.int64), 0, _SCORE_BARS - 1)
        score_counts += np.bincount(bars, minlength=_SCORE_BARS)
        classes.update(regions.class_ids.tolist())
        if regions.attribute_ids is not None and regions.attribute_scores is not None:
            attributes.update(regions.attribute_ids[regions.attribute_scores >= ATTRIBUTE_SCORE].tolist())
    figures = RegionFigures(
        num_records=regions_per_image.total(),
        regions_per_image=regions_per_image,
        score_counts=tuple(score_counts.tolist()),
        classes=_most_frequent(classes, class_names, "class"),
        attributes=_most_frequent(attributes, attribute_names, "attribute"),
        num_classes=len(classes),
        num_attributes=len(attributes),
    )
    return figures, chosen


def _spread(total: int, count: int) -> list[int]:
    """`count` positions below `total` (or all of them), each in the middle of an equal part."""
    count = min(total, count)
    return [(2 * i + 1) * total // (2 * count) for i in range(count)]


def _most_frequent(counts: Counter[int], names: Sequence[str] | None, kind: str) -> tuple[tuple[str, int], ...]:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_LISTED_CLASSES]
    return tuple((name_of(each, names, kind), count) for each, count in ranked)


def _failure_groups(failures: Iterable[Failure]) -> list[FailureGroup]:
    """Groups by descending count. Reasons are few by design; if they are not, those met last are put together."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[Failure]] = {}
    for failure in failures:
        known = failure.reason in counts or len(counts) < _LISTED_REASONS
        reason = failure.reason if known else "other reasons"
        counts[reason] += 1
        kept = examples.setdefault(reason, [])
        if len(kept) < _EXAMPLES_PER_REASON:
            kept.append(failure)
    ranked = sorted(counts, key=lambda reason: (-counts[reason], reason))
    return [FailureGroup(reason, counts[reason], tuple(examples[reason])) for reason in ranked]


def _regions_to_draw(
    regions: NamedRegions, class_names: Sequence[str] | None, attribute_names: Sequence[str] | None
) -> tuple[DrawnRegion, ...]:
    # Not above: the page of `roibeam store diff` shares this file, and needs no torch.
    import torch

    from roibeam.extraction.network.boxes import suppress

    boxes, scores = (torch.from_numpy(np.array(each, np.float32)) for each in (regions.boxes, regions.class_scores))
    best = suppress(boxes, scores, _DRAWN_OVERLAP, comparison=">", plus_one_sides=False)[:_REGIONS_PER_PHOTO]
    drawn = []
    for i in best.tolist():
        name = region_name(regions, i, class_names, attribute_names)
        x1, y1, x2, y2 = regions.boxes[i].tolist()
        drawn.append(DrawnRegion((x1, y1, x2, y2), int(regions.class_ids[i]), name, float(regions.class_scores[i])))
    return tuple(drawn)


def photo_thumbnail(
    location: str | None,
    image_hw: tuple[int, int],
    read_bytes: Callable[[str], bytes],
    decode: Callable[[bytes], np.ndarray] = decode_image,
) -> tuple[bytes | None, str]:
    """A JPEG of the whole photo, or None and the reason: any error is one.

    Args:
        location: where it was read from; None when that is not known.
        image_hw: (height, width) of its record, pixels.
        decode: file -> (height, width, 3) uint8 BGR as the extraction decoded it (EXIF orientation!).
    """
    if location is None:
        return None, "where it was read from is not known"
    try:
        image = decode(read_bytes(location))
    except DecodeError as error:
        return None, f"{error.reason}: {error}"
    # Readers of other filesystems raise what they like; a photo that has gone must not fail a finished extraction.
    except Exception as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        return None, f"{printable(location, 160)} cannot be read ({printable(why, 120)})"
    height, width = image.shape[:2]
    if (height, width) != image_hw:
        now, then = f"{width} x {height} pixels", f"{image_hw[1]} x {image_hw[0]}"
        where = printable(location, 160)
        return None, f"{where} is {now} now and was {then} when it was extracted: boxes would not fit"
    scale = min(_THUMBNAIL_SIDE_PX / max(height, width), 1.0)
    if scale < 1:
        small = (max(round(width * scale), 1), max(round(height * scale), 1))
        image = cv2.resize(image, small, interpolation=cv2.INTER_AREA)
    _, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _THUMBNAIL_JPEG_QUALITY])
    return jpeg.tobytes(), ""


REPORT_NAME = "report.html"
MAX_RECORDS = 120  # of a store at a URL that its report reads: four small reads each


def write_run_report(
    folder: OutputFolder, plan: Plan, manifest: StoreManifest, *, seconds: float | None = None, new_images: int = 0
) -> None:
    """Writes OUT/report.html from the published store; at a URL it reads some records only.

    Args:
        seconds: wall time of the run.
        new_images: images that it extracted; for 0, time and number are of the last run that extracted some.
    """
    if not new_images:
        last = last_extraction(folder) or {"seconds": None, "images": 0}
        seconds, new_images = last["seconds"], last["images"]
    location_of = _locations(folder, plan, manifest)
    decode = functools.partial(
        decode_image,
        max_pixels=manifest.config["options"]["max_pixels"],
        exif_orientation=manifest.config["detector"]["conventions"]["exif_orientation"],
    )
    opened: AbstractContextManager[SampledRecords | FeatureStore] = (
        nullcontext(SampledRecords(folder, manifest)) if folder.local_path is None else FeatureStore(folder.local_path)
    )
    with opened as records:
        kept = (records.get(image_id, copy=False).class_distribution for image_id in records.ids())
        distribution = "none" if next(kept, None) is None else manifest.config["options"]["distribution"]
        page = report_page(
            _facts(folder, plan, manifest, seconds, new_images, distribution),
            records=records,
            failures=_dead_letters(folder),
            thumbnail_of=lambda image_id, hw: photo_thumbnail(location_of(image_id), hw, read_location, decode),
            class_names=manifest.classes if has_classes(manifest.fingerprint) else ("region",),
            attribute_names=manifest.attributes,
            has_classes=has_classes(manifest.fingerprint),
        )
        write_page(folder, REPORT_NAME, page)


def _facts(
    folder: OutputFolder, plan: Plan, manifest: StoreManifest, seconds: float | None, images: int, distribution: str
) -> ReportFacts:
    detector = manifest.config["detector"]
    config, selection = detector["config"], detector["selection"]
    numerics, is_grid = manifest.fingerprint.numerics, has_grid(manifest.fingerprint)
    if config is None or "name" in config:
        network = "none" if config is None else config["name"]
    elif "file" in config:
        network = f"detectron2, {Path(config['file']).name}" + (f", layer {config['layer']}" if config["layer"] else "")
    else:
        heads = f"{config['num_classes']} classes, {config['num_attributes']} attributes, "
        heads = heads if has_classes(manifest.fingerprint) else "no classes, "
        kind = "ResNet" if config.get("groups", 1) == 1 else "ResNeXt"
        proposals = "" if is_grid else f", {config['proposals_after_nms']} proposals"
        network = f"{kind}-{config['depth']}{'' if is_grid else '-C4'}, {heads}"
        network += f"{config['short_edge']}/{config['long_edge']} px{proposals}"
    kept = f"score {selection['min_score']}, {selection['min_regions']} to {selection['max_regions']} regions"
    boxes = plan.source.get("boxes")
    regions = f"{selection['method']}, {kept}" if boxes is None else f"the boxes given in {boxes}"
    regions = "every cell of a grid" if is_grid else regions
    details = (
        ("source", plan.source["location"]),
        ("detector", network),
        *([("weights", detector["weights"])] if detector["weights"] else []),
        *([("backbone", detector["backbone"]["name"])] if detector.get("backbone") else []),
        ("conventions", manifest.config["conventions"]),
        ("regions", regions),
        ("features", f"{manifest.feature_dim} x {manifest.feature_dtype}, distribution {distribution}"),
        (
            "device",
            f"{detector['device']}: {numerics['device']}, {numerics['threads']} threads, mode {numerics['mode']}",
        ),
        ("feature kind", f"{manifest.fingerprint.meaning[:16]} (a model trained on another kind refuses it)"),
        ("boxes", f"{boxes_words(manifest.fingerprint) or 'not known'} (a model may read others; a note says so)"),
        ("feature space", manifest.fingerprint.feature_space[:16]),
        ("content digest", manifest.content_digest[:16]),
    )
    return ReportFacts(
        store_name=str(folder).rstrip("/") if folder.local_path is None else folder.local_path.absolute().name,
        num_images=plan.num_images,
        num_records=manifest.num_records,
        num_regions=manifest.num_regions,
        num_failures=manifest.num_dead_letters,
        seconds=seconds,
        timed_images=images,
        details=details,
        banner=warning_of_store(manifest),
    )


def _dead_letters(folder: OutputFolder) -> Iterator[Failure]:
    with dead_letters_file(folder) as file:
        for batch in pq.ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                yield Failure(**row)


def _locations(folder: OutputFolder, plan: Plan, manifest: StoreManifest) -> Callable[[str], str | None]:
    """Image id -> location, reading one shard's members at a time; the report calls it in the order of the shards."""
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


def output_tree(folder: OutputFolder) -> list[str]:
    """The files of a store with a word on each, for the terminal; of the shards the first and the number."""
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
    """A few records of a store at a URL, read one by one: up to `MAX_RECORDS`, in the middle of equal parts of it."""

    def __init__(self, folder: OutputFolder, manifest: StoreManifest) -> None:
        self._folder = folder
        positions = _spread(manifest.num_records, MAX_RECORDS)
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
        """Ids in the order of the store."""
        return iter(self._records)

    def get(self, image_id: str, *, copy: bool) -> RegionRecord:
        """One of them; KeyError for another. They are copies already."""
        return self._records[image_id]
