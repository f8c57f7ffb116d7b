"""The folder that shards are staged to, shared by the processes of a machine: locks, room, and what may go.

    .staging.lock             held while room is made or the store manifest changes; marks the folder as ours
    .part-00003.json.lock     held shared by each reader of the shard, alone by who fetches or removes it; its time is
                              the shard's last use
    .part-00003.a.lmdb.tmp    a data file that is not whole yet

The kernel lets go of a dead process's locks, so nothing is left locked.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX, fsync_folder
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, ShardEntry

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
            is_its_manifest = _sha256(self.path / entry.manifest) == entry.manifest_sha256
            return is_its_manifest and (
                entry.data_file is None or os.stat(self.path / entry.data_file).st_size == entry.data_bytes
            )
        except FileNotFoundError:
            return False

    def partial(self, entry: ShardEntry) -> Path:
        """Where the shard's data file arrives."""
        return self.path / f".{entry.data_file}{TEMPORARY_SUFFIX}"

    def reserve(self, entry: ShardEntry, entries: Sequence[ShardEntry], release: Callable[[], bool]) -> None:
        """Makes room for a shard and takes it, by removing the least recently used ones that nobody reads.

        Args:
            entries: of the store.
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
        """The store manifest that was staged last."""
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


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
