"""Output of an export: files and folders that are whole or not there, and that go on where a stopped writer left them.

They are written under another name beside their place, then renamed. No note says how far a stopped writer was: the
writer that goes on makes all bytes anew and compares them with those that are there, so neither a torn end, nor a lost
page, nor what another store left can get into the file, and it has the bytes of an undisturbed export.
"""

import fcntl
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX, fsync_folder, naming_file
from roibeam.features.folders.folder_protocol import lock_file
from roibeam.messages import byte_count, plural

log = logging.getLogger(__name__)
_LONGEST_NAME = 255 - len("..00000000") - len(TEMPORARY_SUFFIX)  # bytes; what ext4, XFS and NTFS take


@contextmanager
def atomic_path(path: Path, *, folder: bool = False, goes_on: bool = False, replaces: bool = False) -> Iterator[Path]:
    """A place to write to that becomes `path` when the block ends well, and is removed when it does not.

    What a killed writer of the same `path` left is removed first: a writer holds a lock on its place while it lives.

    Args:
        folder: the place is an empty folder instead of an empty file.
        goes_on: the writer can go on with what a killed one left, see `ContinuedFile`: then that is the place, and
            Ctrl-C leaves it too.
    Raises:
        ValueError: when `path` exists already (also when it appeared meanwhile), or its name is too long.
        OSError: when its folder cannot be written.
    """
    check_free(path, replaces=replaces)
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise ValueError(f"{path}: its name has over {_LONGEST_NAME} bytes; choose a shorter one")
    left = _leftover(path, folder=folder, usable=goes_on)
    descriptor, aside = left or _new_place(path, folder=folder)
    try:
        if left:
            log.info("going on with what a stopped export left: %s", aside)
        with naming_file(path):
            yield aside
        if folder:
            os.sync()  # thousands of small files: one call for all of them
        else:
            os.fsync(descriptor)
        check_free(path, replaces=replaces)
        os.rename(aside, path)
        fsync_folder(path.parent)
    except BaseException as error:
        if not (goes_on and isinstance(error, KeyboardInterrupt)):
            _remove(aside)
        raise
    finally:
        os.close(descriptor)


def _new_place(path: Path, *, folder: bool) -> tuple[int, Path]:
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    if folder:
        aside.mkdir()
    else:
        aside.touch(exist_ok=False)
    descriptor = os.open(aside, os.O_RDONLY)
    try:
        lock_file(descriptor, fcntl.LOCK_EX, path.parent)
    except ValueError:
        os.close(descriptor)
        _remove(aside)
        raise
    return descriptor, aside


def check_free(path: Path, *, replaces: bool = False) -> None:
    """Raises ValueError when there is something at a path already, or no folder to put it in."""
    if path.is_dir() or ((path.exists() or path.is_symlink()) and not replaces):
        raise ValueError(f"{path} exists already; choose another name, or delete it first")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it first")


def _leftover(path: Path, *, folder: bool, usable: bool) -> tuple[int, Path] | None:
    """Output that a killed writer of `path` left, locked, if it is `usable` and of the right kind; removes the rest."""
    found: tuple[int, Path] | None = None
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}")
    for left in [each for each in path.parent.iterdir() if pattern.fullmatch(each.name)]:
        try:
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # its writer ended just now
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = left.exists()  # else its writer gave it its name just now
            if there and usable and found is None and left.is_dir() == folder:
                found = descriptor, left
                continue
            if there:
                _remove(left)
        except BlockingIOError:
            pass  # its writer lives
        os.close(descriptor)
    return found


def remove_others(folder: Path, kept: Iterable[str]) -> None:
    """Removes what a stopped export of another layout left in a folder."""
    for left in {*folder.iterdir()} - {folder / name for name in kept}:
        _remove(left)


def _remove(aside: Path) -> None:
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink(missing_ok=True)


class ContinuedFile:
    """A file, empty or with what a stopped writer left, being written from its first byte to its last; a context
    manager."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "r+b")
        self._kept = 0
        self._compares = path.stat().st_size > 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
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
    """A folder, empty or with what a stopped writer left, of files that are each written once; a context manager. At
    its end there is nothing else in it."""

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

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None or not self._num_left:
            return
        for name in self._left:
            (self.folder / name).unlink()
        for inner, _, _ in os.walk(self.folder, topdown=False):
            if inner != os.fspath(self.folder) and not os.listdir(inner):
                os.rmdir(inner)
        kept = plural(self._num_kept, "file")
        log.info("%s of what a stopped export left stayed, the others were written", kept)

    def write(self, path: Path, data: bytes) -> None:
        """Writes a file below the folder; FileExistsError if it was written before."""
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
