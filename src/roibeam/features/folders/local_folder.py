"""Folder of a store on a local disk, and the choice between it and a folder at a URL.

Files are written under another name, made durable, renamed. `output_folder` imports the folder of objects, and with it
fsspec, for a URL only.
"""

import functools
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.folders.durable_files import (
    TEMPORARY_SUFFIX,
    fsync_folder,
    naming_file,
    read_regular_file,
    write_bytes_atomically,
)
from roibeam.features.folders.folder_protocol import FileFacts, OutputFolder

SCRATCH_PREFIX = ".tmp-"
log = logging.getLogger(__name__)


@functools.lru_cache(maxsize=256)  # once for a store
def note_links(folder: str) -> None:
    """Logs which files of a store are links out of its folder. They are followed: caches of hubs and stores
    over several disks have such links, but so may a stranger's store."""
    with os.scandir(folder) as entries:
        links = [entry.path for entry in entries if entry.is_symlink()]
    root = os.path.realpath(folder) + os.sep
    if outside := sorted(path for path in links if not os.path.realpath(path).startswith(root)):
        log.warning(
            "%s: links lead out of this store, %d of its files, such as %s -> %s; they are followed",
            folder, len(outside), os.path.basename(outside[0]), os.path.realpath(outside[0]),
        )  # fmt: skip


@dataclass(frozen=True)
class LocalFolder:
    """An `OutputFolder` of a local disk."""

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
            # No link is followed: the folder may be a stranger's, and a link lead to a file of this user.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with naming_file(path), open(os.open(path, flags, 0o666), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for parent in parents:
            fsync_folder(parent)

    def put_file(self, source: Path, name: str) -> None:
        os.replace(source, self.path / name)
        fsync_folder(self.path)

    @contextmanager
    def local_file(self, name: str, num_bytes: int) -> Iterator[Path]:
        yield self.path / name

    @contextmanager
    def atomic_path(self, name: str) -> Iterator[Path]:
        aside = self.path / f".{name}.{os.getpid()}{TEMPORARY_SUFFIX}"
        try:
            with naming_file(self.path / name):
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


def is_at_url(store: str | os.PathLike[str]) -> bool:
    """Whether a folder's name is a URL."""
    return isinstance(store, str) and "://" in store


def output_folder(store: str | os.PathLike[str] | OutputFolder, scratch: str | None = None) -> OutputFolder:
    """The folder at a path, or at a URL with `://` that fsspec knows; an output folder is returned as it is.

    Args:
        scratch: folder of this machine in which files of a URL lie while they are read or written; None for the
            machine's temporary folder.
    """
    if isinstance(store, str) and is_at_url(store):
        # Here, not above: it needs fsspec, which reading a local store can do without.
        from roibeam.features.folders.object_folder import ObjectFolder

        return ObjectFolder(store, scratch_parent=scratch)
    return LocalFolder(Path(store)) if isinstance(store, str | os.PathLike) else store
