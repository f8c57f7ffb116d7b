"""The output folder between runs: may it become a store, what of it is finished, what did killed runs leave behind."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from features.manifest import TEMPORARY_SUFFIX, ShardManifest, shard_manifest_name
from features.shard_reader import ShardReader
from pipelines.plan import Plan, PlannedShard, read_plan
from pipelines.store_lock import LOCK_NAME

log = logging.getLogger(__name__)
SCRATCH_PREFIX = ".tmp-"


def check_output_folder(store: Path) -> None:
    """Raises ValueError when `store` cannot become or continue a store: a file, or a folder with other things in it."""
    try:
        str(store).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{str(store)!r}: the path is not valid UTF-8; choose another folder") from None
    if store.exists() and not store.is_dir():
        raise ValueError(f"{store} is a file; give a folder to write the store into")
    if store.is_dir() and read_plan(store) is None:
        others = [path.name for path in store.iterdir() if not _is_of_a_killed_start(path.name)]
        if others:
            raise ValueError(
                f"{store} is not empty and no store of ours ({sorted(others)[0]!r} is in it); choose a new folder"
            )


def _is_of_a_killed_start(name: str) -> bool:
    return name in (LOCK_NAME, "plan") or _is_temporary(name)


def _is_temporary(name: str) -> bool:
    """Whether a file has the name that our atomic writes use before they rename it."""
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def finished_manifest(store: Path, shard: PlannedShard, feature_space: str) -> ShardManifest | None:
    """The manifest of a shard that needs no work: of this plan and feature space, its data file whole in size.

    A damaged or outdated one is as good as none; its shard is extracted again.
    """
    path = store / shard_manifest_name(shard.number)
    try:
        manifest = ShardManifest.read(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("%s; extracting its shard again", error)
        return None
    if manifest.members_digest != shard.members_digest or manifest.fingerprint.feature_space != feature_space:
        log.warning("%s is of another plan or detector; extracting its shard again", path)
        return None
    if manifest.data_file is not None:
        data = store / manifest.data_file
        if not data.exists() or data.stat().st_size != manifest.data_bytes:
            log.warning("%s is missing or not %d bytes long; extracting its shard again", data, manifest.data_bytes)
            return None
    return manifest


def tidy_store(store: Path, plan: Plan | None, feature_space: str, *, retry_dead_letters: bool = False) -> None:
    """Leaves the shards that count and nothing else; needs the store's lock.

    Afterwards a shard manifest means a finished shard: those that are damaged, outdated or without their data are
    removed, and with `retry_dead_letters` those that hold any. Removed too: scratch folders, data files that no
    manifest names, files of broken-off atomic writes.
    """
    removed = []
    for path in store.glob(f"{SCRATCH_PREFIX}*"):
        removed.append(path.name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    named = set()
    for shard in plan.shards if plan else ():
        manifest = finished_manifest(store, shard, feature_space)
        if manifest is not None and not _index_is_sound(store, manifest):
            manifest = None
        if manifest is None or (retry_dead_letters and manifest.dead_letters):
            (store / shard_manifest_name(shard.number)).unlink(missing_ok=True)
        else:
            named.add(manifest.data_file)
    for path in store.iterdir():
        of_no_shard = path.match("part-*.lmdb") and path.name not in named
        if of_no_shard or _is_temporary(path.name):
            removed.append(path.name)
            path.unlink()
    if removed:
        log.info("%s: removed what a stopped run left: %s", store, ", ".join(sorted(removed)[:5]))


def _index_is_sound(store: Path, manifest: ShardManifest) -> bool:
    if manifest.data_file is None:
        return True
    try:
        with ShardReader(store / manifest.data_file, manifest):
            return True
    except (ValueError, OSError) as error:
        log.warning("%s; extracting its shard again", error)
        return False
