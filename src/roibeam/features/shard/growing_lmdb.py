"""An LMDB file being written whose map grows: no terabyte is asked for, and the file has the size of its pages."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb

from roibeam.features.folders.full_disk import naming_file

# A fifth less processor time than with 256 MiB, whose memory is new to the system and in no cache.
COMMIT_BYTES = 16 * 2**20
_LEAST_MAP_BYTES = 2**21  # an empty environment and the tree pages of a small transaction


class GrowingLmdb:
    """Puts entries in transactions. LMDB refuses what does not fit its map and drops the whole transaction; then the
    map is doubled here, and the transaction's entries are put again.

    Args:
        path: a file, or with `subdir` a folder that gets `data.mdb`; new (or left by a stopped writer of the same, and
            `durable`), and nobody else's: there is no lock file.
        map_bytes: expected size of the file. A wrong guess costs repeated transactions, half of them at most.
        commit_bytes: bytes of keys and values in a transaction. LMDB holds its pages in memory, and this object its
            entries (to put them again), so the peak is about twice this.
        databases: named databases; none means the one without a name.
        durable: each commit is on the disk when the next one begins, so that what a killed writer leaves can be opened
            even after a power cut.
    Raises:
        OSError: naming the file, from each method that writes, when the disk is full or broken.
    """

    def __init__(
        self,
        path: Path,
        *,
        subdir: bool,
        map_bytes: int,
        commit_bytes: int = COMMIT_BYTES,
        databases: Sequence[bytes] = (),
        durable: bool = False,
    ) -> None:
        self._map_bytes = _whole_pages(max(map_bytes, _LEAST_MAP_BYTES))
        self._commit_bytes = commit_bytes
        # writemap=False: with it the file would get the apparent size of the map. Not durable: one fsync at the end.
        self._file = path / "data.mdb" if subdir else path
        with naming_file(self._file):
            self._env = lmdb.open(
                os.fspath(path), subdir=subdir, map_size=self._map_bytes, max_dbs=len(databases), lock=False,
                writemap=False, sync=durable, metasync=durable, readahead=False,
            )  # fmt: skip
            self._databases = {name: self._env.open_db(name) for name in databases}
        self._txn = self._env.begin(write=True)
        self._pending: list[tuple[bytes, bytes, bytes | None]] = []  # what the open transaction holds
        self._pending_bytes = 0

    def put(self, key: bytes, value: bytes, database: bytes | None = None, *, append: bool = False) -> bool:
        """Adds an entry; False when the key is there already.

        Args:
            append: the key is larger than all before it, which packs the tree best.
        """
        entry = (key, value, database)
        while True:
            try:
                with naming_file(self._file):  # a transaction of very many pages writes some of them before its end
                    stored = self._store(entry, append=append)
                break
            except lmdb.MapFullError:
                self._grow(len(value))
        if stored:
            self._pending.append(entry)
            self._pending_bytes += len(key) + len(value)
        return stored

    @property
    def num_entries(self) -> int:
        """Entries of the database without a name, those of the open transaction included."""
        return int(self._txn.stat()["entries"])

    def get(self, key: bytes) -> bytes | None:
        """A value of the database without a name."""
        value = self._txn.get(key)
        return None if value is None else bytes(value)

    @property
    def is_due(self) -> bool:
        """Whether the open transaction has its `commit_bytes`."""
        return self._pending_bytes >= self._commit_bytes

    def commit(self) -> None:
        """Ends the transaction and begins another."""
        while True:
            try:
                with naming_file(self._file):
                    self._txn.commit()
                break
            except lmdb.MapFullError:  # a commit needs pages too, for the free list
                self._grow(0)
        self._pending, self._pending_bytes = [], 0
        self._txn = self._env.begin(write=True)

    def finish(self) -> None:
        """Commits and makes durable what was written. LMDB stays open until `close`."""
        self.commit()
        with naming_file(self._file):
            self._env.sync(True)

    def close(self) -> None:
        """Drops what was not committed; a second call does nothing."""
        self._txn.abort()
        self._env.close()

    def _store(self, entry: tuple[bytes, bytes, bytes | None], *, append: bool = False) -> bool:
        key, value, database = entry
        named: dict[str, Any] = {} if database is None else {"db": self._databases[database]}
        # LMDB's append is an overwrite of nothing: a key that is not the largest is an error there.
        return self._txn.put(key, value, append=append, overwrite=append, **named)

    def _grow(self, wanted: int) -> None:
        while True:
            self._txn.abort()
            self._map_bytes = _whole_pages(2 * self._map_bytes + wanted)
            self._env.set_mapsize(self._map_bytes)
            self._txn = self._env.begin(write=True)
            try:
                for entry in self._pending:
                    self._store(entry)
                return
            except lmdb.MapFullError:
                continue


def _whole_pages(count: int) -> int:
    granule = mmap.ALLOCATIONGRANULARITY
    return -(-count // granule) * granule
