"""LMDB files of other programs: keys and values read without liblmdb, pickled dicts per image, and such files written.

liblmdb trusts its file: a cut one ends the process with SIGBUS, a hostile one with SIGSEGV. Here every page is read
with `pread` and checked by `LmdbPages`, so whatever the file holds, and whatever happens to it meanwhile, is an error.
Written is `data.mdb` with keys and values in the database without a name. ViLBERT's and MMF's files hold a pickled dict
per image, and a pickled list of the images under `keys`.
"""

import bisect
import logging
import os
from array import array
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Self

import lmdb
import numpy as np

from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES, FeatureFile, usable_id
from roibeam.features.exchange.entry_record import EntryError, described
from roibeam.features.exchange.export_output import remove_others
from roibeam.features.exchange.npy_files import plain_pickle
from roibeam.features.folders.durable_files import fsync_folder
from roibeam.features.pickle_values import UnsafePickleError
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.safe_pickle import loads_pickle
from roibeam.features.shard.lmdb_file import COMMIT_BYTES, GrowingLmdb, LmdbPages
from roibeam.messages import plural, printable

DATA_FILE_NAME = "data.mdb"
# A record of one region takes more. Without this a file of tiny entries would fill ten times its size of memory.
_SMALLEST_ENTRY_BYTES, _ENTRIES_FREE = 128, 1000
_BLOCK_BYTES = 4096
_KEPT_BLOCKS = 64


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
                        f"{self.path}: holds over {plural(limit, 'entry', 'entries')} in {len(pread):,} bytes, too "
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
        if data_file(path).is_file():  # opening a pipe would wait for its writer
            with open(data_file(path), "rb", buffering=0) as file:
                pages = LmdbPages(_Pread(file.fileno(), str(path)), str(path))
                for key, offset, length in islice(pages.main_values(), count):
                    if length <= MAX_ENTRY_BYTES:
                        found[key] = os.pread(file.fileno(), length, offset)
    except (OSError, ValueError):
        return found
    return found


