"""A filesystem of Beam over a local folder: testfs://x/y is FOLDER/x/y. Beam finds it once it is imported.

Beam has no filesystem in memory; with this one the real code of `FileSystems` runs: matching, opening, errors.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem

PREFIX = "testfs://"


class FolderFileSystem(FileSystem):
    folder: ClassVar[Path]  # where the files are
    faults: ClassVar[dict[str, int]] = {}  # how many of the next openings fail as a network does, by URL
    opened: ClassVar[dict[str, int]] = {}  # how often each URL was

    def __init__(self, pipeline_options: Any) -> None:
        super().__init__(pipeline_options)

    @classmethod
    def scheme(cls) -> str:
        return "testfs"

    def _path(self, url: str) -> Path:
        return self.folder / url.removeprefix(PREFIX)

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        head, _, tail = path.rpartition("/")
        return head, tail

    def mkdirs(self, path: str) -> None:
        self._path(path).mkdir(parents=True)

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        for path in sorted(self.folder.rglob("*")):
            url = PREFIX + str(path.relative_to(self.folder))
            if path.is_file() and url.startswith(dir_or_prefix):
                yield FileMetadata(url, path.stat().st_size)

    def create(self, path: str, mime_type: str = "", compression_type: str = CompressionTypes.AUTO) -> BinaryIO:
        return self._path(path).open("wb")

    def open(self, path: str, mime_type: str = "", compression_type: str = CompressionTypes.AUTO) -> BinaryIO:
        self.opened[path] = self.opened.get(path, 0) + 1
        if self.faults.get(path, 0):
            self.faults[path] -= 1
            raise ConnectionResetError("the far side hung up")
        return self._path(path).open("rb")

    def copy(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        for source, target in zip(source_file_names, destination_file_names, strict=True):
            shutil.copyfile(self._path(source), self._path(target))

    def rename(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        for source, target in zip(source_file_names, destination_file_names, strict=True):
            os.replace(self._path(source), self._path(target))

    def exists(self, path: str) -> bool:
        return self._path(path).is_file()

    def size(self, path: str) -> int:
        return self._path(path).stat().st_size

    def last_updated(self, path: str) -> float:
        return self._path(path).stat().st_mtime

    def checksum(self, path: str) -> str:
        return str(self.last_updated(path))

    def metadata(self, path: str) -> FileMetadata:
        if not self.exists(path):
            raise BeamIOError(f"no such file {path}")
        return FileMetadata(path, self.size(path), self.last_updated(path))

    def delete(self, paths: list[str]) -> None:
        for path in paths:
            self._path(path).unlink()
