"""The offset index: lookups, and indexes that lie."""

import struct

import pytest
from refusals import refused

from roibeam.features.shard import lmdb_file
from roibeam.features.shard.layout import checksum
from roibeam.features.shard.lmdb_file import IndexRow, OffsetIndex, encode_index

ROWS = [
    IndexRow(f"key{i:03}".encode() * (1 + i % 3), 100 * i, 40 + i, 10_000 + i * 200, 150 + i, i, bytes([i]) * 32)
    for i in range(70)
]
ROWS.sort(key=lambda row: row.key)
VALUE = encode_index(ROWS, feature_dim=8, feature_dtype="bfloat16")


def opened(value: bytes) -> OffsetIndex:
    return OffsetIndex(memoryview(value), file_bytes=50_000, name="a.lmdb")


def resealed(offset: int, code: str, number: int) -> bytes:
    """VALUE with one number changed and the checksum made right again, as an attacker would."""
    changed = bytearray(VALUE)
    struct.pack_into("<" + code, changed, offset, number)
    struct.pack_into("<Q", changed, 40, checksum([bytes(changed[:40]), bytes(changed[48:])]))
    return bytes(changed)


def array_at(name: str) -> int:
    return 48 + lmdb_file._arrays(len(ROWS), sum(len(row.key) for row in ROWS))[0][name][2]


@pytest.mark.parametrize("odd", [0, 1])  # at an odd byte it is read like any
def test_rows_and_lookups(odd: int) -> None:
    index = OffsetIndex(memoryview(bytes(odd) + VALUE)[odd:], file_bytes=50_000, name="a.lmdb")
    assert list(index.rows()) == ROWS
    assert [index.find(row.key) for row in ROWS] == list(range(70))
    assert [index.find(key) for key in (b"", b"key", b"zzz", b"\xff" * 511)] == [-1] * 4
    assert (index.num_records, index.num_regions, index.feature_dim) == (70, sum(range(70)), 8)
    assert index.feature_dtype == "bfloat16"
    index = opened(encode_index([], feature_dim=8, feature_dtype="float16"))
    assert (index.num_records, index.find(b"a"), list(index.rows())) == (0, -1, [])


def test_equal_hashes_are_told_apart_by_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_file, "hash_key", lambda key: len(key))
    index = opened(encode_index(ROWS, feature_dim=8, feature_dtype="float16"))
    assert [index.find(row.key) for row in ROWS] == list(range(70))
    assert index.find(b"nothing") == index.find(b"key999") == -1


def test_arrays_start_at_multiples_of_64() -> None:
    places, end = lmdb_file._arrays(3, 5)
    assert all(start % 64 == 0 for _, _, start in places.values())
    assert end == places["digests"][2] + 96


@pytest.mark.parametrize(
    "value, words",
    [
        (VALUE[:47], "has 47 bytes"),
        (VALUE[:-1], "70 records need"),
        (VALUE + b"\0", "70 records need"),
        (b"XXXX" + VALUE[4:], "starts with b'XXXX', expected b'RBIX'"),
        (resealed(4, "H", 2), "has version 2, this roibeam reads 1"),
        (resealed(6, "B", 9), "feature dtype code 9"),
        (resealed(8, "I", 2**32 - 1), "4294967295 records need"),
        (resealed(16, "Q", 2**64 - 1), "70 records need"),
        (VALUE[:60] + b"!" + VALUE[61:], "has a wrong checksum"),
    ],
)
def test_a_value_that_is_no_index(value: bytes, words: str) -> None:
    refused(f"a.lmdb: offset index .*{words}", opened, value)


@pytest.mark.parametrize(
    "array, code, number, words",
    [
        ("hash_rows", "I", 70, "names row 70 of 70"),
        ("key_offsets", "Q", 2**63, "puts key 0 at"),
        ("meta_offsets", "Q", 2**64 - 1, "puts a value of row 0 at"),
        ("meta_lengths", "I", 2**32 - 1, "puts a value of row 0 at"),
        ("region_offsets", "Q", 2**64 - 1, "puts a value of row 0 at"),
        ("region_lengths", "Q", 50_000, "puts a value of row 0 at"),
    ],
)
def test_rows_cannot_point_outside(array: str, code: str, number: int, words: str) -> None:
    index = opened(resealed(array_at(array), code, number))
    refused(f"a.lmdb: offset index {words}", lambda: [*index.rows(), *(index.find(row.key) for row in ROWS)])
