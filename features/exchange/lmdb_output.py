"""Writing an LMDB folder for other programs: `data.mdb` with keys and values in the database without a name."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from features.durable_files import fsync_folder
from features.exchange.lmdb_entries import DATA_FILE_NAME
from features.growing_lmdb import GrowingLmdb

_FIRST_MAP_BYTES = 64 * 2**20
_MAX_KEY_BYTES = 511


class LmdbOutput:
    """An LMDB being written, see `GrowingLmdb`.

    Used as a context manager: after a clean exit the file is whole and on the disk.

    Args:
        folder: is made; gets `data.mdb` alone (LMDB makes its lock file when it is opened with locks).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._lmdb = GrowingLmdb(folder, subdir=True, map_bytes=_FIRST_MAP_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
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
            ValueError: when the key is there already or longer than LMDB's 511 bytes.
        """
        if not 1 <= len(key) <= _MAX_KEY_BYTES:
            raise ValueError(f"key {key[:60]!r} has {len(key)} bytes, keys of LMDB have 1 to {_MAX_KEY_BYTES}")
        if not self._lmdb.put(key, value):
            raise ValueError(f"image id {key.decode('utf-8', 'replace')!r} comes twice; ids are unique in a file")
        if self._lmdb.is_due:
            self._lmdb.commit()
