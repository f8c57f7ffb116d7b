"""Folders with a file per image: which files there are, which image each one is of, and where a new one goes.

An image's id is its file's path below the folder without the suffix, with "/" between folders.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from roibeam.features.exchange.continued import ContinuedFolder
from roibeam.features.exchange.entry_file import EntryFile, usable_id
from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.exchange.reading import Reading

_LONGEST_NAME = 255  # bytes; what ext4, XFS and NTFS take
_LOOKED_AT = 1000


class ImageFolder(EntryFile):
    """A folder, opened; formats add how a file is read.

    Args:
        path: the folder. Links in it are followed to files inside it only; other links are dead letters.
        suffix: of the files of images, such as ".npz"; other files are ignored.
        companion: ending of files that belong to another one, such as "_info.npy".
    """

    def __init__(
        self, path: Path, suffix: str, *, companion: str | None = None, reading: Reading | None = None
    ) -> None:
        super().__init__(path, reading)
        if not path.is_dir():
            raise ValueError(f"{path}: is no folder; give the folder with the {suffix} files")
        self._suffix = suffix
        self._root = os.path.realpath(path)
        ids: list[bytes] = []
        for name in sorted(_files(path, suffix, companion, self._unreadable)):
            try:
                self._check_inside(name)
                ids.append(usable_id(name.removesuffix(os.fsencode(suffix))))
            except EntryError as error:
                self._note(name.decode("utf-8", "backslashreplace"), self._shown(name), error)
        self._set_ids(ids)

    def file_of(self, entry: int) -> Path:
        """The file of an entry."""
        return self.path / os.fsdecode(self._ids[entry] + os.fsencode(self._suffix))

    def check_inside(self, path: Path) -> None:
        """EntryError when a file, links followed, lies outside the folder."""
        if os.path.commonpath([self._root, os.path.realpath(path)]) != self._root:
            raise EntryError("read", "link out of the folder", "is a link to a file outside the folder; not followed")

    def _check_inside(self, name: bytes) -> None:
        path = self.path / os.fsdecode(name)
        if path.is_symlink():
            self.check_inside(path)

    def _place(self, entry: int) -> str:
        return str(self.file_of(entry))

    def _shown(self, name: bytes) -> str:
        return f"{self.path}/{name.decode('utf-8', 'backslashreplace')}"

    def _unreadable(self, error: OSError) -> None:
        where = os.fsdecode(error.filename or b"?")
        self._note(where, where, EntryError("read", "unreadable", f"folder cannot be read: {error.strerror}"))

    def _close(self) -> None:
        """Files are opened and closed one by one."""


def first_file(path: Path, suffix: str, *, companion: str | None = None) -> Path | None:
    """Some file of an image in a folder; None when there is none among its first thousand files or `path` is none."""
    if not path.is_dir():
        return None
    looked = 0
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in names:
            looked += 1
            if name.endswith(suffix) and not (companion and name.endswith(companion)):
                return Path(folder) / name
            if looked >= _LOOKED_AT:
                return None
    return None


def write_file(output: ContinuedFolder, image_id: str, suffix: str, data: bytes) -> None:
    """Writes the file of an image; its folder is made.

    Raises:
        ValueError: when the id cannot be a path below the output's folder.
    """
    parts = image_id.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"image id {image_id!r} cannot be the path of a file; export to a format with keys, or rename")
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in [*parts[:-1], parts[-1] + suffix]):
        raise ValueError(f"image id {image_id!r}: a file name has at most {_LONGEST_NAME} bytes, {suffix} included")
    path = output.folder.joinpath(*parts[:-1], parts[-1] + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    if output.is_taken(path):
        raise ValueError(f"image id {image_id!r}: there is a file {path.name} already; do ids differ in case only?")
    output.write(path, data)


def _files(root: Path, suffix: str, companion: str | None, failed: Callable[[OSError], None]) -> Iterator[bytes]:
    """Paths below `root` of the files with this suffix; links to folders are not followed."""
    base, ending = os.fsencode(root), os.fsencode(suffix)
    other = os.fsencode(companion) if companion else None
    for folder, _, names in os.walk(base, onerror=failed):
        for name in names:
            if name.endswith(ending) and not (other and name.endswith(other)):
                yield os.path.relpath(os.path.join(folder, name), base)
