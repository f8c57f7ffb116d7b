"""The folder that an import, a copy or `StoreWriter` writes: may it become this one's store, and what is finished after
a kill.

A plan is the digest of all that decides what is written; each shard manifest has it in its stats, the store manifest in
its config.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX
from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_lock import LOCK_NAME
from roibeam.features.folders.folder_protocol import (
    ABANDONED_SECONDS,
    FileFacts,
    OutputFolder,
    UnreachableError,
)
from roibeam.features.folders.scratch_folder import scratch_folder
from roibeam.features.shard.manifest import (
    ANNOTATIONS_NAME,
    DEAD_LETTERS_NAME,
    STORE_MANIFEST_NAME,
    ShardManifest,
    StoreManifest,
    shard_manifest_name,
)
from roibeam.features.shard.reader import ShardReader
from roibeam.features.shard.remote_reader import ShardObject
from roibeam.features.writing.shard_captions import CAPTIONS_SUFFIX, captions_file_name

log = logging.getLogger(__name__)
_DATA_FILE = re.compile(rf"part-(\d{{5,}})\.[0-9a-f]{{8}}({re.escape(CAPTIONS_SUFFIX)}|\.lmdb)")


def plan_stat(command: str, plan: str) -> dict[str, str]:
    """What the shard manifests of this "copy", "import" or "write" have in their stats."""
    return {f"{command}_plan": plan}


def check_sequence_folder(out: Path | OutputFolder, command: str, plan: str) -> None:
    """ValueError when `out` holds anything but what an earlier run of this "copy", "import" or "write"
    wrote; needs the store's lock, where there is one."""
    folder = output_folder(out)
    shards = []
    for name, is_file in _entries(folder):
        if name == LOCK_NAME:
            continue
        other = f"{folder} is not empty and not of a killed {command} ({name!r} is in it); choose a new folder"
        if not is_file:
            raise ValueError(other)
        if name == STORE_MANIFEST_NAME:
            origin = StoreManifest.from_bytes(folder.read_bytes(name), folder.where(name)).config.get(command)
            if not isinstance(origin, dict) or origin.get("plan") != plan:
                raise ValueError(f"{folder} is another store already; choose a new folder, or delete it first")
        elif re.fullmatch(r"part-\d{5,}\.json", name):
            shards.append(name)
        elif not (
            _DATA_FILE.fullmatch(name)
            or name in (DEAD_LETTERS_NAME, ANNOTATIONS_NAME)
            or (name.startswith(".") and name.endswith(TEMPORARY_SUFFIX))
        ):
            raise ValueError(other)
    for name, data in folder.read_many(shards):
        if data is None:
            continue  # removed just now
        if not plan_stat(command, plan).items() <= ShardManifest.from_bytes(data, folder.where(name)).stats.items():
            raise ValueError(
                f"{folder} holds shards of another run ({name}): of other sources or options; choose a "
                f"new folder, or delete it first"
            )


def _entries(folder: OutputFolder) -> Iterator[tuple[str, bool]]:
    """Each name in the folder, and whether it is that of a file."""
    if folder.local_path is None:
        yield from ((name, True) for name in sorted(folder.listing()))
    else:
        yield from (
            (path.name, path.is_file() and not path.is_symlink()) for path in sorted(folder.local_path.iterdir())
        )


def finished_shards(out: Path | OutputFolder) -> list[ShardManifest]:
    """The shards from 0 on that are whole in size and index."""
    folder = output_folder(out)
    there = folder.listing("part-")
    names = itertools.takewhile(there.__contains__, map(shard_manifest_name, itertools.count()))
    manifests: list[ShardManifest] = []
    for name, data in folder.read_many(names):
        if data is None:
            break
        manifest = ShardManifest.from_bytes(data, folder.where(name))
        try:
            check_shard_file(folder, manifest)
        except UnreachableError:
            raise
        except (OSError, ValueError) as error:
            log.warning("%s; writing its records again", error)
            break
        manifests.append(manifest)
    if manifests:
        log.info("%s finished by an earlier run", counted(len(manifests), "shard"))
    return manifests


def check_shard_file(folder: OutputFolder, manifest: ShardManifest) -> None:
    """Raises FileNotFoundError or ValueError where the data file of a shard is not whole in size, pages and index."""
    if manifest.data_file is None:
        return
    if folder.local_path is None:
        ShardObject(folder, manifest, check_file=True)
        return
    with ShardReader(folder.local_path / manifest.data_file, manifest):
        pass


def remove_unfinished(out: Path | OutputFolder, finished: Sequence[ShardManifest]) -> None:
    """Removes what is not of a finished shard; needs the store's lock where there is one, and `check_sequence_folder`
    before it.

    At a URL another run of the same command may be between a data file and its manifest: there, data files of shards
    that are not finished stay for a day.
    """
    folder = output_folder(out)
    kept = {LOCK_NAME, STORE_MANIFEST_NAME, DEAD_LETTERS_NAME, ANNOTATIONS_NAME}
    kept |= {shard_manifest_name(manifest.shard) for manifest in finished}
    data_files = [manifest.data_file for manifest in finished if manifest.data_file is not None]
    kept |= {*data_files, *map(captions_file_name, data_files)}
    there = folder.listing()
    names = [name for name in there if name not in kept]
    if folder.local_path is None:
        names = [name for name in names if not _may_be_in_work(name, there[name], len(finished))]
    if any(name.endswith(".json") for name in names):  # a shard of it is going: there is no store until it is back
        folder.delete(STORE_MANIFEST_NAME)
    for name in sorted(names, key=lambda name: not name.endswith(".json")):  # manifests first: no shard without data
        folder.delete(name)


def _may_be_in_work(name: str, facts: FileFacts, num_finished: int) -> bool:
    found = _DATA_FILE.fullmatch(name)
    is_old = 0 < facts.written_at < time.time() - ABANDONED_SECONDS
    return found is not None and int(found[1]) >= num_finished and not is_old


@contextmanager
def work_folder(folder: OutputFolder, scratch: str | None = None) -> Iterator[Path]:
    """Where the data file of a shard is written: the folder itself, or a scratch folder for one at a URL."""
    if folder.local_path is not None:
        folder.local_path.mkdir(parents=True, exist_ok=True)
        yield folder.local_path
    else:
        with scratch_folder(scratch) as path:
            yield path
