"""The keys and values of an LMDB file of strangers, read without liblmdb.

liblmdb trusts its file: a cut one ends the process with SIGBUS, a hostile one with SIGSEGV. Here every page is read
with `pread` and checked by `LmdbPages`, so whatever the file holds, and whatever happens to it meanwhile, is an error.
"""

from __future__ import annotations

import bisect
import os
from array import array
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES
from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.shard.lmdb_pages import LmdbPages

DATA_FILE_NAME = "data.mdb"
# A record of one region takes more. Without this a file of tiny entries would fill ten times its size of memory.
_SMALLEST_ENTRY_BYTES, _ENTRIES_FREE = 128, 1000
_BLOCK_BYTES = 4096
_KEPT_BLOCKS = 64
_META_MAGIC = (0xBEEFC0DE).to_bytes(4, "little")
_META_MAGIC_AT = 16


class LmdbEntries:
    """The database without a name of an LMDB file, opened: where each value is.

    Args:
        path: the folder that holds `data.mdb` (how LMDB writes by default), or the file itself.
    Attributes:
        keys: in key order (order of bytes), each once; about 100 bytes of memory for one.
    Raises:
        ValueError: when it is no whole LMDB file, or holds far more entries than a feature file of its size could.
    """

    def __init__(self, path: Path) -> None:
        self.path = data_file(path)
        if self.path.exists() and not self.path.is_file():  # opening a pipe would wait for its writer
            raise ValueError(f"{self.path}: is no regular file; give the folder of an LMDB")
        self._file = open(self.path, "rb", buffering=0)
        try:
            pread = _Pread(self._file.fileno(), str(self.path))
            limit = _ENTRIES_FREE + len(pread) // _SMALLEST_ENTRY_BYTES
            self.keys: list[bytes] = []
            self._offsets, self._lengths = array("q"), array("q")
            for key, offset, length in LmdbPages(pread, str(self.path)).main_values():
                if len(self.keys) >= limit:
                    raise ValueError(
                        f"{self.path}: holds over {counted(limit, 'entry', 'entries')} in {len(pread):,} bytes, too "
                        f"many for a feature file"
                    )
                self.keys.append(key)
                self._offsets.append(offset)
                self._lengths.append(length)
            self._check_apart()
        except BaseException:
            self._file.close()
            raise

    def _check_apart(self) -> None:
        """ValueError when two keys have their values in the same bytes: one of them has another image's."""
        starts = np.frombuffer(self._offsets, np.int64)
        order = starts.argsort()
        ends = (starts + np.frombuffer(self._lengths, np.int64))[order]
        shared = np.flatnonzero(ends[:-1] > starts[order][1:])
        if len(shared):
            raise ValueError(
                f"{self.path}: key {self.keys[order[shared[0]]][:60]!r} shares its value with another; copy it again"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def find(self, key: bytes) -> int | None:
        """Position of a key in `keys`."""
        at = bisect.bisect_left(self.keys, key)
        return at if at < len(self.keys) and self.keys[at] == key else None

    def length(self, entry: int) -> int:
        """Bytes of a value."""
        return self._lengths[entry]

    def value(self, entry: int) -> bytes:
        """The bytes of a value; EntryError when they are more than `MAX_ENTRY_BYTES`, or the file became shorter."""
        length = self._lengths[entry]
        if length > MAX_ENTRY_BYTES:
            raise EntryError(
                "read", "entry too large", f"has {length:,} bytes, an entry has at most {MAX_ENTRY_BYTES:,}"
            )
        data = os.pread(self._file.fileno(), length, self._offsets[entry])
        if len(data) != length:
            raise EntryError("read", "changed", "the file was cut while it was read; run the command again")
        return data


def first_values(path: Path, count: int) -> dict[bytes, bytes]:
    """The first entries in key order, to know a file by: {} when it is no LMDB or damaged there; never raises.

    Reads the pages that lead to them and no others, however large the file is.
    """
    found: dict[bytes, bytes] = {}
    try:
        if is_lmdb(path):
            with open(data_file(path), "rb", buffering=0) as file:
                pages = LmdbPages(_Pread(file.fileno(), str(path)), str(path))
                for key, offset, length in islice(pages.main_values(), count):
                    if length <= MAX_ENTRY_BYTES:
                        found[key] = os.pread(file.fileno(), length, offset)
    except (OSError, ValueError):
        return found
    return found


def data_file(path: Path) -> Path:
    """The file of an LMDB that was given as a folder or a file."""
    return path / DATA_FILE_NAME if path.is_dir() else path


def is_lmdb(path: Path) -> bool:
    """Whether the path is an LMDB, by the first bytes of its file; never raises."""
    try:
        if not data_file(path).is_file():
            return False
        with open(data_file(path), "rb") as file:
            return file.read(_META_MAGIC_AT + len(_META_MAGIC)).endswith(_META_MAGIC)
    except OSError:
        return False


class _Pread:
    """A file's bytes by position, its last few blocks kept: a page is read for each of the numbers in it."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self._name = descriptor, name
        self._size = os.fstat(descriptor).st_size
        self._blocks: dict[int, bytes] = {}

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, end = part.start, min(part.stop, self._size)
        first = start // _BLOCK_BYTES
        if end <= (first + 1) * _BLOCK_BYTES:
            return self._block(first)[start - first * _BLOCK_BYTES : end - first * _BLOCK_BYTES]
        data = os.pread(self._descriptor, end - start, start)
        if len(data) != end - start:
            raise self._cut()
        return data

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            wanted = min(_BLOCK_BYTES, self._size - number * _BLOCK_BYTES)
            block = os.pread(self._descriptor, wanted, number * _BLOCK_BYTES)
            if len(block) != wanted:
                raise self._cut()
            if len(self._blocks) >= _KEPT_BLOCKS:
                self._blocks.clear()
            self._blocks[number] = block
        return block

    def _cut(self) -> ValueError:
        return ValueError(f"{self._name}: was cut while it was read; copy it again")
