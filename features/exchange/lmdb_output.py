"""Writing an LMDB folder for other programs: `data.mdb` with keys and values in the database without a name."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb

from features.exchange.lmdb_entries import DATA_FILE_NAME
from features.manifest import fsync_folder

_FIRST_MAP_BYTES = 64 * 2**20
_COMMIT_BYTES = 64 * 2**20
_MAX_KEY_BYTES = 511


class LmdbOutput:
    """An LMDB being written; the map grows as needed, so no terabyte is asked for and the file has its true size.

    Used as a context manager: after a clean exit the file is whole and on the disk.

    Args:
        folder: is made; gets `data.mdb` alone (LMDB makes its lock file when it is opened with locks).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._map_bytes = _FIRST_MAP_BYTES
        # lock=False: the folder is new and ours alone. sync=False: one fsync at the end.
        self._env = lmdb.open(
            os.fspath(folder), map_size=self._map_bytes, lock=False, sync=False, metasync=False, readahead=False
        )
        self._txn = self._env.begin(write=True)
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._commit()
                self._env.sync(True)
            self._txn.abort()
        finally:
            self._env.close()
        if kind is None:
            with open(self._folder / DATA_FILE_NAME, "r+b") as file:
                os.fsync(file.fileno())
            fsync_folder(self._folder)

    def put(self, key: bytes, value: bytes) -> None:
        """Adds an entry.

        Raises:
            ValueError: when the key is there already or longer than LMDB's 511 bytes.
        """
        if not 1 <= len(key) <= _MAX_KEY_BYTES:
            raise ValueError(f"key {key[:60]!r} has {len(key)} bytes, keys of LMDB have 1 to {_MAX_KEY_BYTES}")
        while True:
            try:
                stored = self._txn.put(key, value, overwrite=False)
                break
            except lmdb.MapFullError:
                self._grow(len(value))
        if not stored:
            raise ValueError(f"image id {key.decode('utf-8', 'replace')!r} comes twice; ids are unique in a file")
        self._pending.append((key, value))
        self._pending_bytes += len(value)
        if self._pending_bytes >= _COMMIT_BYTES:
            self._commit()

    def _commit(self) -> None:
        while True:
            try:
                self._txn.commit()
                break
            except lmdb.MapFullError:  # a commit needs pages too, for the free list
                self._grow(0)
        self._pending, self._pending_bytes = [], 0
        self._txn = self._env.begin(write=True)

    def _grow(self, wanted: int) -> None:
        """Doubles the map and puts the lost transaction's entries again: a full map aborts the whole transaction."""
        while True:
            self._txn.abort()
            granule = mmap.ALLOCATIONGRANULARITY
            self._map_bytes = -(-max(2 * self._map_bytes, self._map_bytes + 2 * wanted) // granule) * granule
            self._env.set_mapsize(self._map_bytes)
            self._txn = self._env.begin(write=True)
            try:
                for key, value in self._pending:
                    self._txn.put(key, value, overwrite=False)
                return
            except lmdb.MapFullError:
                continue
