"""The folder that a copy writes: may it become this copy's store, and what of it is finished after a kill."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from features.counted import counted
from features.manifest import STORE_MANIFEST_NAME, TEMPORARY_SUFFIX, ShardManifest, StoreManifest, shard_manifest_name
from features.shard_reader import ShardReader
from pipelines.dead_letters import DEAD_LETTERS_NAME
from pipelines.store_lock import LOCK_NAME

log = logging.getLogger(__name__)
PLAN_STAT = "copy_plan"  # in a shard manifest's stats: digest of the copy that it is of


def check_copy_folder(out: Path, plan: str) -> None:
    """ValueError when `out` holds anything but what an earlier run of this copy wrote; needs the store's lock."""
    for path in sorted(out.iterdir()):
        if path.name == LOCK_NAME:
            continue
        other = f"{out} is not empty and not of a killed copy ({path.name!r} is in it); choose a new folder"
        if not path.is_file() or path.is_symlink():
            raise ValueError(other)
        if path.name == STORE_MANIFEST_NAME:
            copied = StoreManifest.read(path).config.get("copy")
            if not isinstance(copied, dict) or copied.get("plan") != plan:
                raise ValueError(f"{out} is another store already; choose a new folder, or delete it first")
        elif re.fullmatch(r"part-\d{5,}\.json", path.name):
            if ShardManifest.read(path).stats.get(PLAN_STAT) != plan:
                raise ValueError(
                    f"{out} holds shards of another run ({path.name}): of other sources or options; choose a new "
                    f"folder, or delete it first"
                )
        elif not (
            re.fullmatch(r"part-\d{5,}\.[0-9a-f]{8}\.lmdb", path.name)
            or path.name == DEAD_LETTERS_NAME
            or (path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX))
        ):
            raise ValueError(other)


def finished_shards(out: Path) -> list[ShardManifest]:
    """The shards from 0 on that are whole in size and index."""
    manifests: list[ShardManifest] = []
    while (path := out / shard_manifest_name(len(manifests))).exists():
        manifest = ShardManifest.read(path)
        if manifest.data_file is not None:
            try:
                with ShardReader(out / manifest.data_file, manifest):
                    pass
            except (OSError, ValueError) as error:
                log.warning("%s; copying its records again", error)
                break
        manifests.append(manifest)
    if manifests:
        log.info("%s finished by an earlier run", counted(len(manifests), "shard"))
    return manifests


def remove_unfinished(out: Path, finished: Sequence[ShardManifest]) -> None:
    """Removes what is not of a finished shard; needs the store's lock, and `check_copy_folder` before it."""
    kept = {LOCK_NAME, STORE_MANIFEST_NAME, DEAD_LETTERS_NAME}
    kept |= {shard_manifest_name(manifest.shard) for manifest in finished}
    kept |= {manifest.data_file for manifest in finished if manifest.data_file is not None}
    names = [path.name for path in out.iterdir() if path.name not in kept]
    if any(name.endswith(".json") for name in names):  # a shard of it is going: there is no store until it is back
        (out / STORE_MANIFEST_NAME).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: not name.endswith(".json")):  # manifests first: no shard without data
        (out / name).unlink()
