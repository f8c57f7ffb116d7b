"""The folder that a store is written to: on a local disk, or objects at a URL (`features/folders/object_folder.py`).

Names are relative to the folder: `part-00003.json`, `plan/part-00003.jsonl`. A file is whole or not there; a data file
comes before the manifest that names it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from roibeam.features.folders.durable_files import (
    TEMPORARY_SUFFIX,
    FileFacts,
    fsync_folder,
    read_regular_file,
    write_bytes_atomically,
)

SCRATCH_PREFIX = ".tmp-"


class OutputFolder(Protocol):
    """What writing a store needs of its folder. Plain picklable data; `str()` of it is how messages name it.

    All methods raise OSError naming the file when the folder cannot be read or written.
    """

    @property
    def local_path(self) -> Path | None:
        """The folder on this machine's disk; None for one at a URL, where nothing can be renamed or locked."""

    def where(self, name: str) -> str:
        """How messages name a file."""

    def read_bytes(self, name: str) -> bytes:
        """A whole file; FileNotFoundError where there is none."""

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes `start` to `end` of a file, fewer where it is shorter; FileNotFoundError where there is none."""

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Small files in the order given, None for those that are not there; few are in memory at a time."""

    def num_bytes(self, name: str) -> int | None:
        """The size of a file; None where there is none."""

    def listing(self, prefix: str = "") -> dict[str, FileFacts]:
        """The files directly in the folder whose names begin like this; {} also where there is no folder."""

    def put_bytes(self, name: str, data: bytes) -> None:
        """Writes or replaces a small file."""

    def put_first(self, name: str, data: bytes) -> bool:
        """As `put_bytes`, for a file that several attempts may put at once: the first one's stays. False when another's
        was there."""

    def put_many(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Files that count only when one that is put later names them: durable at the end, perhaps cut until then."""

    def put_file(self, source: Path, name: str) -> None:
        """Puts a finished file of this machine into its place, whole; `source` may be gone afterwards."""

    def written_aside(self, name: str) -> AbstractContextManager[Path]:
        """A local path to write to; when the block ends well, the file is put as `name`, else dropped."""

    def delete(self, name: str) -> None:
        """Removes a file; nothing where there is none."""

    def scratch(self, attempt: str, parent: str | None) -> AbstractContextManager[Path]:
        """An empty local folder for one attempt, removed afterwards.

        Args:
            parent: where it lies for a folder at a URL; None for the machine's temporary folder.
        """


def output_folder(store: str | os.PathLike[str] | OutputFolder) -> OutputFolder:
    """The folder at a path, or at a URL with `://` that fsspec knows; an output folder is returned as it is."""
    if isinstance(store, str) and "://" in store:
        from roibeam.features.folders.object_folder import (
            ObjectFolder,  # fsspec, which reading a local store can do without
        )

        return ObjectFolder(store)
    return LocalFolder(Path(store)) if isinstance(store, str | os.PathLike) else store


@dataclass(frozen=True)
class LocalFolder:
    """A folder of a local disk: files are written under another name, made durable, renamed."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def local_path(self) -> Path:
        return self.path

    def where(self, name: str) -> str:
        return str(self.path / name)

    def read_bytes(self, name: str) -> bytes:
        return read_regular_file(self.path / name)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        with open(self.path / name, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        for name in names:
            try:
                yield name, self.read_bytes(name)
            except FileNotFoundError:
                yield name, None

    def num_bytes(self, name: str) -> int | None:
        try:
            return os.stat(self.path / name).st_size
        except FileNotFoundError:
            return None

    def listing(self, prefix: str = "") -> dict[str, FileFacts]:
        found = {}
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    try:
                        if entry.name.startswith(prefix) and entry.is_file():
                            facts = entry.stat()
                            found[entry.name] = FileFacts(facts.st_size, facts.st_mtime)
                    except FileNotFoundError:
                        continue  # removed just now
        except FileNotFoundError:
            return {}
        return found

    def put_bytes(self, name: str, data: bytes) -> None:
        write_bytes_atomically(self.path / name, data)

    def put_first(self, name: str, data: bytes) -> bool:
        return write_bytes_atomically(self.path / name, data, first=True)

    def put_many(self, files: Iterable[tuple[str, bytes]]) -> None:
        parents: set[Path] = set()
        for name, data in files:
            path = self.path / name
            if path.parent not in parents:
                path.parent.mkdir(parents=True, exist_ok=True)
                parents.add(path.parent)
            with open(path, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for parent in parents:
            fsync_folder(parent)

    def put_file(self, source: Path, name: str) -> None:
        os.replace(source, self.path / name)
        fsync_folder(self.path)

    @contextmanager
    def written_aside(self, name: str) -> Iterator[Path]:
        aside = self.path / f".{name}.{os.getpid()}{TEMPORARY_SUFFIX}"
        try:
            yield aside
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(aside, self.path / name)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def scratch(self, attempt: str, parent: str | None) -> Iterator[Path]:
        scratch = self.path / f"{SCRATCH_PREFIX}{attempt}"
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
