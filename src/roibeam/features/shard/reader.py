"""Reader of one finished shard: through Python's own mmap on this disk, by ranges of bytes at a URL.

Records are found by the shard's offset index. LMDB's map dies with its environment, and views into it crash the
process; Python's refuses to close while views live. For a shard at a URL the index is read once, each record by its
range.
"""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from roibeam.features.folders.folder_protocol import UNKNOWN_BYTES, OutputFolder
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.layout import RegionMeta, decode, decode_meta
from roibeam.features.shard.lmdb_file import IndexRow, LmdbPages, OffsetIndex
from roibeam.features.shard.manifest import ShardManifest


class ShardReader:
    """One data file, bounded by its manifest.

    Args:
        check_index: verify the checksum of the offset index (reads about 100 bytes per record).
    Raises:
        FileNotFoundError: when the file is missing.
        ValueError: naming the file, when its size, pages or index are not what the manifest says. The size is compared
            before the file is mapped, so that a truncated file is this error and not a SIGBUS later.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: ShardManifest, *, check_index: bool = True) -> None:
        self.path = Path(path)
        self.manifest = manifest
        self._map: mmap.mmap | None = None
        self._index: OffsetIndex | None = None
        start, end = manifest.index_offset, manifest.index_offset + manifest.index_bytes
        if (
            manifest.page_size * manifest.num_pages != manifest.data_bytes
            or not 0 < start <= end <= manifest.data_bytes
        ):
            raise ValueError(
                f"{self.path}: its manifest gives {manifest.num_pages} pages of {manifest.page_size} bytes, "
                f"{manifest.data_bytes} bytes in all and an index from {start} to {end}, which cannot be; "
                f"restore the manifest or re-extract the shard"
            )
        if self.path.exists() and not self.path.is_file():  # a pipe would be waited for
            raise ValueError(f"{self.path}: is not a regular file; copy it or re-extract shard {manifest.shard}")
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path}: the data file of shard {manifest.shard} is missing; copy it or re-extract the shard"
            ) from None
        with file:
            got = os.fstat(file.fileno()).st_size
            if got != manifest.data_bytes:
                raise ValueError(
                    f"{self.path}: has {got} bytes, its manifest says {manifest.data_bytes}; the file was cut or "
                    f"changed (a copy that stopped?): copy it again or re-extract the shard"
                )
            self._map = mmap.mmap(file.fileno(), manifest.data_bytes, access=mmap.ACCESS_READ)
        # A disk reads megabytes ahead, mostly of records that are not needed.
        self._map.madvise(mmap.MADV_RANDOM)
        try:
            check_pages(LmdbPages(self._map, str(self.path)), manifest, str(self.path))
            self._open_index(check=check_index)
        except BaseException:
            self._index = self._map = None  # not closed: the traceback still holds views of it
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:  # its traceback may hold views of the map; a BufferError would hide what went wrong
            self._index = self._map = None

    def __len__(self) -> int:
        return self._opened()[1].num_records

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and self.find(image_id) >= 0

    def __iter__(self) -> Iterator[RegionRecord]:
        """Records in key order, with arrays of their own."""
        return self.scan()

    def scan(self, *, copy: bool = True, check: bool = False) -> Iterator[RegionRecord]:
        """Every record in key order; arguments and errors as `get`. Checked ones must be found by their keys too, else
        no lookup is made."""
        self._opened()[0].madvise(mmap.MADV_SEQUENTIAL)
        try:
            for row in range(len(self)):
                if check:
                    self._opened()[1].check_found(row)
                yield self.record_at(row, copy=copy, check=check)
        finally:
            if self._map is not None:
                self._map.madvise(mmap.MADV_RANDOM)

    def get(self, image_id: str, *, copy: bool = True, check: bool = False) -> RegionRecord:
        """One record.

        Args:
            copy: False gives read-only views into the mapped file; `close` refuses while they live.
            check: verify the record's checksums and field rules too.
        Raises:
            KeyError: when the shard does not hold `image_id`.
            ValueError: when the stored bytes are not a record, or the reader is closed.
        """
        return self.record_at(self.row_of(image_id), image_id=image_id, copy=copy, check=check)

    def find(self, image_id: str) -> int:
        """The position of `image_id` in key order, which the methods `..._at` take; -1 where it is not in the shard."""
        index = self._index
        if index is None:
            index = self._opened()[1]
        # An id with a lone surrogate cannot have been stored; it is absent, not an encoding error.
        return index.find(image_id.encode("utf-8", "surrogatepass"))

    def row_of(self, image_id: str) -> int:
        """`find`, but KeyError where the image is not in the shard."""
        row = self.find(image_id)
        if row < 0:
            raise KeyError(f"image id {image_id!r} is not in {self.path}")
        return row

    def meta_at(self, row: int, *, check: bool = False) -> RegionMeta:
        """Data needed to choose regions, without touching the features' pages; errors as `get`."""
        mapped, index = self._opened()
        start, end = index.ranges(row)[:2]
        try:
            meta = decode_meta(mapped[start:end], check=check)
        except ValueError as error:
            image_id = self.record_key(row).decode("utf-8", "replace")
            raise ValueError(f"{self.path}: record {image_id!r}: {error}") from None
        self._check_size(index, row, meta.num_regions, meta.feature_dim)
        return meta

    def num_regions_at(self, row: int) -> int:
        """Number of regions of a record, from the index alone."""
        return self._opened()[1].num_regions_at(row)

    def prefetch_at(self, row: int, *, large: bool = True) -> None:
        """Prefetches a record's values, not `large` only what `meta_at` reads, and returns at once; errors as `get`."""
        mapped, index = self._opened()
        ranges = index.ranges(row)
        for start, end in (ranges[:2], ranges[2:])[: 2 if large else 1]:
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.madvise(mmap.MADV_WILLNEED, first, end - first)

    def record_at(
        self, row: int, *, image_id: str | None = None, copy: bool = True, check: bool = False
    ) -> RegionRecord:
        """The record at position `row` in key order; arguments and errors as `get`. `image_id` is that of the record,
        where the caller has just found the row by it."""
        mapped, index = self._map, self._index
        if mapped is None or index is None:
            mapped, index = self._opened()
        meta_start, meta_end, start, end = index.ranges(row)
        view = memoryview(mapped)
        key = index.key(row) if image_id is None else image_id
        try:
            record = decode(key, view[meta_start:meta_end], view[start:end], copy=copy, check=check)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        features = record.features
        if features.shape != (index.num_regions_at(row), index.feature_dim):
            self._check_size(index, row, *features.shape)
        if features.dtype is not index.numpy_dtype and features.dtype != index.numpy_dtype:
            raise self._misfit(row, f"{record.feature_dtype} features", index.feature_dtype)
        return record

    @property
    def buffer(self) -> mmap.mmap:
        """The mapped file, for those who check its pages; views of it keep `close` from working."""
        return self._opened()[0]

    def record_key(self, row: int) -> bytes:
        """The key at position `row` in key order."""
        return self._opened()[1].key(row)

    def values_at(self, row: int) -> tuple[bytes, memoryview]:
        """META value (copied) and REGION value (a view) at position `row`, undecoded."""
        mapped, index = self._opened()
        meta_start, meta_end, start, end = index.ranges(row)
        return mapped[meta_start:meta_end], memoryview(mapped)[start:end]

    def ids(self) -> Iterator[str]:
        """Image ids in key order (order of their UTF-8 bytes)."""
        for row in range(len(self)):
            key = self.record_key(row)
            try:
                yield key.decode("utf-8")
            except UnicodeDecodeError:
                raise ValueError(f"{self.path}: key {key!r} is not UTF-8; copy it again or re-extract") from None

    def digests(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """(key, record digest) in key order, of rows `start` to `stop`, from the index alone."""
        for row in range(start, len(self) if stop is None else min(stop, len(self))):
            index = self._opened()[1]
            yield index.key(row), index.digest(row)

    def index_rows(self) -> Iterator[IndexRow]:
        """Every row of the offset index, in key order."""
        yield from self._opened()[1].rows()

    def close(self) -> None:
        """Unmaps the file; a second call does nothing. Raises BufferError while arrays made with `copy=False` are
        alive; the reader stays open and can be closed later."""
        if self._map is None:
            return
        self._index = None
        try:
            self._map.close()
        except BufferError:
            self._open_index(check=False)
            raise BufferError(
                f"{self.path}: arrays read with copy=False are still alive; drop them first, or drop the reader instead"
            ) from None
        self._map = None

    def _open_index(self, *, check: bool) -> None:
        assert self._map is not None
        manifest = self.manifest
        value = memoryview(self._map)[manifest.index_offset : manifest.index_offset + manifest.index_bytes]
        index = OffsetIndex(value, file_bytes=manifest.data_bytes, name=str(self.path), check=check)
        index.check_counts(
            manifest, advice="the two do not belong together: restore one of them or re-extract the shard"
        )
        self._index = index

    def _check_size(self, index: OffsetIndex, row: int, num_regions: int, feature_dim: int) -> None:
        """A value that is sound in itself may still be another's: the index knows what belongs to this row."""
        if num_regions != index.num_regions_at(row) or feature_dim != index.feature_dim:
            want = f"{index.num_regions_at(row)} of {index.feature_dim}"
            raise self._misfit(row, f"{num_regions} regions of {feature_dim} values", want)

    def _misfit(self, row: int, got: str, want: str) -> ValueError:
        return ValueError(
            f"{self.path}: record {self.record_key(row).decode('utf-8', 'replace')!r} has {got}, the offset index says "
            f"{want}; the file was changed: copy it again or re-extract the shard"
        )

    def _opened(self) -> tuple[mmap.mmap, OffsetIndex]:
        if self._map is None or self._index is None:
            raise ValueError(f"{self.path}: this reader is closed")
        return self._map, self._index


def check_pages(pages: LmdbPages, manifest: ShardManifest, where: str) -> None:
    """ValueError when a data file has other pages than in its manifest."""
    if (pages.page_size, pages.num_pages) != (manifest.page_size, manifest.num_pages):
        raise ValueError(
            f"{where}: has {pages.num_pages} pages of {pages.page_size} bytes, its manifest says "
            f"{manifest.num_pages} of {manifest.page_size}; the file was changed after it was finished"
        )


class ShardObject:
    """Shard at a URL, for a look at some records; to read many, stage it (`features/reading/staging.py`).

    Args:
        folder: where the data file lies.
        check_file: also look at the size of the file and at its first pages, as `ShardReader` does.
    Raises:
        FileNotFoundError: when the data file is missing.
        ValueError: naming the file, when its index is not what the manifest says.
    """

    def __init__(self, folder: OutputFolder, manifest: ShardManifest, *, check_file: bool = False) -> None:
        assert manifest.data_file is not None
        self._folder, self._name = folder, manifest.data_file
        where = folder.where(manifest.data_file)
        if check_file:
            _check_pages(folder, manifest, where)
        start, end = manifest.index_offset, manifest.index_offset + manifest.index_bytes
        data = folder.read_range(manifest.data_file, start, end)
        if len(data) != manifest.index_bytes:
            raise ValueError(
                f"{where}: has {len(data)} bytes from {start} on, its manifest says {manifest.index_bytes}"
            )
        self._index = OffsetIndex(memoryview(data), file_bytes=manifest.data_bytes, name=where)
        self._index.check_counts(manifest, advice="delete the manifest and extract the shard again")

    def __len__(self) -> int:
        return self._index.num_records

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and self._index.find(image_id.encode("utf-8", "surrogatepass")) >= 0

    def record_key(self, row: int) -> bytes:
        """The key at position `row` in key order."""
        return self._index.key(row)

    def digests(self) -> Iterator[tuple[bytes, bytes]]:
        """(key, record digest) in key order."""
        for row in range(len(self)):
            yield self._index.key(row), self._index.digest(row)

    def record_at(self, row: int) -> RegionRecord:
        """The record at position `row` in key order, its checksums verified; two reads."""
        meta_start, meta_end, start, end = self._index.ranges(row)
        meta = self._folder.read_range(self._name, meta_start, meta_end)
        regions = self._folder.read_range(self._name, start, end)
        try:
            return decode(self._index.key(row), meta, memoryview(regions), copy=True, check=True)
        except ValueError as error:
            raise ValueError(f"{self._folder.where(self._name)}: {error}") from None


def _check_pages(folder: OutputFolder, manifest: ShardManifest, where: str) -> None:
    assert manifest.data_file is not None
    got = folder.num_bytes(manifest.data_file)
    if got is None:
        raise FileNotFoundError(f"{where}: the data file of shard {manifest.shard} is missing; copy it there again")
    if got not in (manifest.data_bytes, UNKNOWN_BYTES):
        raise ValueError(
            f"{where}: has {got} bytes, its manifest says {manifest.data_bytes}; the file was cut or changed (a copy "
            f"that stopped?): copy it there again"
        )
    check_pages(LmdbPages(FileRanges(folder, manifest.data_file, manifest.data_bytes), where), manifest, where)


class FileRanges:
    """A file as `LmdbPages` takes it, each piece read when it is needed."""

    def __init__(self, folder: OutputFolder, name: str, num_bytes: int) -> None:
        self._folder, self._name, self._num_bytes = folder, name, num_bytes

    def __len__(self) -> int:
        return self._num_bytes

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._num_bytes)
        return self._folder.read_range(self._name, start, max(start, stop))


def shard_digests(
    folder: OutputFolder, manifest: ShardManifest, *, rows_at_once: int = 256
) -> Iterator[tuple[bytes, bytes]]:
    """(key, record digest) of a shard in key order, wherever it lies; at a URL its index alone is read, and kept.

    A file is open only while a block of rows is read: merging thousands of shards holds one such stream each, and open
    maps would run into `ulimit -n`.
    """
    assert manifest.data_file is not None
    if folder.local_path is None:
        yield from ShardObject(folder, manifest).digests()
        return
    for start in range(0, manifest.num_records, rows_at_once):
        with ShardReader(folder.local_path / manifest.data_file, manifest, check_index=start == 0) as reader:
            block = list(reader.digests(start, start + rows_at_once))
        yield from block
