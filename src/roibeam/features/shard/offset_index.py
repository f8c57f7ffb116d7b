"""The offset index of a shard: for each image id, where in the data file its two values lie.

Made after the last copy, from the finished tree, and stored as one LMDB value, so that reading needs no B-tree walk,
one range per value can be prefetched, and the digests of a shard are there without reading its features. Rows are in
key order (bytes); a lookup is a binary search over sorted hashes, then one comparison with the key itself.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.record.digest import DIGEST_BYTES
from roibeam.features.record.region_record import FEATURE_DTYPES
from roibeam.features.shard.layout import DTYPE_CODES, DTYPE_NAMES, align_up, checksum, hash_key
from roibeam.features.shard.manifest import ShardManifest

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
        view = {key: _numbers(payload[at : at + n * t.itemsize], t) for key, (t, n, at) in places.items()}
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

    def row(self, row: int) -> IndexRow:
        meta_start, meta_end, region_start, region_end = self.ranges(row)
        sizes = (meta_start, meta_end - meta_start, region_start, region_end - region_start)
        return IndexRow(self.key(row), *sizes, self.num_regions_at(row), self.digest(row))

    def num_regions_at(self, row: int) -> int:
        return self._num_regions[row]

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[IndexRow]:
        for row in range(start, self.num_records if stop is None else min(stop, self.num_records)):
            yield self.row(row)

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


def _numbers(view: memoryview, dtype: np.dtype) -> memoryview:
    """The bytes of `view` as Python's integers: a numpy scalar for each number would cost more than the lookup.

    Cast, not an array's `.data`: that cannot be indexed where a hostile manifest puts the index at an odd byte.
    """
    code: Any = dtype.char  # of native size, as memoryview wants it
    return view.cast(code)


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
    head = _HEADER.pack(
        INDEX_MAGIC,
        INDEX_VERSION,
        DTYPE_CODES[feature_dtype],
        0,
        len(rows),
        feature_dim,
        sum(map(len, keys)),
        sum(row.num_regions for row in rows),
        0,
        0,
    )[:_CHECKED]
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
