"""What a finished run shows: the facts of its report, and the tree of files it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

from extraction.decode import decode_image
from extraction.images import Failure
from features.manifest import STORE_MANIFEST_NAME, StoreManifest
from features.store import FeatureStore
from pipelines.dead_letters import DEAD_LETTERS_NAME
from pipelines.locations import read_location
from pipelines.plan import Plan, members_path, plan_path, read_members
from pipelines.report import ReportFacts, write_report

REPORT_NAME = "report.html"


def write_run_report(store: Path, plan: Plan, *, seconds: float | None) -> None:
    """Writes OUT/report.html from the published store.

    Args:
        seconds: wall time of the run; None when an earlier run did part of it.
    """
    with FeatureStore(store) as opened:
        manifest = opened.manifest
        write_report(
            store / REPORT_NAME,
            _facts(store, plan, manifest, seconds),
            records=opened,
            failures=_dead_letters(store),
            locations=_locations(store, plan, manifest),
            read_bytes=read_location,
            decode=lambda data: decode_image(
                data,
                max_pixels=manifest.config["options"]["max_pixels"],
                exif_orientation=manifest.config["detector"]["conventions"]["exif_orientation"],
            ),
            class_names=manifest.classes,
            attribute_names=manifest.attributes,
        )


def _facts(store: Path, plan: Plan, manifest: StoreManifest, seconds: float | None) -> ReportFacts:
    detector, options = manifest.config["detector"], manifest.config["options"]
    config, selection = detector["config"], detector["selection"]
    numerics = manifest.fingerprint.numerics
    network = (
        f"ResNet-{config['depth']}-C4, {config['num_classes']} classes, {config['num_attributes']} attributes, "
        f"{config['short_edge']}/{config['long_edge']} px, {config['proposals_after_nms']} proposals"
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
        ("feature space", manifest.fingerprint.feature_space[:16]),
        ("content digest", manifest.content_digest[:16]),
    )
    return ReportFacts(
        store_name=store.absolute().name,
        num_images=plan.num_images,
        num_records=manifest.num_records,
        num_regions=manifest.num_regions,
        num_failures=manifest.num_dead_letters,
        seconds=seconds,
        details=details,
        weights_are_random=detector["weights"].startswith("random:"),
    )


def _dead_letters(store: Path) -> Iterator[Failure]:
    for batch in pq.ParquetFile(store / DEAD_LETTERS_NAME).iter_batches():
        for row in batch.to_pylist():
            yield Failure(**row)


def _locations(store: Path, plan: Plan, manifest: StoreManifest) -> Callable[[str], str | None]:
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
            members = {member.image_id: member.location for member in read_members(store, shards[entry.shard])}
            if image_id in members:
                current.clear()
                current.update(members)
                return members[image_id]
        return None

    return locate


def output_tree(store: Path) -> list[str]:
    """The files of a store with a word on each, for the terminal; of the shards the first and the number."""
    manifests = sorted(path.name for path in store.glob("part-*.json"))
    data = sorted(path.name for path in store.glob("part-*.lmdb"))
    rows = [
        (REPORT_NAME, "look here first: counts, failures, photos with boxes"),
        (STORE_MANIFEST_NAME, "what is in the store; written last"),
        (DEAD_LETTERS_NAME, "images that gave no record, with stage and reason"),
        (plan_path(store).name, "which images are in which shard"),
        (f"{members_path(store, 0).parent.name}/", "ids and locations of the images, a file per shard"),
    ]
    if manifests:
        rows.append((manifests[0], f"shard manifest ({len(manifests):,} of them)"))
    if data:
        megabytes = sum((store / name).stat().st_size for name in data) / 1e6
        rows.append((data[0], f"records of a shard ({len(data):,} of them, {megabytes:,.1f} MB)"))
    width = max(len(name) for name, _ in rows)
    return [f"{store}/", *(f"  {name:<{width}}  {what}" for name, what in rows)]
