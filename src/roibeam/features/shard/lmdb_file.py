"""LMDB files below the library's interface: places of values in a shard's data file, and the offset index made of them.

LMDB gives values, not their place in the file. `LmdbPages` walks the tree of one database in a finished file (LMDB 0.9,
64-bit, little-endian; layout as in liblmdb/mdb.c of OpenLDAP: MDB_page, MDB_node, MDB_meta, MDB_db). Every number is
checked against the file before it is followed, so a hostile file gives ValueError, not a hang. `GrowingLmdb` reserves
no terabyte of address space, and its file has the size of its pages.

The offset index has for each image id the places of its two values and its digest. It is made after the last copy, from
the finished tree, and stored as one LMDB value, so that reading needs no B-tree walk and one range per value can be
prefetched. Rows are in key order (bytes); a lookup is a binary search over sorted hashes, then a comparison of keys.
"""

import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import lmdb
import numpy as np

from roibeam.features.folders.durable_files import naming_file
from roibeam.features.record.region_record import DIGEST_BYTES, FEATURE_DTYPES
from roibeam.features.shard.layout import DTYPE_CODES, DTYPE_NAMES, align_up, checksum, hash_key
from roibeam.features.shard.manifest import ShardManifest

PAGE_HEADER_BYTES = 16
_META_MAGIC = 0xBEEFC0DE
_META_VERSION = 1  # MDB_DATA_VERSION of the 0.9 series
_BRANCH, _LEAF, _OVERFLOW, _META = 0x01, 0x02, 0x04, 0x08
_DIRTY_BITS = 0x10 | 0x4000 | 0x8000  # P_DIRTY, P_LOOSE, P_KEEP: marks of a running writer
_BIG_DATA, _SUB_DATABASE, _DUPLICATES = 0x01, 0x02, 0x04
_NODE_HEADER_BYTES = 8
_NO_PAGE = 2**64 - 1
_FIRST_DATA_PAGE = 2
_MAX_DEPTH = 32  # CURSOR_STACK in mdb.c

_PAGE = struct.Struct("<QHHHH")  # page number, pad, flags, lower, upper (overflow pages: lower|upper = page count u32)
_NODE = struct.Struct("<HHHH")  # low, high, flags, key length
_PAGE_NUMBER = struct.Struct("<Q")
# magic, version, address, map size, then two MDB_db (free list, main), last page, transaction id
_META_BODY = struct.Struct("<IIQQ48s48sQQ")
_DATABASE = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch pages, leaf pages, overflow pages, entries, root


class FileBytes(Protocol):
    """Bytes of a whole file by position: an mmap, a memoryview, or a lazy reader."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


class ValuePosition(NamedTuple):
    """One value of a database: `offset` is its first byte's place in the file."""

    key: bytes
    offset: int
    length: int


