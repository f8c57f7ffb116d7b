"""The last step of a run: dead_letters.parquet, annotations.parquet, then manifest.json over all shards of the plan."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from features.annotations_file import checked_annotations
from features.counted import counted
from features.fingerprint import Fingerprint, merged_numerics
from features.manifest import (
    STORE_MANIFEST_NAME,
    ShardManifest,
    StoreManifest,
    shard_manifest_name,
)
from features.publish import publish_store
from pipelines.annotations import planned_annotations, write_annotations
from pipelines.dead_letters import DEAD_LETTERS_NAME, write_dead_letters
from pipelines.plan import Plan, read_plan
from pipelines.vocabulary import Vocabulary

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreText:
    """What the store manifest states beside the shards: resolved config, names, fingerprint with details."""

    config: dict[str, Any]
    vocabulary: Vocabulary
    fingerprint: Fingerprint


def publish_run(store: Path, text: StoreText, *, keep: bool = False) -> StoreManifest:
    """Publishes the store of a plan whose shards are all finished.

    Args:
        text: what the manifest states beside the shards; numerics are taken from the shards.
        keep: leave a manifest that lists these shards as it is: nothing was extracted, so nothing is to be restated.

    Raises:
        ValueError: if a planned shard has no manifest yet, or shards do not fit together.
    """
    plan = read_plan(store)
    if plan is None:
        raise ValueError(f"{store}: no plan.json: nothing to publish")
    manifests = read_shard_manifests(store, plan)
    done = [manifest for manifest in manifests if manifest is not None]
    if len(done) < len(manifests):
        unfinished = counted(len(manifests) - len(done), "shard")
        raise ValueError(f"{store}: {unfinished} unfinished; run the same command again")
    if keep and (published := _published(store, done)) is not None:
        return published
    write_dead_letters(store / DEAD_LETTERS_NAME, done)
    annotations = write_annotations(store, planned_annotations(store, plan, done))
    return publish_store(
        store,
        [manifest.shard for manifest in done],
        fingerprint=replace(text.fingerprint, numerics=_numerics(store, done)),
        config=text.config,
        classes=text.vocabulary.classes,
        attributes=text.vocabulary.attributes,
        annotations=annotations,
    )


def _published(store: Path, shards: Sequence[ShardManifest]) -> StoreManifest | None:
    """The store manifest, if it is there and lists exactly these shard manifests as they are now."""
    try:
        manifest = StoreManifest.read(store / STORE_MANIFEST_NAME)
    except (FileNotFoundError, ValueError):
        return None
    listed = {entry.manifest: entry.manifest_sha256 for entry in manifest.shards}
    names = [shard_manifest_name(shard.shard) for shard in shards]
    now = {name: hashlib.sha256((store / name).read_bytes()).hexdigest() for name in names}
    if listed != now or not (store / DEAD_LETTERS_NAME).exists():
        return None
    try:
        if manifest.annotations is not None:
            checked_annotations(store, manifest.annotations)
    except ValueError as error:
        log.warning("%s; writing it again", error)
        return None
    return manifest


def _numerics(store: Path, manifests: Sequence[ShardManifest]) -> dict[str, Any]:
    """How the shards were computed; where they differ, the values of each field in a list, with a warning."""
    numerics = merged_numerics(manifest.fingerprint.numerics for manifest in manifests)
    mixed = [f"{key} {values}" for key, values in numerics.items() if isinstance(values, list)]
    if mixed:
        log.warning("%s: shards were computed differently (%s); features differ in the last digits", store, mixed[0])
    return numerics


def read_shard_manifests(store: Path, plan: Plan) -> list[ShardManifest | None]:
    """The manifest of each planned shard, None where it is not finished."""
    paths = [store / shard_manifest_name(shard.number) for shard in plan.shards]
    return [ShardManifest.read(path) if path.exists() else None for path in paths]
