"""The last steps of writing a store: a shard's manifest after its data file, the store's manifest after all shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from features.digest import content_digest, merge_digests
from features.fingerprint import Fingerprint
from features.manifest import (
    STORE_MANIFEST_NAME,
    AnnotationsEntry,
    ShardEntry,
    ShardManifest,
    StoreManifest,
    shard_manifest_name,
    write_json_atomically,
)
from features.shard_reader import stream_digests


def publish_shard(folder: str | os.PathLike[str], manifest: ShardManifest) -> Path:
    """Writes `part-<shard>.json`; the data file it names, already in its final place, is the shard from now on."""
    path = Path(folder) / shard_manifest_name(manifest.shard)
    write_json_atomically(path, manifest.to_json())
    return path


def publish_store(
    folder: str | os.PathLike[str],
    shards: Iterable[int],
    *,
    fingerprint: Fingerprint,
    config: dict[str, Any],
    classes: Iterable[str] | None = None,
    attributes: Iterable[str] | None = None,
    annotations: AnnotationsEntry | None = None,
) -> StoreManifest:
    """Writes `manifest.json` over the published shards with these numbers; run again with more of them, the store
    grows.

    Args:
        fingerprint: of the store; every shard must have its feature space.
        config: resolved configuration of the run, JSON.
        classes, attributes: names in id order; None when unknown.
        annotations: the table of captions and labels, in its place already; None where there is none.
    Raises:
        FileNotFoundError: when a shard has no manifest or data file.
        ValueError: when shards disagree in feature space, width or dtype, hold one image twice, or a file is damaged.
    """
    folder = Path(folder)
    entries: list[ShardEntry] = []
    streams = []
    kinds: dict[tuple[int, str | None], int] = {}
    dead_letters = 0
    for shard in sorted(set(shards)):
        path = folder / shard_manifest_name(shard)
        data = path.read_bytes()
        manifest = ShardManifest.read(path)
        if manifest.shard != shard:
            raise ValueError(f"{path}: is the manifest of shard {manifest.shard}, expected {shard}; was it renamed?")
        if manifest.fingerprint.feature_space != fingerprint.feature_space:
            raise ValueError(
                f"{path}: feature space {manifest.fingerprint.feature_space}, the store's is "
                f"{fingerprint.feature_space}; "
                f"features of two detectors or conventions do not mix: extract into another folder"
            )
        dead_letters += len(manifest.dead_letters)
        if manifest.data_file is not None:
            kinds.setdefault((manifest.feature_dim, manifest.feature_dtype), shard)
            streams.append(stream_digests(folder / manifest.data_file, manifest))
        entries.append(shard_entry(manifest, manifest_sha256=hashlib.sha256(data).hexdigest()))
    if len(kinds) > 1:
        raise ValueError(f"{folder}: shards differ in feature width and dtype (first shard of each: {kinds})")
    feature_dim, feature_dtype = next(iter(kinds), (0, None))
    store = StoreManifest(
        fingerprint=fingerprint,
        config=config,
        classes=None if classes is None else tuple(classes),
        attributes=None if attributes is None else tuple(attributes),
        feature_dim=feature_dim,
        feature_dtype=feature_dtype,
        shards=tuple(entries),
        num_records=sum(entry.num_records for entry in entries),
        num_regions=sum(entry.num_regions for entry in entries),
        num_dead_letters=dead_letters,
        content_digest=content_digest(merge_digests(streams)),
        annotations=annotations,
    )
    write_json_atomically(folder / STORE_MANIFEST_NAME, store.to_json())
    return store


def shard_entry(manifest: ShardManifest, *, manifest_sha256: str) -> ShardEntry:
    """How the store manifest lists a shard."""
    return ShardEntry(
        shard=manifest.shard,
        manifest=shard_manifest_name(manifest.shard),
        data_file=manifest.data_file,
        num_records=manifest.num_records,
        num_regions=manifest.num_regions,
        data_bytes=manifest.data_bytes,
        first_id=manifest.first_id,
        last_id=manifest.last_id,
        content_digest=manifest.content_digest,
        manifest_sha256=manifest_sha256,
    )
