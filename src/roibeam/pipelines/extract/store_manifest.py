"""The last step of a run: dead_letters.parquet, annotations.parquet, then manifest.json over all shards of the plan."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roibeam.features.annotations_file import checked_annotations
from roibeam.features.counted import counted
from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.record.fingerprint import Fingerprint, merged_numerics
from roibeam.features.shard.manifest import (
    DEAD_LETTERS_NAME,
    STORE_MANIFEST_NAME,
    AnnotationsEntry,
    ShardManifest,
    StoreManifest,
    shard_manifest_name,
)
from roibeam.features.shard.publish import publish_store
from roibeam.features.writing.annotations_table import write_annotations
from roibeam.pipelines.common.files.dead_letters import write_dead_letters
from roibeam.pipelines.data.annotations import planned_annotations
from roibeam.pipelines.data.shard_plan import read_plan
from roibeam.pipelines.data.vocabulary import Vocabulary

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreText:
    """What the store manifest states beside the shards: resolved config, names, fingerprint with details."""

    config: dict[str, Any]
    vocabulary: Vocabulary
    fingerprint: Fingerprint


def publish_run(store: str | Path | OutputFolder, text: StoreText, *, keep: bool = False) -> StoreManifest:
    """Publishes the store of a plan whose shards are all finished.

    Args:
        text: what the manifest states beside the shards; numerics are taken from the shards.
        keep: leave a manifest that lists these shards as it is: nothing was extracted, so nothing is to be restated.

    Raises:
        ValueError: if a planned shard has no manifest yet, or shards do not fit together.
    """
    folder = output_folder(store)
    plan = read_plan(folder)
    if plan is None:
        raise ValueError(f"{folder}: no plan.json: nothing to publish")
    done: list[ShardManifest] = []
    digests: dict[str, str] = {}  # SHA-256 of the manifests by name
    for name, data in folder.read_many(shard_manifest_name(shard.number) for shard in plan.shards):
        if data is not None:
            done.append(ShardManifest.from_bytes(data, folder.where(name)))
            digests[name] = hashlib.sha256(data).hexdigest()
    if len(done) < len(plan.shards):
        unfinished = counted(len(plan.shards) - len(done), "shard")
        raise ValueError(f"{folder}: {unfinished} unfinished; run the same command again")
    if keep and (published := _published(folder, digests)) is not None:
        return published
    write_dead_letters(folder, done)
    annotations = write_annotations(folder, planned_annotations(folder, plan, done))
    return publish_store(
        folder,
        [manifest.shard for manifest in done],
        fingerprint=replace(text.fingerprint, numerics=_numerics(folder, done)),
        config=text.config,
        classes=text.vocabulary.classes,
        attributes=text.vocabulary.attributes,
        annotations=annotations,
    )


def _published(folder: OutputFolder, digests: dict[str, str]) -> StoreManifest | None:
    """The store manifest, if it is there and lists exactly these shard manifests as they are now."""
    try:
        manifest = StoreManifest.from_bytes(folder.read_bytes(STORE_MANIFEST_NAME), folder.where(STORE_MANIFEST_NAME))
    except (FileNotFoundError, ValueError):
        return None
    listed = {entry.manifest: entry.manifest_sha256 for entry in manifest.shards}
    is_whole = listed == digests and folder.num_bytes(DEAD_LETTERS_NAME) is not None
    return manifest if is_whole and _has_annotations(folder, manifest.annotations) else None


def _has_annotations(folder: OutputFolder, entry: AnnotationsEntry | None) -> bool:
    """Whether the table that the manifest names is there; at a URL by its size alone."""
    if entry is None:
        return True
    if folder.local_path is None:
        return folder.num_bytes(entry.file) == entry.bytes
    try:
        checked_annotations(folder.local_path, entry)
    except ValueError as error:
        log.warning("%s; writing it again", error)
        return False
    return True


def _numerics(folder: OutputFolder, manifests: Sequence[ShardManifest]) -> dict[str, Any]:
    """How the shards were computed; where they differ, the values of each field in a list, with a warning."""
    numerics = merged_numerics(manifest.fingerprint.numerics for manifest in manifests)
    mixed = [f"{key} {values}" for key, values in numerics.items() if isinstance(values, list)]
    if isinstance(numerics.get("mode"), list):  # of stores that were begun by an earlier version
        log.warning(
            "%s: shards were computed in different modes (%s): regions and features differ more than in the last "
            "digits; for one mode extract into a new folder", folder, ", ".join(numerics["mode"]),
        )  # fmt: skip
    elif mixed:
        log.warning("%s: shards were computed differently (%s); features differ in the last digits", folder, mixed[0])
    return numerics