class _Database(NamedTuple):
    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class LmdbPages:
    """The pages of a finished LMDB file; ValueError when the file is not LMDB 0.9, or shorter than its own page count.

    Args:
        buffer: the whole file; it is read, never kept beyond this object.
        name: how errors call the file.
    """

    def __init__(self, buffer: FileBytes, name: str) -> None:
        self._buffer = buffer
        self._name = name
        first = self._meta_at(0)
        page_size = _Database._make(_DATABASE.unpack(first[4])).pad  # mm_psize lives in the free list's md_pad
        if not 512 <= page_size <= 65536 or page_size & (page_size - 1):
            raise self._damaged(f"page size {page_size}")
        self.page_size = page_size
        second = self._meta_at(page_size)
        # liblmdb finds the second meta page by the first one's page size, and then goes by the newest one's.
        if (other := _Database._make(_DATABASE.unpack(second[4])).pad) != page_size:
            raise self._damaged(f"page size {page_size} in one meta page, {other} in the other")
        newest = max(first, second, key=lambda meta: meta[7])
        self.num_pages: int = newest[6] + 1
        if self.num_pages * page_size > len(buffer):
            raise self._damaged(f"{self.num_pages} pages of {page_size} bytes in a file of {len(buffer)} bytes")
        self._main = _Database._make(_DATABASE.unpack(newest[5]))

    def values(self, database: bytes) -> Iterator[ValuePosition]:
        """Every value of a named database, in key order; ValueError when there is none of this name."""
        return self._walk(self._named(database))

    def main_values(self) -> Iterator[ValuePosition]:
        """Every value of the database without a name, which most programs write to; it must hold no named one."""
        return self._walk(self._main)

    def _named(self, name: bytes) -> _Database:
        found: _Database | None = None
        for node, flags, offset, length in self._nodes(self._main):  # all of them: liblmdb's search may touch any
            if node != name:
                continue
            if flags != _SUB_DATABASE or length != _DATABASE.size:
                raise self._damaged(f"{name!r} is not a named database")
            found = _Database._make(self._unpack(_DATABASE, offset))
        if found is None:
            raise ValueError(f"{self._name}: holds no database {name.decode()!r}; was it written by roibeam?")
        return found

    def _walk(self, database: _Database) -> Iterator[ValuePosition]:
        total = 0
        for key, flags, offset, length in self._nodes(database):
            if flags & (_SUB_DATABASE | _DUPLICATES):
                raise self._damaged(f"key {key!r} holds a database, not a value")
            total += length  # a thousand keys that share one large value would make reading all of them endless
            if total > self.num_pages * self.page_size:
                raise self._damaged("its values overlap: together they are larger than the file")
            yield ValuePosition(key, self._overflow_value(offset, length) if flags & _BIG_DATA else offset, length)

    def _nodes(self, database: _Database) -> Iterator[tuple[bytes, int, int, int]]:
        """(key, flags, offset, length) of every leaf node; of an overflow value, `offset` finds its page number."""
        if database.flags:
            raise self._damaged(f"database flags {database.flags:#x}: duplicates or integer keys are not supported")
        if database.root == _NO_PAGE:
            if database.entries:
                raise self._damaged(f"{database.entries} entries but no root page")
            return
        if not 1 <= database.depth <= _MAX_DEPTH:
            raise self._damaged(f"tree of depth {database.depth}")
        # (page, level, smallest key allowed in it) still to visit. A page enters once per pointer, so counting those
        # visited and waiting bounds time and memory for a cyclic or diamond-shaped tree.
        stack: list[tuple[int, int, bytes]] = [(database.root, 1, b"")]
        visits = entries = 0
        previous: bytes | None = None
        while stack:
            page, level, lowest = stack.pop()
            visits += 1
            # A search goes by the keys of the branch pages: one that does not part its neighbours hides records.
            if previous is not None and lowest and lowest <= previous:
                raise self._damaged(f"branch key {lowest!r} of page {page} is not above {previous!r} before it")
            is_leaf = level == database.depth
            start, pointers, upper = self._tree_page(page, _LEAF if is_leaf else _BRANCH)
            if not is_leaf:
                if visits + len(stack) + len(pointers) > self.num_pages:
                    raise self._damaged("pages point at each other in a circle")
                children = [self._child(start, pointer, upper) for pointer in pointers]
                children[0] = (children[0][0], lowest)  # LMDB takes the first child for whatever is below the second
                stack.extend((child, level + 1, key) for child, key in reversed(children))
                continue
            for pointer in pointers:
                key, flags, offset, length = self._leaf_node(start, pointer, upper)
                if key < lowest or (previous is not None and key <= previous):
                    raise self._damaged(f"key {key!r} on page {page} is out of order")
                previous = key
                entries += 1
                yield key, flags, offset, length
        if entries != database.entries:
            raise self._damaged(f"{entries} entries found, {database.entries} promised")

    def _tree_page(self, page: int, kind: int) -> tuple[int, tuple[int, ...], int]:
        """File offset, node pointers and lowest allowed pointer of a branch or leaf page."""
        start = self._page_start(page)
        number, _, flags, lower, upper = self._unpack(_PAGE, start)
        if number != page or flags & ~_DIRTY_BITS != kind:
            raise self._damaged(f"page {page} calls itself {number} with flags {flags:#x}")
        if not PAGE_HEADER_BYTES < lower <= upper <= self.page_size or lower % 2:
            raise self._damaged(f"page {page} has bounds {lower}, {upper}")
        count = (lower - PAGE_HEADER_BYTES) // 2
        return start, self._unpack(struct.Struct(f"<{count}H"), start + PAGE_HEADER_BYTES), upper

    def _node(self, start: int, pointer: int, upper: int) -> tuple[int, int, int, int]:
        if not upper <= pointer <= self.page_size - _NODE_HEADER_BYTES:
            raise self._damaged(f"node at {pointer} of page {start // self.page_size}")
        low, high, flags, key_length = self._unpack(_NODE, start + pointer)
        if pointer + _NODE_HEADER_BYTES + key_length > self.page_size:
            raise self._damaged(f"key of {key_length} bytes at {pointer} of page {start // self.page_size}")
        return low | high << 16, flags, key_length, start + pointer + _NODE_HEADER_BYTES

    def _child(self, start: int, pointer: int, upper: int) -> tuple[int, bytes]:
        """Page number of a child, and the smallest key that it may hold."""
        low, flags, key_length, key_at = self._node(start, pointer, upper)
        return low | flags << 32, bytes(self._buffer[key_at : key_at + key_length])

    def _leaf_node(self, start: int, pointer: int, upper: int) -> tuple[bytes, int, int, int]:
        length, flags, key_length, key_at = self._node(start, pointer, upper)
        data_at = key_at + key_length
        inline = 8 if flags & _BIG_DATA else length
        if data_at + inline > start + self.page_size:
            raise self._damaged(f"value of {length} bytes at {pointer} of page {start // self.page_size}")
        return bytes(self._buffer[key_at:data_at]), flags, data_at, length

    def _overflow_value(self, pointer_at: int, length: int) -> int:
        (page,) = self._unpack(_PAGE_NUMBER, pointer_at)
        start = self._page_start(page)
        number, _, flags, low, high = self._unpack(_PAGE, start)
        pages = (PAGE_HEADER_BYTES + length - 1) // self.page_size + 1
        fits = page + pages <= self.num_pages
        if number != page or flags & ~_DIRTY_BITS != _OVERFLOW or (low | high << 16) < pages or not fits:
            raise self._damaged(f"overflow page {page} does not hold a value of {length} bytes")
        return start + PAGE_HEADER_BYTES

    def _page_start(self, page: int) -> int:
        if not _FIRST_DATA_PAGE <= page < self.num_pages:
            raise self._damaged(f"points at page {page} of {self.num_pages}")
        return page * self.page_size

    def _meta_at(self, start: int) -> tuple[Any, ...]:
        if start + PAGE_HEADER_BYTES + _META_BODY.size > len(self._buffer):
            raise self._damaged(f"ends after {len(self._buffer)} bytes, inside its first pages")
        flags = self._unpack(_PAGE, start)[2]
        meta = self._unpack(_META_BODY, start + PAGE_HEADER_BYTES)
        if not flags & _META or meta[0] != _META_MAGIC:
            raise self._damaged("no LMDB meta page at its start")
        if meta[1] != _META_VERSION:
            raise self._damaged(f"LMDB data version {meta[1]}, this reads {_META_VERSION}")
        return meta

    def _unpack(self, form: struct.Struct, start: int) -> tuple[Any, ...]:
        return form.unpack(self._buffer[start : start + form.size])

    def _damaged(self, what: str) -> ValueError:
        return ValueError(f"{self._name}: not a whole LMDB 0.9 file ({what}); copy it again or make it anew")


