"""Records and small stores that the tests of `features` share."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.features.record.region_record import FEATURE_DTYPES, RegionRecord, TopKDistribution
from roibeam.features.shard.manifest import ShardManifest, StoreManifest, data_file_name
from roibeam.features.shard.writer import ShardWriter, publish_shard, publish_store

DETAILS = {"conventions": "example", "feature_dim": 8, "selection": ["score", 0.5]}
FINGERPRINT = Fingerprint(feature_space_of(DETAILS), {"threads": 1}, DETAILS)
MEMBERS_DIGEST = "0" * 64


def numbers(seed: int, *shape: int) -> np.ndarray:
    """float64 in 0..1 that depend on nothing but the arguments: numpy's generators may change between versions."""
    count = int(np.prod(shape))
    stream = b"".join(hashlib.sha256(f"{seed},{i}".encode()).digest() for i in range(-(-count // 8)))
    return (np.frombuffer(stream, "<u4")[:count] / 2.0**32).reshape(shape)


def make_record(
    image_id: str = "image",
    num_regions: int = 3,
    feature_dim: int = 8,
    dtype: str = "float16",
    *,
    attributes: bool = False,
    distribution: str | None = None,
    image_feature: bool = False,
    seed: int = 0,
) -> RegionRecord:
    """A valid record; `distribution` is None, "full" or "top-k", of 6 classes, k = 3."""
    kind = FEATURE_DTYPES[dtype]
    corners = numbers(seed, num_regions, 2) * 100
    dense = numbers(seed + 1, num_regions, 7).astype(np.float16)
    top = TopKDistribution(
        np.argsort(-dense, axis=1, kind="stable")[:, :3].astype(np.uint16).reshape(num_regions, 3),
        np.full((num_regions, 3), 0.25, np.float16),
        np.full(num_regions, 0.25, np.float16),
        6,
    )
    return RegionRecord(
        image_id=image_id,
        height=480,
        width=640,
        boxes=np.concatenate([corners, corners + 50], axis=1).astype(np.float32),
        features=(numbers(seed + 2, num_regions, feature_dim) * 4).astype(kind),
        class_ids=(numbers(seed + 3, num_regions) * 1600).astype(np.uint16),
        class_scores=numbers(seed + 4, num_regions).astype(np.float32),
        attribute_ids=(numbers(seed + 5, num_regions) * 400).astype(np.uint16) if attributes else None,
        attribute_scores=numbers(seed + 6, num_regions).astype(np.float32) if attributes else None,
        class_distribution={None: None, "full": dense, "top-k": top}[distribution],
        image_feature=(numbers(seed + 7, feature_dim) * 4).astype(kind) if image_feature else None,
    )


def with_image_feature(record: RegionRecord, width: int) -> RegionRecord:
    """The record with an image feature of `width` numbers."""
    return replace(record, image_feature=(numbers(8, width) * 4).astype(FEATURE_DTYPES[record.feature_dtype]))


def write_shard(
    folder: Path, shard: int, records: Iterable[RegionRecord], attempt: str = "a", **rest: Any
) -> ShardManifest:
    """Writes and publishes one shard."""
    with ShardWriter(folder / data_file_name(shard, attempt), planned_bytes=1) as writer:
        for record in records:
            writer.put(record)
        summary = writer.finish()
    fields = {"fingerprint": FINGERPRINT, "members_digest": MEMBERS_DIGEST} | rest
    manifest = ShardManifest.from_summary(summary, shard=shard, attempt=attempt, **fields)
    publish_shard(folder, manifest)
    return manifest


def write_store(folder: Path, shards: Sequence[Iterable[RegionRecord]]) -> StoreManifest:
    """Writes a store of these shards, numbered from 0."""
    folder.mkdir(exist_ok=True)
    for number, records in enumerate(shards):
        write_shard(folder, number, records)
    return publish_store(
        folder, range(len(shards)), fingerprint=FINGERPRINT, config={"example": True}, classes=["cat", "dog"]
    )
