"""The last steps of writing a store: a shard's manifest after its data file, the store's manifest after all shards."""

from __future__ import annotations

import hashlib
import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.record.digest import content_digest, merge_digests
from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.shard.manifest import (
    STORE_MANIFEST_NAME,
    AnnotationsEntry,
    ShardEntry,
    ShardManifest,
    StoreManifest,
    shard_manifest_name,
)
from roibeam.features.shard.remote_reader import shard_digests
from roibeam.name_list import check_list

_Pair = tuple[bytes, bytes]  # key, record digest


def publish_shard(
    folder: str | os.PathLike[str] | OutputFolder, manifest: ShardManifest, *, first: bool = False
) -> bool:
    """Writes `part-<shard>.json`; the data file it names, already in its final place, is the shard from now on.

    Args:
        first: leave a manifest that is there as it is: another attempt's, at work at the same time.
    Returns:
        False when there was one; then nothing was written.
    """
    output, name, data = output_folder(folder), shard_manifest_name(manifest.shard), json_bytes(manifest.to_json())
    if first:
        return output.put_first(name, data)
    output.put_bytes(name, data)
    return True


def publish_store(
    folder: str | os.PathLike[str] | OutputFolder,
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
    check_list(classes, "classes")
    check_list(attributes, "attributes")
    folder = output_folder(folder)
    entries: list[ShardEntry] = []
    filled: list[ShardManifest] = []
    kinds: dict[tuple[int, str | None], int] = {}
    dead_letters = 0
    numbers = sorted(set(shards))
    for shard, (name, data) in zip(numbers, folder.read_many(map(shard_manifest_name, numbers)), strict=True):
        path = folder.where(name)
        if data is None:
            raise FileNotFoundError(f"{path}: the manifest of shard {shard} is missing; extract the shard again")
        manifest = ShardManifest.from_bytes(data, path)
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
            filled.append(replace(manifest, dead_letters=(), stats={}))  # small: all are kept
        entries.append(ShardEntry.of(manifest, manifest_sha256=hashlib.sha256(data).hexdigest()))
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
        content_digest=content_digest(merge_digests(digests_in_sequences(folder, filled))),
        annotations=annotations,
    )
    folder.put_bytes(STORE_MANIFEST_NAME, json_bytes(store.to_json()))
    return store


def digests_in_sequences(folder: OutputFolder, manifests: Sequence[ShardManifest]) -> list[Iterator[_Pair]]:
    """The digests of all shards, those whose ranges of ids follow one another in one stream.

    A merge holds a place in every stream it was given, and most stores, whose shards overlap nowhere, are one.
    """
    sequences: list[list[ShardManifest]] = []
    ends: list[tuple[bytes, int]] = []  # heap: last key of each sequence, its number
    for manifest in sorted(manifests, key=lambda each: (each.first_id or "").encode("utf-8", "surrogatepass")):
        assert manifest.first_id is not None and manifest.last_id is not None
        if ends and ends[0][0] < manifest.first_id.encode("utf-8", "surrogatepass"):
            number = heapq.heappop(ends)[1]
        else:
            number = len(sequences)
            sequences.append([])
        sequences[number].append(manifest)
        heapq.heappush(ends, (manifest.last_id.encode("utf-8", "surrogatepass"), number))
    return [_digests_of(folder, sequence) for sequence in sequences]


def _digests_of(folder: OutputFolder, manifests: Sequence[ShardManifest]) -> Iterator[_Pair]:
    for manifest in manifests:
        yield from shard_digests(folder, manifest)
