"""Files that go on where a stopped writer left them: what is there stays as far as it is what would be written again.

Nothing notes how far the stopped writer was. The writer that goes on makes all bytes anew and compares them with those
that are there, so neither a torn end, nor a lost page, nor what another store left can get into the file, and the
file has the bytes of an undisturbed export.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from roibeam.features.counted import byte_count, counted

log = logging.getLogger(__name__)


class ContinuedFile:
    """A file being written from its first byte to its last; a context manager.

    Args:
        path: the file, empty or with what a stopped writer left.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "r+b")
        self._kept = 0
        self._compares = path.stat().st_size > 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._compares:
                self._go_on()
        finally:
            self._file.close()

    def write(self, data: bytes | bytearray) -> None:
        if self._compares:
            if self._file.read(len(data)) == data:
                self._kept += len(data)
                return
            self._go_on()
        self._file.write(data)

    def _go_on(self) -> None:
        """Cuts off what is not as it should be."""
        self._compares = False
        self._file.seek(self._kept)
        self._file.truncate()
        log.info("%s of what a stopped export left stay, the rest is written", byte_count(self._kept))


class ContinuedFolder:
    """A folder of files, each written once; a context manager. At its end there is nothing else in it.

    Args:
        folder: empty, or with what a stopped writer left.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._left = {
            os.path.relpath(os.path.join(inner, name), folder)
            for inner, _, names in os.walk(folder)
            for name in names
        }  # fmt: skip
        self._num_left, self._num_kept = len(self._left), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None or not self._num_left:
            return
        for name in self._left:
            (self.folder / name).unlink()
        for inner, _, _ in os.walk(self.folder, topdown=False):
            if inner != os.fspath(self.folder) and not os.listdir(inner):
                os.rmdir(inner)
        kept = counted(self._num_kept, "file")
        log.info("%s of what a stopped export left stayed, the others were written", kept)

    def write(self, path: Path, data: bytes) -> None:
        """Writes a file below the folder.

        Raises:
            FileExistsError: if it was written before.
        """
        name = os.path.relpath(path, self.folder)
        if name in self._left:
            self._left.remove(name)
            if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
                self._num_kept += 1
                return
            path.unlink()
        with open(path, "xb") as file:
            file.write(data)

    def is_taken(self, path: Path) -> bool:
        """Whether a file of this export has the path already."""
        return path.exists() and os.path.relpath(path, self.folder) not in self._left