def data_file(path: Path) -> Path:
    return path / DATA_FILE_NAME if path.is_dir() else path


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
            num_bytes = min(_BLOCK_BYTES, self._size - number * _BLOCK_BYTES)
            block = os.pread(self._descriptor, num_bytes, number * _BLOCK_BYTES)
            if len(block) != num_bytes:
                raise self._cut()
            if len(self._blocks) >= _KEPT_BLOCKS:
                self._blocks.clear()
            self._blocks[number] = block
        return block

    def _cut(self) -> ValueError:
        return ValueError(f"{self._name}: was cut while it was read; copy it again")


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
        remove_others(folder, [DATA_FILE_NAME])
        try:
            self._lmdb = self._open(commit_bytes)
        except lmdb.Error:  # killed before LMDB had made it
            (folder / DATA_FILE_NAME).unlink()
            self._lmdb = self._open(commit_bytes)
        self._num_kept = self._lmdb.num_entries
        self._num_same = 0
        if self._num_kept:
            log.info("%s of what a stopped export left stay", plural(self._num_kept, "entry", "entries"))

    def _open(self, commit_bytes: int) -> GrowingLmdb:
        return GrowingLmdb(
            self._folder, subdir=True, map_bytes=_FIRST_MAP_BYTES, commit_bytes=commit_bytes, durable=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
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
        """Adds an entry; ValueError when the key is there already or longer than LMDB's 511 bytes, or a stopped writer
        left other entries."""
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


KEY_LIST = "keys"
_FIRST_ENTRIES = 3
_UNREAD = "not read"


class LmdbFile(FeatureFile):
    """An LMDB with an entry per image, opened. Values are found by their position in the file: the keys stay there,
    `_numbers` says which are images.

    Attributes:
        list_key: key of the list of all images; no image.
        suffix: of the keys of images, which their ids do not have.
    """

    list_key: bytes
    suffix = b""

    def _open(self) -> None:
        self._entries = LmdbEntries(self.path)

    def _scan(self) -> None:
        keys = ((number, key) for number, key in enumerate(self._entries.keys) if key != self.list_key)
        self._numbers = self._take_ids(keys, lambda key: usable_id(key.removesuffix(self.suffix)))

    def _value(self, entry: int) -> bytes:
        return self._entries.value(self._numbers[entry])

    def _place(self, entry: int) -> str:
        return self._place_of(self._entries.keys[self._numbers[entry]])

    def _close(self) -> None:
        self._entries.close()


class PickledEntries(LmdbFile):
    """One such file, opened.

    An id that the key list names and the file does not hold is in `letters`. One that the list does not name is an
    entry like any other: the consumers' code does not see it, but its values are there.

    Attributes:
        key_list: for `details`: "keys"; `ABSENT` when there is none (its writer was killed: their code cannot read such
            a file); "not read" when it is over 64 MiB.
    """

    list_key = KEY_LIST.encode()
    _ids_agree: bool | None = None

    def _scan(self) -> None:
        self.key_list = self._read_key_list()
        super()._scan()

    def _item(self, entry: int) -> dict[str, Any]:
        return item_in(self._value(entry))

    def _check_id(self, entry: int, stated: Any) -> None:
        """Refuses a dict of another image, in a file whose first dict names the image as its key does (some do not)."""
        text = stated.decode("utf-8", "replace") if isinstance(stated, bytes) else stated
        agree = isinstance(text, (str, int)) and str(text).encode("utf-8", "surrogatepass") == self._ids[entry]
        if self._ids_agree and not agree:
            raise EntryError(
                "record", "another image id", f"its value says it is of {printable(described(stated))}; is it damaged?"
            )
        if self._ids_agree is None:
            self._ids_agree = agree

    def _read_key_list(self) -> str:
        number = self._entries.find(self.list_key)
        if number is None:
            return ABSENT
        try:
            names = loads_pickle(self._entries.value(number), source=f"{self.path}:{KEY_LIST}")
        except EntryError:
            return _UNREAD
        except UnsafePickleError as error:
            raise ValueError(str(error)) from None
        if not isinstance(names, list):
            raise ValueError(f"{self.path}:{KEY_LIST}: must be a list of image ids, got {described(names)}")
        for name in names:
            key = name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name
            if not isinstance(key, bytes):
                raise ValueError(f"{self.path}:{KEY_LIST}: must be a list of image ids, {described(name)} is in it")
            if self._entries.find(key) is None:
                missing = EntryError("read", "missing", f"the list {KEY_LIST!r} names it, the file has no such entry")
                self._note(key[:600], missing)
        return KEY_LIST


def item_in(value: bytes) -> dict[str, Any]:
    """The dict in the value of an entry; EntryError when it is no pickle of one."""
    try:
        item = loads_pickle(value, source="its value")
    except UnsafePickleError as error:
        raise EntryError("decode", "bad pickle", str(error)) from None
    if not isinstance(item, dict):
        raise EntryError("decode", "wrong type", f"its value must be a pickled dict, got {described(item)}")
    return item


def field_names(item: dict[str, Any]) -> str:
    """The first names in a dict, for an error."""
    return printable(", ".join(str(name)[:40] for name in list(item)[:12]))


def first_item(path: Path) -> dict[str, Any]:
    """A dict from among the first entries of an LMDB, to know the format by; {} when there is none. Never raises."""
    for key, value in first_values(path, _FIRST_ENTRIES).items():
        if key != KEY_LIST.encode():
            try:
                return item_in(value)
            except EntryError:
                continue
    return {}


def write_pickled_entries(
    records: Iterable[RegionRecord], path: Path, item: Callable[[RegionRecord], dict[str, Any]]
) -> None:
    """Writes `item(record)` under each record's image id, and the list of the ids. None may be without regions: the
    consumers divide by their number."""
    names: list[bytes] = []
    with LmdbOutput(path) as output:
        for record in records:
            if record.image_id == KEY_LIST:
                raise ValueError(f"image id {KEY_LIST!r} is where this format keeps its list of ids; rename the image")
            names.append(record.image_id.encode("utf-8"))
            output.put(names[-1], plain_pickle(item(record)))
        output.put(KEY_LIST.encode(), plain_pickle(names))
