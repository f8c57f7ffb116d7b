"""Writing one shard: records in any order in, one finished LMDB file with its offset index out."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from roibeam.features.folders.durable_files import fsync_folder
from roibeam.features.record.digest import content_digest, record_digest
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.layout import encode_meta, encode_regions
from roibeam.features.shard.lmdb_file import COMMIT_BYTES, GrowingLmdb, LmdbPages, ValuePosition
from roibeam.features.shard.manifest import ShardSummary
from roibeam.features.shard.offset_index import IndexRow, encode_index

META_DATABASE, REGIONS_DATABASE, INDEX_DATABASE = b"meta", b"regions", b"index"
INDEX_KEY = b"v1"


class ShardWriter:
    """Writes one data file; use it as a context manager.

    Leaving the block without `finish` deletes the file, so a failed attempt leaves nothing that could be taken for a
    shard.

    Args:
        path: the data file; must not exist (two attempts never share a file).
        planned_bytes: expected size of all values; see `GrowingLmdb`. The file only ever has the size of its pages.
        commit_bytes: values per transaction; the writer's memory is about twice this.
    Raises:
        ValueError: when `path` exists.
    """

    def __init__(self, path: str | os.PathLike[str], *, planned_bytes: int, commit_bytes: int = COMMIT_BYTES) -> None:
        if planned_bytes < 0 or commit_bytes < 1:
            raise ValueError(f"planned_bytes {planned_bytes} and commit_bytes {commit_bytes} must be positive")
        self.path = Path(path)
        self._records: dict[bytes, tuple[int, bytes]] = {}  # key -> number of regions, record digest
        self._kind: tuple[int, str] | None = None  # feature_dim, feature dtype of every record
        self._largest_key = b""
        try:
            with open(self.path, "xb"):
                pass
        except FileExistsError:
            raise ValueError(
                f"{self.path}: exists already; a data file is never written over, name another attempt"
            ) from None
        try:
            self._lmdb = GrowingLmdb(
                self.path,
                subdir=False,
                map_bytes=planned_bytes + planned_bytes // 16,
                commit_bytes=commit_bytes,
                databases=(META_DATABASE, REGIONS_DATABASE, INDEX_DATABASE),
            )
        except BaseException:
            self.path.unlink(missing_ok=True)
            raise
        self._open = True

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
        append = key > self._largest_key
        for database, value in ((META_DATABASE, meta), (REGIONS_DATABASE, regions)):
            stored = self._lmdb.put(key, value, database, append=append)
            assert stored, "duplicates were refused before"
        self._records[key] = (record.num_regions, record_digest(record))
        self._kind = kind
        self._largest_key = max(self._largest_key, key)
        if self._lmdb.is_due:
            self._lmdb.commit()

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
            self._lmdb.commit()
            rows = self._rows()
            index = encode_index(rows, feature_dim=self._kind[0], feature_dtype=self._kind[1])
            self._lmdb.put(INDEX_KEY, index, INDEX_DATABASE)
            self._lmdb.finish()
            # LMDB is copy-on-write, so adding the index moved nothing; it costs little to know instead of believing.
            if self._rows() != rows:
                raise RuntimeError(f"{self.path}: values moved while the offset index was written; please report this")
            summary = self._summary(rows, index)
            self._lmdb.close()
            self._open = False
            # Pages beyond the last one in use are not part of the tree; without them the size gives the page count.
            os.truncate(self.path, summary.data_bytes)
            with open(self.path, "r+b") as file:
                os.fsync(file.fileno())
            fsync_folder(self.path.parent)
        except BaseException:
            self.discard()
            self.path.unlink(missing_ok=True)
            raise
        return summary

    def discard(self) -> None:
        """Closes and deletes an unfinished file; does nothing after `finish`."""
        if not self._open:
            return
        self._open = False
        self._lmdb.close()
        self.path.unlink(missing_ok=True)

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"{self.path}: this writer is finished or discarded")

    def _rows(self) -> list[IndexRow]:
        """The index rows of the committed file, in key order."""
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            pages = LmdbPages(mapped, str(self.path))
            metas, regions = pages.values(META_DATABASE), pages.values(REGIONS_DATABASE)
            rows = [self._row(meta, region) for meta, region in zip(metas, regions, strict=True)]
        if [row.key for row in rows] != sorted(self._records):
            raise RuntimeError(f"{self.path}: the finished tree holds other keys than were put; please report this")
        return rows

    def _row(self, meta: ValuePosition, region: ValuePosition) -> IndexRow:
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
