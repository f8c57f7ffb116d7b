"""Staged store: one at a URL (gs, s3, hdfs, http, another disk), read through a folder of this machine.

    store = StagedStore("gs://bucket/store", "/local/disk/store", max_bytes=200 * 10**9)
    store.stage(plan_ranks(store.manifest.shards, 64)[rank])  # or let each shard come when it is first read

A shard in the folder is whole: its files get their names after every record was checked. Any number of processes share
it:

    .staging.lock             held while room is made or the store manifest changes; marks a staging folder
    .part-00003.json.lock     held shared by each reader of the shard, exclusively to fetch or remove it; its time is
                              the shard's last use. The kernel releases a dead process's locks.
    .part-00003.a.lmdb.tmp    a data file that is not whole yet
"""

import fcntl
import hashlib
import heapq
import logging
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX, fsync_folder
from roibeam.features.folders.local_folder import is_at_url
from roibeam.features.folders.object_folder import ObjectFolder
from roibeam.features.record.region_record import content_digest
from roibeam.features.shard.manifest import (
    ANNOTATIONS_NAME,
    STORE_MANIFEST_NAME,
    ShardEntry,
    ShardManifest,
    StoreManifest,
    checked_manifest,
    shard_manifest_name,
)
from roibeam.features.shard.reader import ShardReader
from roibeam.features.store import FeatureStore
from roibeam.features.verify import record_problem

_LOCK_NAME = ".staging.lock"
_PATIENCE_SECONDS = 0.5


