"""Writing one shard: records in any order in, one finished LMDB file with its offset index out."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb

from features.digest import content_digest, record_digest
from features.layout import encode_meta, encode_regions
from features.lmdb_pages import PAGE_HEADER_BYTES, LmdbPages, ValuePlace
from features.manifest import ShardSummary, fsync_folder
from features.offset_index import IndexRow, encode_index
from features.record import RegionRecord

META_DATABASE, REGIONS_DATABASE, INDEX_DATABASE = b"meta", b"regions", b"index"
INDEX_KEY = b"v1"
DEFAULT_COMMIT_BYTES = 256 * 2**20

_LEAF_NODE_BYTES = 8
_SLACK_PAGES = 256  # free list, main database and the copied root-to-leaf paths of one transaction
_NEW_PAGES_PER_PUT = 4  # a leaf and a branch split in each of two trees; the amortised truth is below 1


class ShardWriter:
    """Writes one data file; use it as a context manager.

    Leaving the block without `finish` deletes the file, so a failed attempt leaves nothing that could be taken for a
    shard.

    Args:
        path: the data file; must not exist (two attempts never share a file).
        planned_bytes: expected size of all values. A wrong guess costs nothing but a remapping: the map starts near it
            and is doubled when a record might not fit. The file only ever has the size of its pages.
        commit_bytes: values per transaction. LMDB holds one transaction's pages in memory, and the writer its encoded
            values (to repeat them should the map prove full), so the peak is about twice this.
    Raises:
        ValueError: when `path` exists.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, planned_bytes: int, commit_bytes: int = DEFAULT_COMMIT_BYTES
    ) -> None:
        if planned_bytes < 0 or commit_bytes < 1:
            raise ValueError(f"planned_bytes {planned_bytes} and commit_bytes {commit_bytes} must be positive")
        self.path = Path(path)
        self._commit_bytes = commit_bytes
        self._records: dict[bytes, tuple[int, bytes]] = {}  # key -> number of regions, record digest
        self._kind: tuple[int, str] | None = None  # feature_dim, feature dtype of every record
        self._largest_key = b""
        self._pending: list[tuple[bytes, bytes, bytes]] = []  # what the open transaction holds
        self._pending_bytes = 0
        try:
            with open(self.path, "xb"):
                pass
        except FileExistsError:
            raise ValueError(
                f"{self.path}: exists already; a data file is never written over, name another attempt"
            ) from None
        self._map_bytes = _map_bytes(planned_bytes + planned_bytes // 16)
        try:
            # lock=False: the name is new and ours alone, so no sidecar file and no lock of a network file system is
            # needed.
            # writemap=False: with it the file would get the apparent size of the map. sync=False: one fsync at the end.
            self._env = lmdb.open(
                os.fspath(self.path),
                subdir=False,
                map_size=self._map_bytes,
                max_dbs=3,
                lock=False,
                writemap=False,
                sync=False,
                metasync=False,
                readahead=False,
            )
            self._meta = self._env.open_db(META_DATABASE)
            self._regions = self._env.open_db(REGIONS_DATABASE)
            self._index = self._env.open_db(INDEX_DATABASE)
        except BaseException:
            self.path.unlink(missing_ok=True)
            raise
        self._page_size: int = self._env.stat()["psize"]
        self._largest_inline = (self._page_size - PAGE_HEADER_BYTES) // 2 // 2 * 2 - 2  # me_nodemax in mdb.c
        self._open = True
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.discard()

    @property
    def num_records(self) -> int:
        return len(self._records)

    def put(self, record: RegionRecord) -> None:
        """Adds one record; ascending ids pack the tree best, any order is right.

        Raises:
            ValueError: for an id that is there already, or features of another width or dtype than the records before.
        """
        self._check_open()
        key = record.image_id.encode("utf-8")
        if key in self._records:
            raise ValueError(f"{self.path}: image id {record.image_id!r} is there already; ids are unique in a store")
        kind = (record.features.shape[1], record.feature_dtype)
        if self._kind not in (None, kind):
            raise ValueError(
                f"{self.path}: record {record.image_id!r} has features {kind}, the records before it {self._kind}; "
                f"one store holds one width and dtype"
            )
        meta, regions = encode_meta(record), encode_regions(record)
        self._make_room(self._pages_for(key, meta) + self._pages_for(key, regions))
        entry = (key, meta, regions)
        try:
            self._put_values(*entry, append=key > self._largest_key)
        except lmdb.MapFullError:
            self._grow_and_repeat(entry)
        self._pending.append(entry)
        self._pending_bytes += len(meta) + len(regions)
        self._records[key] = (record.num_regions, record_digest(record))
        self._kind = kind
        self._largest_key = max(self._largest_key, key)
        if self._pending_bytes >= self._commit_bytes:
            self._commit()

    def finish(self) -> ShardSummary:
        """Commits, adds the offset index, makes the file durable and closes it.

        Returns:
            What the shard manifest needs. Without records the file is deleted and the summary is the empty one.
        """
        self._check_open()
        if self._kind is None:
            self.discard()
            return ShardSummary()
        try:
            self._commit()
            rows = self._rows()
            index = encode_index(rows, feature_dim=self._kind[0], feature_dtype=self._kind[1])
            self._put_index(index)
            # LMDB is copy-on-write, so adding the index moved nothing; it costs little to know instead of believing.
            if self._rows() != rows:
                raise RuntimeError(f"{self.path}: values moved while the offset index was written; please report this")
            summary = self._summary(rows, index)
            self._txn.abort()
            self._env.sync(True)
            self._env.close()
            self._open = False
            # Pages beyond the last one in use are not part of the tree; without them the size says the page count.
            os.truncate(self.path, summary.data_bytes)
            with open(self.path, "r+b") as file:
                os.fsync(file.fileno())
            fsync_folder(self.path.parent)
        except BaseException:
            self.discard()
            self.path.unlink(missing_ok=True)
            raise
        self._pending = []
        return summary

    def discard(self) -> None:
        """Closes and deletes an unfinished file; does nothing after `finish`."""
        if not self._open:
            return
        self._open = False
        self._txn.abort()
        self._env.close()
        self.path.unlink(missing_ok=True)

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"{self.path}: this writer is finished or discarded")

    def _begin(self) -> None:
        self._txn = self._env.begin(write=True)
        self._pending = []
        self._pending_bytes = 0
        # Upper bound of the pages in use when this transaction commits: all pages so far, a copy of every tree page,
        # and what the puts add.
        trees = [self._txn.stat(database) for database in (self._meta, self._regions)]
        tree_pages = sum(stat["branch_pages"] + stat["leaf_pages"] for stat in trees)
        self._used_pages = self._env.info()["last_pgno"] + 1 + tree_pages + _SLACK_PAGES

    def _pages_for(self, key: bytes, value: bytes) -> int:
        if _LEAF_NODE_BYTES + len(key) + len(value) <= self._largest_inline:
            return _NEW_PAGES_PER_PUT // 2
        return _NEW_PAGES_PER_PUT // 2 + (PAGE_HEADER_BYTES + len(value) - 1) // self._page_size + 1

    def _make_room(self, pages: int) -> None:
        """Grows the map when `pages` more might not fit; the transaction is committed for that, as LMDB demands."""
        if (self._used_pages + pages) * self._page_size > self._map_bytes:
            self._commit()
            while (self._used_pages + pages) * self._page_size > self._map_bytes:
                self._double_map()
        self._used_pages += pages

    def _double_map(self) -> None:
        self._txn.abort()
        self._map_bytes = _map_bytes(2 * self._map_bytes)
        self._env.set_mapsize(self._map_bytes)
        self._txn = self._env.begin(write=True)

    def _put_values(self, key: bytes, meta: bytes, regions: bytes, *, append: bool) -> None:
        for database, value in ((self._meta, meta), (self._regions, regions)):
            stored = self._txn.put(key, value, db=database, append=append, overwrite=append)
            assert stored, "duplicates were refused before"

    def _commit(self) -> None:
        while True:
            try:
                self._txn.commit()
                break
            except lmdb.MapFullError:  # a commit needs pages too, for the free list
                self._grow_and_repeat()
        self._begin()

    def _grow_and_repeat(self, *more: tuple[bytes, bytes, bytes]) -> None:
        """Doubles the map and puts the lost transaction's values again: a full map aborts the whole transaction."""
        while True:
            self._double_map()
            try:
                for entry in (*self._pending, *more):
                    self._put_values(*entry, append=False)
                return
            except lmdb.MapFullError:
                continue

    def _put_index(self, index: bytes) -> None:
        self._make_room(self._pages_for(INDEX_KEY, index))
        while True:
            try:
                self._txn.put(INDEX_KEY, index, db=self._index)
                self._txn.commit()
                break
            except lmdb.MapFullError:
                self._double_map()
        self._begin()

    def _rows(self) -> list[IndexRow]:
        """The index rows of the committed file, in key order."""
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            pages = LmdbPages(mapped, str(self.path))
            metas, regions = pages.values(META_DATABASE), pages.values(REGIONS_DATABASE)
            rows = [self._row(meta, region) for meta, region in zip(metas, regions, strict=True)]
        if [row.key for row in rows] != sorted(self._records):
            raise RuntimeError(f"{self.path}: the finished tree holds other keys than were put; please report this")
        return rows

    def _row(self, meta: ValuePlace, region: ValuePlace) -> IndexRow:
        assert meta.key == region.key
        num_regions, digest = self._records[meta.key]
        return IndexRow(meta.key, meta.offset, meta.length, region.offset, region.length, num_regions, digest)

    def _summary(self, rows: list[IndexRow], index: bytes) -> ShardSummary:
        assert self._kind is not None
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            pages = LmdbPages(mapped, str(self.path))
            (place,) = pages.values(INDEX_DATABASE)
            assert mapped[place.offset : place.offset + place.length] == index
        return ShardSummary(
            data_bytes=pages.num_pages * pages.page_size,
            page_size=pages.page_size,
            num_pages=pages.num_pages,
            index_offset=place.offset,
            index_bytes=place.length,
            num_records=len(rows),
            num_regions=sum(row.num_regions for row in rows),
            feature_dim=self._kind[0],
            feature_dtype=self._kind[1],
            first_id=rows[0].key.decode("utf-8"),
            last_id=rows[-1].key.decode("utf-8"),
            content_digest=content_digest((row.key, row.digest) for row in rows),
        )


def _map_bytes(wanted: int) -> int:
    """`wanted` and some room for an empty environment, rounded up to whole pages of the operating system."""
    granule = mmap.ALLOCATIONGRANULARITY
    return -(-max(wanted, 2 * _SLACK_PAGES * granule) // granule) * granule