# A fifth less processor time than with 256 MiB, whose memory is new to the system and in no cache.
COMMIT_BYTES = 16 * 2**20
_LEAST_MAP_BYTES = 2**21  # an empty environment and the tree pages of a small transaction


class GrowingLmdb:
    """Puts entries in transactions. LMDB refuses what does not fit its map and drops the whole transaction; then the
    map is doubled here, and the transaction's entries are put again.

    Args:
        path: a file, or with `subdir` a folder that gets `data.mdb`; new (or left by a stopped writer of the same, and
            `durable`), with no other writer: there is no lock file.
        map_bytes: expected size of the file. A wrong guess costs repeated transactions, half of them at most.
        commit_bytes: bytes of keys and values in a transaction. LMDB holds its pages in memory, and this object its
            entries (to put them again), so the peak is about twice this.
        databases: named databases; none means the one without a name.
        durable: each commit is on the disk when the next one begins, so that what a killed writer leaves can be opened
            even after a power cut.
    Raises:
        OSError: naming the file, from each method that writes, when the disk is full or broken.
    """

    def __init__(
        self,
        path: Path,
        *,
        subdir: bool,
        map_bytes: int,
        commit_bytes: int = COMMIT_BYTES,
        databases: Sequence[bytes] = (),
        durable: bool = False,
    ) -> None:
        self._map_bytes = _whole_pages(max(map_bytes, _LEAST_MAP_BYTES))
        self._commit_bytes = commit_bytes
        # writemap=False: with it the file would get the apparent size of the map. Not durable: one fsync at the end.
        self._file = path / "data.mdb" if subdir else path
        with naming_file(self._file):
            self._env = lmdb.open(
                os.fspath(path), subdir=subdir, map_size=self._map_bytes, max_dbs=len(databases), lock=False,
                writemap=False, sync=durable, metasync=durable, readahead=False,
            )  # fmt: skip
            self._databases = {name: self._env.open_db(name) for name in databases}
        self._txn = self._env.begin(write=True)
        self._pending: list[tuple[bytes, bytes, bytes | None]] = []  # what the open transaction holds
        self._pending_bytes = 0

    def put(self, key: bytes, value: bytes, database: bytes | None = None, *, append: bool = False) -> bool:
        """Adds an entry; False when the key is there already. `append`: it is larger than all before it, which packs
        the tree best."""
        entry = (key, value, database)
        while True:
            try:
                with naming_file(self._file):  # a transaction of very many pages writes some of them before its end
                    stored = self._store(entry, append=append)
                break
            except lmdb.MapFullError:
                self._grow(len(value))
        if stored:
            self._pending.append(entry)
            self._pending_bytes += len(key) + len(value)
        return stored

    @property
    def num_entries(self) -> int:
        """Entries of the database without a name, those of the open transaction included."""
        return int(self._txn.stat()["entries"])

    def get(self, key: bytes) -> bytes | None:
        """A value of the database without a name."""
        value = self._txn.get(key)
        return None if value is None else bytes(value)

    @property
    def is_due(self) -> bool:
        """Whether the open transaction has its `commit_bytes`."""
        return self._pending_bytes >= self._commit_bytes

    def commit(self) -> None:
        """Ends the transaction and begins another."""
        while True:
            try:
                with naming_file(self._file):
                    self._txn.commit()
                break
            except lmdb.MapFullError:  # a commit needs pages too, for the free list
                self._grow(0)
        self._pending, self._pending_bytes = [], 0
        self._txn = self._env.begin(write=True)

    def finish(self) -> None:
        """Commits and makes durable what was written. LMDB stays open until `close`."""
        self.commit()
        with naming_file(self._file):
            self._env.sync(True)

    def close(self) -> None:
        """Drops what was not committed; a second call does nothing."""
        self._txn.abort()
        self._env.close()

    def _store(self, entry: tuple[bytes, bytes, bytes | None], *, append: bool = False) -> bool:
        key, value, database = entry
        named: dict[str, Any] = {} if database is None else {"db": self._databases[database]}
        # LMDB's append is an overwrite of nothing: a key that is not the largest is an error there.
        return self._txn.put(key, value, append=append, overwrite=append, **named)

    def _grow(self, num_bytes: int) -> None:
        while True:
            self._txn.abort()
            self._map_bytes = _whole_pages(2 * self._map_bytes + num_bytes)
            self._env.set_mapsize(self._map_bytes)
            self._txn = self._env.begin(write=True)
            try:
                for entry in self._pending:
                    self._store(entry)
                return
            except lmdb.MapFullError:
                continue


