"""One finished shard that is not on this machine's disk: its index is read once, each record by its range of bytes."""

from __future__ import annotations

from collections.abc import Iterator

from roibeam.features.folders.folder_protocol import UNKNOWN_BYTES, OutputFolder
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.layout import decode
from roibeam.features.shard.lmdb_pages import LmdbPages
from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.shard.offset_index import OffsetIndex
from roibeam.features.shard.reader import check_pages, stream_digests


class ShardObject:
    """For a look at some records; who reads many stages the shard (`features/reading/staging.py`).

    Args:
        folder: where the data file lies.
        manifest: the shard manifest that names it.
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
    """A file as `LmdbPages` takes it, each piece read when it is asked for."""

    def __init__(self, folder: OutputFolder, name: str, num_bytes: int) -> None:
        self._folder, self._name, self._num_bytes = folder, name, num_bytes

    def __len__(self) -> int:
        return self._num_bytes

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._num_bytes)
        return self._folder.read_range(self._name, start, max(start, stop))


def shard_digests(folder: OutputFolder, manifest: ShardManifest) -> Iterator[tuple[bytes, bytes]]:
    """(key, record digest) of a shard in key order, wherever it lies; at a URL its index alone is read, and kept."""
    assert manifest.data_file is not None
    if folder.local_path is not None:
        return stream_digests(folder.local_path / manifest.data_file, manifest)
    return ShardObject(folder, manifest).digests()
