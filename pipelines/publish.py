"""The last step of a run: dead_letters.parquet, then manifest.json over all shards of the plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from features.fingerprint import Fingerprint
from features.manifest import TEMPORARY_SUFFIX, DeadLetter, ShardManifest, StoreManifest, shard_manifest_name
from features.publish import publish_store
from pipelines.plan import Plan, read_plan
from pipelines.vocabulary import Vocabulary

DEAD_LETTERS_NAME = "dead_letters.parquet"


@dataclass(frozen=True)
class StoreText:
    """What the store manifest states beside the shards: resolved config, names, fingerprint with details."""

    config: dict[str, Any]
    vocabulary: Vocabulary
    fingerprint: Fingerprint


def publish_run(store: Path, text: StoreText) -> StoreManifest:
    """Publishes the store of a plan whose shards are all finished.

    Raises:
        ValueError: if a planned shard has no manifest yet, or shards do not fit together.
    """
    plan = read_plan(store)
    if plan is None:
        raise ValueError(f"{store}: no plan.json: nothing to publish")
    manifests = read_shard_manifests(store, plan)
    done = [manifest for manifest in manifests if manifest is not None]
    if len(done) < len(manifests):
        raise ValueError(f"{store}: {len(manifests) - len(done)} shards are unfinished; run the same command again")
    _write_dead_letters(store / DEAD_LETTERS_NAME, done)
    return publish_store(
        store,
        [manifest.shard for manifest in done],
        fingerprint=text.fingerprint,
        config=text.config,
        classes=text.vocabulary.classes,
        attributes=text.vocabulary.attributes,
    )


def read_shard_manifests(store: Path, plan: Plan) -> list[ShardManifest | None]:
    """The manifest of each planned shard, None where it is not finished."""
    paths = [store / shard_manifest_name(shard.number) for shard in plan.shards]
    return [ShardManifest.read(path) if path.exists() else None for path in paths]


def _write_dead_letters(path: Path, manifests: Sequence[ShardManifest]) -> None:
    rows = [asdict(letter) for manifest in manifests for letter in manifest.dead_letters]
    schema = pa.schema([(field.name, pa.string()) for field in fields(DeadLetter)])
    aside = path.with_suffix(TEMPORARY_SUFFIX)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), aside)
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)