def _whole_pages(count: int) -> int:
    granule = mmap.ALLOCATIONGRANULARITY
    return -(-count // granule) * granule


INDEX_MAGIC = b"RBIX"
INDEX_VERSION = 1
# magic, version, feature dtype, reserved u8, num_records, feature_dim, key blob bytes, num_regions (all rows),
# reserved u64, checksum
_HEADER = struct.Struct("<4sHBBIIQQQQ")
_CHECKED = 40  # header bytes before the checksum


class IndexRow(NamedTuple):
    """One record: its key, the places of its two values (bytes from the start of the file), its size and digest."""

    key: bytes
    meta_offset: int
    meta_length: int
    region_offset: int
    region_length: int
    num_regions: int
    digest: bytes


class OffsetIndex:
    """The index of one shard, as views of its bytes.

    Args:
        buffer: the index value exactly, nothing before or after; a view of it is kept.
        file_bytes: size of the data file that the offsets point into.
        name: how errors call the file.
        check: verify the checksum, which reads the whole index (about 100 bytes per record).
    Raises:
        ValueError: when it is not an index of a known version, or its length does not fit its counts. Row contents are
            checked as they are read, so a hostile index cannot point outside the file.
    """

    def __init__(self, buffer: memoryview, *, file_bytes: int, name: str, check: bool = True) -> None:
        self._name = name
        self._file_bytes = file_bytes
        if len(buffer) < _HEADER.size:
            raise self._damaged(f"has {len(buffer)} bytes, its header alone has {_HEADER.size}")
        fields = _HEADER.unpack_from(buffer)
        magic, version, dtype_code, _, num_records, feature_dim, blob_bytes, num_regions, _, stored = fields
        if magic != INDEX_MAGIC:
            raise self._damaged(f"starts with {magic!r}, expected {INDEX_MAGIC!r}")
        if version != INDEX_VERSION:
            raise ValueError(
                f"{name}: offset index has version {version}, this roibeam reads {INDEX_VERSION}; "
                f"read it with the version that wrote it"
            )
        places, end = _arrays(num_records, blob_bytes)
        if len(buffer) != _HEADER.size + end:
            need = _HEADER.size + end
            raise self._damaged(f"has {len(buffer)} bytes, {num_records} records need {need}")
        if dtype_code not in DTYPE_NAMES or feature_dim < 1:
            raise self._damaged(f"has feature dtype code {dtype_code}, feature_dim {feature_dim}")
        if check and checksum([buffer[:_CHECKED], buffer[_HEADER.size :]]) != stored:
            raise self._damaged("has a wrong checksum")
        self.num_records: int = num_records
        self.num_regions: int = num_regions
        self.feature_dim: int = feature_dim
        self.feature_dtype: str = DTYPE_NAMES[dtype_code]
        self.numpy_dtype = FEATURE_DTYPES[self.feature_dtype]
        payload = buffer[_HEADER.size :]
        # As Python's integers: a numpy scalar for each number would cost more than the lookup. Cast, not an array's
        # `.data`: that cannot be indexed where a hostile manifest puts the index at an odd byte.
        codes: Any = {key: dtype.char for key, (dtype, _, _) in places.items()}  # of native size, as memoryview wants
        view = {key: payload[at : at + n * t.itemsize].cast(codes[key]) for key, (t, n, at) in places.items()}
        self._hashes, self._hash_rows = view["key_hashes"], view["hash_rows"]
        self._key_offsets, self._key_blob = view["key_offsets"], view["key_blob"]
        self._meta_offsets, self._meta_lengths = view["meta_offsets"], view["meta_lengths"]
        self._region_offsets, self._region_lengths = view["region_offsets"], view["region_lengths"]
        self._num_regions = view["num_regions"]
        self._digests = view["digests"]

    def find(self, key: bytes) -> int:
        """The row of `key`, or -1."""
        key_hash, hashes, num_records = hash_key(key), self._hashes, self.num_records
        at = bisect_left(hashes, key_hash)
        while at < num_records and hashes[at] == key_hash:
            row = self._hash_rows[at]
            if row >= num_records:
                raise self._damaged(f"names row {row} of {num_records}")
            if self.key(row) == key:
                return row
            at += 1
        return -1

    def check_found(self, row: int) -> None:
        """Raises ValueError when a lookup of the row's key leads to another row, or to none."""
        key = self.key(row)
        if self.find(key) != row:
            raise self._damaged(f"does not lead to record {key.decode('utf-8', 'replace')!r}, which it holds")

    def key(self, row: int) -> bytes:
        start, end = self._key_offsets[row], self._key_offsets[row + 1]
        if not start <= end <= len(self._key_blob):
            raise self._damaged(f"puts key {row} at {start} to {end} of {len(self._key_blob)}")
        return self._key_blob[start:end].tobytes()

    def digest(self, row: int) -> bytes:
        return self._digests[DIGEST_BYTES * row : DIGEST_BYTES * (row + 1)].tobytes()

    def ranges(self, row: int) -> tuple[int, int, int, int]:
        """First byte and end of the META value in the file, first byte and end of the REGION value."""
        meta_start, region_start = self._meta_offsets[row], self._region_offsets[row]
        meta_end, region_end = meta_start + self._meta_lengths[row], region_start + self._region_lengths[row]
        if meta_end > self._file_bytes or region_end > self._file_bytes:
            start, end = (meta_start, meta_end) if meta_end > self._file_bytes else (region_start, region_end)
            raise self._damaged(f"puts a value of row {row} at {start} to {end} of {self._file_bytes}")
        return meta_start, meta_end, region_start, region_end

    def num_regions_at(self, row: int) -> int:
        return self._num_regions[row]

    def rows(self) -> Iterator[IndexRow]:
        for row in range(self.num_records):
            meta_start, meta_end, region_start, region_end = self.ranges(row)
            sizes = (meta_start, meta_end - meta_start, region_start, region_end - region_start)
            yield IndexRow(self.key(row), *sizes, self.num_regions_at(row), self.digest(row))

    def check_counts(self, manifest: ShardManifest, *, advice: str) -> None:
        """Raises ValueError, ending in `advice`, when index and manifest do not count the same."""
        got = (self.num_records, self.num_regions, self.feature_dim, self.feature_dtype)
        want = (manifest.num_records, manifest.num_regions, manifest.feature_dim, manifest.feature_dtype)
        if got != want:
            raise ValueError(
                f"{self._name}: its index counts records, regions, feature width and dtype {got}, its manifest {want}; "
                f"{advice}"
            )

    def _damaged(self, what: str) -> ValueError:
        return ValueError(f"{self._name}: offset index {what}; copy the file again or re-extract its shard")


def encode_index(rows: Sequence[IndexRow], *, feature_dim: int, feature_dtype: str) -> bytes:
    """The index value of `rows`, which are in ascending key order."""
    keys = [row.key for row in rows]
    assert all(left < right for left, right in pairwise(keys)), "rows are in key order"
    hashes = np.array([hash_key(key) for key in keys], np.uint64)
    order = np.argsort(hashes, kind="stable")
    lengths = np.array([0, *(len(key) for key in keys)], np.uint64)
    values = {
        "key_hashes": hashes[order],
        "hash_rows": order,
        "key_offsets": np.cumsum(lengths),
        "key_blob": np.frombuffer(b"".join(keys), np.uint8),
        "meta_offsets": [row.meta_offset for row in rows],
        "meta_lengths": [row.meta_length for row in rows],
        "region_offsets": [row.region_offset for row in rows],
        "region_lengths": [row.region_length for row in rows],
        "num_regions": [row.num_regions for row in rows],
        "digests": np.frombuffer(b"".join(row.digest for row in rows), np.uint8),
    }
    places, end = _arrays(len(rows), sum(map(len, keys)))
    payload = bytearray(end)
    for name, (dtype, count, start) in places.items():
        array = np.asarray(values[name]).astype(dtype)
        assert array.shape == (count,), name
        payload[start : start + count * dtype.itemsize] = array.tobytes()
    counts = (len(rows), feature_dim, sum(map(len, keys)), sum(row.num_regions for row in rows))
    head = _HEADER.pack(INDEX_MAGIC, INDEX_VERSION, DTYPE_CODES[feature_dtype], 0, *counts, 0, 0)[:_CHECKED]
    return head + checksum([head, bytes(payload)]).to_bytes(8, "little") + payload


def _arrays(num_records: int, blob_bytes: int) -> tuple[dict[str, tuple[np.dtype, int, int]], int]:
    """name -> (dtype, count, start in the payload), starts multiples of 64, in stored order; the payload's end."""
    columns = (
        ("key_hashes", "<u8", num_records),
        ("hash_rows", "<u4", num_records),
        ("key_offsets", "<u8", num_records + 1),
        ("key_blob", "u1", blob_bytes),
        ("meta_offsets", "<u8", num_records),
        ("meta_lengths", "<u4", num_records),
        ("region_offsets", "<u8", num_records),
        ("region_lengths", "<u8", num_records),
        ("num_regions", "<u2", num_records),
        ("digests", "u1", num_records * DIGEST_BYTES),
    )
    places: dict[str, tuple[np.dtype, int, int]] = {}
    end = 0
    for name, code, count in columns:
        start = align_up(end)
        dtype = np.dtype(code)
        places[name] = (dtype, count, start)
        end = start + count * dtype.itemsize
    return places, end
