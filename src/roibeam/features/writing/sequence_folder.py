"""The folder that an import, a copy or `StoreWriter` writes: may it become this one's store, and what is finished after
a kill.

A plan is the digest of all that decides what is written; each shard manifest has it in its stats, the store manifest in
its config.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX
from roibeam.features.folders.folder_lock import LOCK_NAME
from roibeam.features.shard.manifest import (
    ANNOTATIONS_NAME,
    DEAD_LETTERS_NAME,
    STORE_MANIFEST_NAME,
    ShardManifest,
    StoreManifest,
    shard_manifest_name,
)
from roibeam.features.shard.reader import ShardReader
from roibeam.features.writing.shard_captions import CAPTIONS_SUFFIX, captions_file_name

log = logging.getLogger(__name__)


def plan_stat(command: str, plan: str) -> dict[str, str]:
    """What the shard manifests of this "copy", "import" or "write" have in their stats."""
    return {f"{command}_plan": plan}


def check_sequence_folder(out: Path, command: str, plan: str) -> None:
    """ValueError when `out` holds anything but what an earlier run of this "copy", "import" or "write"
    wrote; needs the store's lock."""
    for path in sorted(out.iterdir()):
        if path.name == LOCK_NAME:
            continue
        other = f"{out} is not empty and not of a killed {command} ({path.name!r} is in it); choose a new folder"
        if not path.is_file() or path.is_symlink():
            raise ValueError(other)
        if path.name == STORE_MANIFEST_NAME:
            origin = StoreManifest.read(path).config.get(command)
            if not isinstance(origin, dict) or origin.get("plan") != plan:
                raise ValueError(f"{out} is another store already; choose a new folder, or delete it first")
        elif re.fullmatch(r"part-\d{5,}\.json", path.name):
            if not plan_stat(command, plan).items() <= ShardManifest.read(path).stats.items():
                raise ValueError(
                    f"{out} holds shards of another run ({path.name}): of other sources or options; choose a "
                    f"new folder, or delete it first"
                )
        elif not (
            re.fullmatch(rf"part-\d{{5,}}\.[0-9a-f]{{8}}({re.escape(CAPTIONS_SUFFIX)}|\.lmdb)", path.name)
            or path.name in (DEAD_LETTERS_NAME, ANNOTATIONS_NAME)
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
                log.warning("%s; writing its records again", error)
                break
        manifests.append(manifest)
    if manifests:
        log.info("%s finished by an earlier run", counted(len(manifests), "shard"))
    return manifests


def remove_unfinished(out: Path, finished: Sequence[ShardManifest]) -> None:
    """Removes what is not of a finished shard; needs the store's lock, and `check_sequence_folder` before it."""
    kept = {LOCK_NAME, STORE_MANIFEST_NAME, DEAD_LETTERS_NAME, ANNOTATIONS_NAME}
    kept |= {shard_manifest_name(manifest.shard) for manifest in finished}
    data_files = [manifest.data_file for manifest in finished if manifest.data_file is not None]
    kept |= {*data_files, *map(captions_file_name, data_files)}
    names = [path.name for path in out.iterdir() if path.name not in kept]
    if any(name.endswith(".json") for name in names):  # a shard of it is going: there is no store until it is back
        (out / STORE_MANIFEST_NAME).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: not name.endswith(".json")):  # manifests first: no shard without data
        (out / name).unlink()
