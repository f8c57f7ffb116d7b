"""Writing an LMDB folder for other programs: `data.mdb` with keys and values in the database without a name."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb

from roibeam.features.counted import counted
from roibeam.features.exchange.lmdb_entries import DATA_FILE_NAME
from roibeam.features.folders.durable_files import fsync_folder
from roibeam.features.shard.growing_lmdb import COMMIT_BYTES, GrowingLmdb

log = logging.getLogger(__name__)
_OTHER = "{folder}, left by a stopped export, is of another store or layout; it is removed: run the command again"
_FIRST_MAP_BYTES = 64 * 2**20
_MAX_KEY_BYTES = 511


class LmdbOutput:
    """An LMDB being written, see `GrowingLmdb`.

    Used as a context manager: after a clean exit the file is whole and on the disk. What a stopped writer committed
    stays, as long as the same entries are put again in the same order.

    Args:
        folder: is made; gets `data.mdb` alone (LMDB makes its lock file when it is opened with locks).
        commit_bytes: see `GrowingLmdb`.
    """

    def __init__(self, folder: Path, *, commit_bytes: int = COMMIT_BYTES) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        for other in folder.iterdir():
            if other.name != DATA_FILE_NAME:  # a stopped export of another kind
                shutil.rmtree(other) if other.is_dir() else other.unlink()
        try:
            self._lmdb = self._open(commit_bytes)
        except lmdb.Error:  # killed before LMDB had made it
            (folder / DATA_FILE_NAME).unlink()
            self._lmdb = self._open(commit_bytes)
        self._num_kept = self._lmdb.num_entries
        self._num_same = 0
        if self._num_kept:
            log.info("%s of what a stopped export left stay", counted(self._num_kept, "entry", "entries"))

    def _open(self, commit_bytes: int) -> GrowingLmdb:
        return GrowingLmdb(
            self._folder, subdir=True, map_bytes=_FIRST_MAP_BYTES, commit_bytes=commit_bytes, durable=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self._num_same < self._num_kept:
                    raise ValueError(_OTHER.format(folder=self._folder))
                self._lmdb.finish()
        finally:
            self._lmdb.close()
        if kind is None:
            with open(self._folder / DATA_FILE_NAME, "r+b") as file:
                os.fsync(file.fileno())
            fsync_folder(self._folder)

    def put(self, key: bytes, value: bytes) -> None:
        """Adds an entry.

        Raises:
            ValueError: when the key is there already or longer than LMDB's 511 bytes, or a stopped writer left other
                entries.
        """
        if not 1 <= len(key) <= _MAX_KEY_BYTES:
            raise ValueError(f"key {key[:60]!r} has {len(key)} bytes, keys of LMDB have 1 to {_MAX_KEY_BYTES}")
        if self._num_same < self._num_kept:
            if self._lmdb.get(key) != value:
                raise ValueError(_OTHER.format(folder=self._folder))
            self._num_same += 1
            return
        if not self._lmdb.put(key, value):
            raise ValueError(f"image id {key.decode('utf-8', 'replace')!r} comes twice; ids are unique in a file")
        if self._lmdb.is_due:
            self._lmdb.commit()