class StagingFolder:
    """Files and locks of one folder; holds nothing open itself.

    Args:
        path: made when it is missing.
        max_bytes: of data files, whole and arriving; None for no limit.
    Raises:
        ValueError: for a folder that has other things in it.
    """

    def __init__(self, path: Path, max_bytes: int | None) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, got {max_bytes}")
        path.mkdir(parents=True, exist_ok=True)
        names = os.listdir(path)
        if names and _LOCK_NAME not in names:
            # Above all: a real store, whose shards would be removed to make room.
            raise ValueError(f"{path}: has files that were not staged here; name an empty or a new folder")
        self.path, self.max_bytes = path, max_bytes

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time."""
        descriptor = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            unlock(descriptor, os.getpid())

    def hold(self, entry: ShardEntry, fetch: Callable[[], None]) -> int:
        """A descriptor that keeps the shard, whole, in the folder until `unlock`.

        Waits while another process fetches the shard; where none did, calls `fetch` with the shard locked.
        """
        while True:
            descriptor = self._lock_file(entry)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if self.is_whole(entry):
                    os.utime(descriptor)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            # Closed and locked anew: a shared lock does not become an exclusive one in one step.
            os.close(descriptor)
            descriptor = self._lock_file(entry)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if not self.is_whole(entry):
                    fetch()
            finally:
                unlock(descriptor, os.getpid())

    def is_whole(self, entry: ShardEntry) -> bool:
        """Whether the shard was fetched and checked: the manifest comes last."""
        try:
            if hashlib.sha256((self.path / entry.manifest).read_bytes()).hexdigest() != entry.manifest_sha256:
                return False
            return entry.data_file is None or os.stat(self.path / entry.data_file).st_size == entry.data_bytes
        except FileNotFoundError:
            return False

    def partial(self, entry: ShardEntry) -> Path:
        """Path where the shard's data file arrives."""
        return self.path / f".{entry.data_file}{TEMPORARY_SUFFIX}"

    def reserve(self, entry: ShardEntry, entries: Sequence[ShardEntry], release: Callable[[], bool]) -> None:
        """Makes room for a shard and takes it, by removing the least recently used ones without a reader.

        Args:
            release: lets go of one shard that this process reads; False when there is none.
        Raises:
            ValueError: when others use so many that there is no room.
        """
        with self.locked():
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while self.max_bytes is not None:
                names = set(os.listdir(self.path))
                there = [
                    each for each in entries
                    if each.data_file is not None and each.shard != entry.shard
                    and not names.isdisjoint((each.data_file, self.partial(each).name))
                ]  # fmt: skip
                used = sum(each.data_bytes for each in there)
                for each in sorted(there, key=self._last_use):
                    if used + entry.data_bytes <= self.max_bytes:
                        break
                    used -= each.data_bytes if self.remove(each) else 0
                if used + entry.data_bytes <= self.max_bytes:
                    break
                if entry.data_bytes <= self.max_bytes and (release() or time.monotonic() < deadline):
                    time.sleep(0.01)  # a thread may be reading from what was let go just now
                else:
                    raise ValueError(
                        f"{self.path}: no room for shard {entry.shard} of {entry.data_bytes:,} bytes: {used:,} of "
                        f"{self.max_bytes:,} are of shards in use; allow more bytes or use fewer processes"
                    )
            self.partial(entry).touch()

    def remove(self, entry: ShardEntry) -> bool:
        """Removes a shard's files, also unfinished ones; False when it is in use."""
        descriptor = self._lock_file(entry)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self.path / entry.manifest).unlink(missing_ok=True)  # first: without it the rest is nothing
            if entry.data_file is not None:
                (self.path / entry.data_file).unlink(missing_ok=True)
                self.partial(entry).unlink(missing_ok=True)
            return True
        except BlockingIOError:
            return False
        finally:
            unlock(descriptor, os.getpid())

    def write(self, name: str, data: bytes) -> None:
        """A small file, whole or not there, also after a power cut."""
        aside = self.path / f".{name}{TEMPORARY_SUFFIX}"
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.path / name)
        fsync_folder(self.path)

    def manifest_bytes(self) -> bytes | None:
        try:
            return (self.path / STORE_MANIFEST_NAME).read_bytes()
        except FileNotFoundError:
            return None

    def _lock_file(self, entry: ShardEntry) -> int:
        return os.open(self.path / f".{entry.manifest}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)

    def _last_use(self, entry: ShardEntry) -> float:
        try:
            return os.stat(self.path / f".{entry.manifest}.lock").st_mtime
        except FileNotFoundError:
            return 0.0


def unlock(descriptor: int, pid: int) -> None:
    """Closes a descriptor and lets its lock go, if this is the process that took it.

    A process that was forked meanwhile has the descriptor too: closing would not end the lock, and unlocking in the
    child would end the parent's.
    """
    if os.getpid() == pid:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


log = logging.getLogger(__name__)


class StagedStore(FeatureStore):
    """A `FeatureStore` whose shards are copied to a folder when they are first read, or before by `stage`.

    While a process has a shard open it stays in the folder; `max_open_shards` bounds how many that are, and a store
    that needs room lets go of its own least recently used ones last. Reading waits while a shard arrives.

    Args:
        url: of the store's folder, as fsspec takes it.
        folder: empty, new, or one that the same store was staged to before.
        max_bytes: of data files in the folder; the least recently used shards that no process reads make room. None
            for no limit.
        storage_options: arguments of fsspec's driver, such as credentials.
        keep_damaged: let a shard with damaged records come as it is, where it arrived so twice: reading one is the
            error then, as in a folder. False: the shard is refused.
        max_open_shards: see `FeatureStore`; None for 8 with a limit, which open shards of each process count against,
            and for 128 without.
    Raises:
        FileNotFoundError, OSError: naming the URL that cannot be read.
        ValueError: when the driver of the URL is missing, the folder is another store's, or a manifest is damaged.
    """

    def __init__(
        self,
        url: str,
        folder: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        storage_options: dict[str, Any] | None = None,
        max_open_shards: int | None = None,
        keep_damaged: bool = False,
    ) -> None:
        self._remote = ObjectFolder(url, storage_options or {})
        self._keep_damaged = keep_damaged
        data = self._remote.read(STORE_MANIFEST_NAME)
        manifest = StoreManifest.from_bytes(data, self._remote.where(STORE_MANIFEST_NAME))
        _check_names(manifest, self._remote)
        self._staging = StagingFolder(Path(folder), max_bytes)
        with self._staging.locked():
            if self._staging.manifest_bytes() != data:
                self._give_way(manifest)
                self._staging.write(STORE_MANIFEST_NAME, data)
        if max_open_shards is None:
            max_open_shards = 128 if max_bytes is None else 8
        super().__init__(folder, max_open_shards=max_open_shards)

    @property
    def folder(self) -> ObjectFolder:
        return self._remote

    def stage(
        self, shards: Sequence[ShardEntry] | None = None, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Copies shards that are not there yet; interrupted, it goes on where it stood.

        Args:
            shards: such as a share of `plan_ranks`; None for all.
            progress: called with (bytes there, bytes in all) after each shard.
        Raises:
            FileNotFoundError, OSError: naming the URL that cannot be read.
            ValueError: when shards do not fit into `max_bytes`, or what came is not what the manifests say.
        """
        entries = self.manifest.shards if shards is None else shards
        total, limit = sum(entry.data_bytes for entry in entries), self._staging.max_bytes
        if limit is not None and total > limit:
            raise ValueError(
                f"{self.path}: {len(entries)} shards have {total:,} bytes, the limit is {limit:,}; allow more, stage a "
                f"share of plan_ranks, or stage none: each then comes when it is read"
            )
        done = 0
        for entry in entries:
            unlock(self._staging.hold(entry, partial(self._fetch, entry, lambda: False)), os.getpid())
            done += entry.data_bytes
            if progress is not None:
                progress(done, total)

    def annotations_file(self) -> Path:
        """`FeatureStore.annotations_file`; copies the file first where it is not there yet."""
        entry = self.manifest.annotations
        if entry is not None:
            with self._staging.locked():
                try:
                    return super().annotations_file()
                except ValueError:
                    arriving = self.path / f".{entry.file}{TEMPORARY_SUFFIX}"
                    arriving.unlink(missing_ok=True)
                    self._remote.download(entry.file, arriving, entry.bytes)
                    os.replace(arriving, self.path / entry.file)
        return super().annotations_file()

    def _open_shard(self, entry: ShardEntry) -> ShardReader:
        lock = self._staging.hold(entry, partial(self._fetch, entry, self._let_go_of_one))
        try:
            reader = super()._open_shard(entry)
        except BaseException:
            unlock(lock, os.getpid())
            raise
        weakref.finalize(reader, unlock, lock, os.getpid())
        return reader

    def _let_go_of_one(self) -> bool:
        """Drops the least recently used open shard; called while `_reader` holds the lock of the open ones."""
        readers = None if self._open is None else self._open.readers
        return bool(readers and readers.popitem(last=False))

    def _fetch(self, entry: ShardEntry, release: Callable[[], bool]) -> None:
        """Makes the shard whole; called while it is locked."""
        manifest, data = checked_manifest(self._remote.read, entry, self._remote.where(entry.manifest))
        if entry.data_file is not None:
            arriving, whole = self._staging.partial(entry), self.path / entry.data_file
            self._staging.reserve(entry, self.manifest.shards, release)
            if whole.exists():
                os.replace(whole, arriving)  # a process died before it wrote the manifest: check again, copy the rest
            self._arrive(entry, manifest, arriving)
            os.replace(arriving, whole)
        self._staging.write(entry.manifest, data)

    def _arrive(self, entry: ShardEntry, manifest: ShardManifest, arriving: Path) -> None:
        """Copies a data file and looks at every record; damage on the way is mended by a second copy."""
        assert entry.data_file is not None
        where = self._remote.where(entry.data_file)
        for is_last in (False, True):
            self._remote.download(entry.data_file, arriving, entry.data_bytes)
            try:
                return _check_content(arriving, manifest)
            except ValueError as error:
                if is_last and self._keep_damaged:
                    log.warning("%s: arrived damaged twice (%s)", where, error)
                    return None
                arriving.unlink()
                if is_last:
                    what = str(error).removeprefix(f"{arriving}: ")
                    raise ValueError(
                        f"{where}: arrived damaged twice and was dropped ({what}); verify the store there"
                    ) from error

    def _give_way(self, manifest: StoreManifest) -> None:
        """Removes shards that the store there no longer has; called while the folder is locked."""
        path = self._staging.path / STORE_MANIFEST_NAME
        if not path.exists():
            return
        before = StoreManifest.read(path)
        if before.fingerprint.feature_space != manifest.fingerprint.feature_space:
            raise ValueError(f"{path.parent}: holds shards of another store than {self._remote.url}; name a new folder")
        still = set(manifest.shards)
        for entry in before.shards:
            if entry not in still and not self._staging.remove(entry):
                raise ValueError(
                    f"{path.parent}: shard {entry.shard} changed at {self._remote.url} and a process reads the staged "
                    f"one; end it, or name a new folder"
                )


def _check_names(manifest: StoreManifest, remote: ObjectFolder) -> None:
    """Checks that no name from elsewhere is that of another file of the folder, such as a lock or a manifest."""
    if manifest.annotations is not None and manifest.annotations.file != ANNOTATIONS_NAME:
        raise ValueError(
            f"{remote.where(STORE_MANIFEST_NAME)}: annotations are in {manifest.annotations.file!r}, expected "
            f"{ANNOTATIONS_NAME}; copy the store there again"
        )
    for entry in manifest.shards:
        data_name = rf"part-{entry.shard:05d}\.[A-Za-z0-9_-]{{1,64}}\.lmdb"
        is_data_name = entry.data_file is None or re.fullmatch(data_name, entry.data_file)
        if entry.manifest != shard_manifest_name(entry.shard) or not is_data_name:
            raise ValueError(
                f"{remote.where(STORE_MANIFEST_NAME)}: shard {entry.shard} has files {entry.manifest!r} and "
                f"{entry.data_file!r}, expected {shard_manifest_name(entry.shard)} and "
                f"part-{entry.shard:05d}.<attempt>.lmdb; copy the store there again"
            )


def _check_content(path: Path, manifest: ShardManifest) -> None:
    """Raises ValueError naming what differs: every record against the index, and that against the manifest."""
    reader = ShardReader(path, manifest)  # never closed: what a damaged record raises holds views of it
    for row, image_id in enumerate(reader.ids()):
        what = record_problem(reader, row, image_id)
        if what is not None:
            raise ValueError(f"record {image_id!r}: {what}")
    if content_digest(reader.digests()) != manifest.content_digest:
        raise ValueError("its index gives another content digest than its manifest")


def plan_ranks(shards: Sequence[ShardEntry], num_ranks: int) -> list[list[ShardEntry]]:
    """Shards for each rank, balanced by bytes: the largest first, each to the rank that has least.

    The largest share is at most 4/3 of the smallest one possible (R. L. Graham, "Bounds on multiprocessing timing
    anomalies", 1969); with many more shards than ranks it is close to the mean. The same shards give the same plan.

    Returns:
        for each rank its shards with records, by ascending number; without any where there are more ranks than shards.
    Raises:
        ValueError: for less than one rank.
    """
    if num_ranks < 1:
        raise ValueError(f"a plan needs at least one rank, got {num_ranks}")
    filled = sorted(
        (entry for entry in shards if entry.num_records), key=lambda entry: (-entry.data_bytes, entry.shard)
    )
    loads = [(0, rank) for rank in range(num_ranks)]
    plan: list[list[ShardEntry]] = [[] for _ in range(num_ranks)]
    for entry in filled:
        load, rank = heapq.heappop(loads)
        plan[rank].append(entry)
        heapq.heappush(loads, (load + entry.data_bytes, rank))
    return [sorted(entries, key=lambda entry: entry.shard) for entries in plan]


def imbalance(plan: Sequence[Sequence[ShardEntry]]) -> float:
    """Bytes of the fullest rank / mean over all ranks, 1 to their number; 1 for a store without records."""
    loads = [sum(entry.data_bytes for entry in entries) for entries in plan]
    return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0


def open_store(
    location: str | os.PathLike[str], *, stage_to: str | os.PathLike[str] | None = None, stage_bytes: int | None = None
) -> FeatureStore:
    """Opens the store in a folder, or at a URL that is copied shard by shard as it is read.

    Args:
        location: folder with `manifest.json`, or a URL as fsspec takes it (s3://, gs://, file://, ...).
        stage_to: local folder for the shards of a store at a URL; needed there, refused for a folder.
        stage_bytes: room there; None for no limit.
    Raises:
        FileNotFoundError, OSError: naming the place that cannot be read.
        ValueError: when a URL comes without `stage_to`, a folder comes with it, or the store is damaged.
    """
    if not is_at_url(location):
        if stage_to is not None or stage_bytes is not None:
            raise ValueError(f"{location}: stage_to and stage_bytes are for a store at a URL; this is a folder")
        return FeatureStore(Path(location))
    if stage_to is None:
        raise ValueError(f"{location}: a store at a URL needs stage_to, a local folder for its shards")
    return StagedStore(str(location), stage_to, max_bytes=stage_bytes)
