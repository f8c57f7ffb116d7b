"""Files that a command reads by a path of this machine: where they are, or copies of those at a URL for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.counted import byte_count, counted
from roibeam.features.folders.folder_choice import is_at_url
from roibeam.features.folders.scratch_folder import scratch_folder
from roibeam.pipelines.common.console.progress import waiting

_COPIED_AT_ONCE = 16


@dataclass(frozen=True)
class BorrowedFiles:
    """A file or folder.

    Attributes:
        path: to read it by.
        location: how messages and stores name it: its absolute path or URL.
        num_bytes: that it takes; those of an LMDB map that were never written do not count.
        changed_ns: when the newest file was changed, in ns.
    """

    path: Path
    location: str
    num_bytes: int
    changed_ns: int


@contextmanager
def borrowed_files(place: str | os.PathLike[str], *, scratch: str | None = None) -> Iterator[BorrowedFiles]:
    """A file or folder by a local path. What is at a URL is copied to a scratch folder, which is gone afterwards and
    needs room for all of it; nothing is held in memory.

    Args:
        scratch: parent of that folder; None for the machine's temporary folder.
    Raises:
        FileNotFoundError, OSError: naming the URL that cannot be read.
        ValueError: when its driver is missing.
    """
    if not is_at_url(place):
        yield BorrowedFiles(Path(place), os.path.abspath(place), *_size_and_time(Path(place)))
        return
    # Not above: it needs fsspec, which reading a local file can do without.
    from roibeam.features.folders.object_folder import ObjectFolder

    url = str(place).rstrip("/")
    parent, _, name = url.rpartition("/")
    with scratch_folder(scratch) as folder:
        outer = ObjectFolder(parent)
        path, facts = folder / name, outer.file_facts(name)
        found = {"": facts} if facts is not None else ObjectFolder(url).files_below()
        if not found:
            raise FileNotFoundError(f"{url}: no such file or folder; is the URL right?")
        num_bytes = sum(each.num_bytes for each in found.values())

        def copy(below: str) -> None:
            target = path / below
            target.parent.mkdir(parents=True, exist_ok=True)
            outer.download(f"{name}/{below}".rstrip("/"), target, found[below].num_bytes)

        with (
            waiting(f"copying {counted(len(found), 'file')}, {byte_count(num_bytes)}, from {url}"),
            ThreadPoolExecutor(_COPIED_AT_ONCE, thread_name_prefix="copy") as pool,
        ):
            for done in [pool.submit(copy, below) for below in found]:
                done.result()
        changed_ns = int(max(each.written_at for each in found.values()) * 1e9)
        yield BorrowedFiles(path, url, num_bytes, changed_ns)


def _size_and_time(source: Path) -> tuple[int, int]:
    files = (os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names)
    states = [os.stat(source)] if source.is_file() else map(os.lstat, files)
    num_bytes = newest = 0
    for state in states:
        num_bytes += min(state.st_size, state.st_blocks * 512)
        newest = max(newest, state.st_mtime_ns)
    return num_bytes, newest
