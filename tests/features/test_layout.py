"""Bytes of one record: round trips, and values that lie about themselves."""

import dataclasses
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_examples import make_record

from features.layout import decode, decode_meta, encode_meta, encode_regions

RECORD = make_record("k", 3, attributes=True, distribution="top-k", image_feature=True)
META, REGIONS = encode_meta(RECORD), encode_regions(RECORD)


def patched(value: bytes, offset: int, code: str, number: int) -> bytes:
    changed = bytearray(value)
    struct.pack_into("<" + code, changed, offset, number)
    return bytes(changed)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("num_regions", [0, 1, 89, 90, 100])
@pytest.mark.parametrize("distribution", [None, "full", "top-k"])
def test_round_trip(dtype: str, num_regions: int, distribution: str | None) -> None:
    for attributes, image_feature in [(False, False), (True, False), (False, True), (True, True)]:
        record = make_record(
            "é/1.jpg",
            num_regions,
            5,
            dtype,
            attributes=attributes,
            distribution=distribution,
            image_feature=image_feature,
        )
        meta, regions = encode_meta(record), encode_regions(record)
        assert len(meta) == 32 + 22 * num_regions
        for copy in (True, False):
            got = decode("é/1.jpg".encode(), meta, regions, copy=copy, check=True)
            assert got.equals(record)
            assert decode("é/1.jpg", meta, regions, copy=copy).equals(record)


@settings(max_examples=20, deadline=None)
@given(st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable()), st.integers(0, 9), st.integers(1, 70))
def test_round_trip_of_any_id_and_size(image_id: str, num_regions: int, feature_dim: int) -> None:
    record = make_record(image_id, num_regions, feature_dim, attributes=True)
    assert decode(image_id, encode_meta(record), encode_regions(record), check=True).equals(record)


def test_every_block_starts_at_a_multiple_of_64_of_the_payload() -> None:
    storage = np.zeros(len(REGIONS) + 128, np.uint8)
    start = -storage.ctypes.data % 64 + 16  # where a large value starts in an LMDB page
    storage[start : start + len(REGIONS)] = np.frombuffer(REGIONS, np.uint8)
    record = decode("k", META, storage.data[start : start + len(REGIONS)], copy=False)
    top = record.class_distribution
    blocks = [
        record.features,
        top.class_ids,
        top.probabilities,
        top.rest,
        record.image_feature,
        record.attribute_scores,
    ]
    assert [block.ctypes.data % 64 for block in blocks] == [0] * 6
    assert record.attribute_ids.ctypes.data == record.attribute_scores.ctypes.data + 12


def test_views_share_memory_and_copies_do_not() -> None:
    storage = bytearray(REGIONS)
    view, copy = decode("k", META, storage, copy=False), decode("k", META, storage)
    storage[48:50] = b"\x00\x3c"
    assert view.features[0, 0] == 1.0 and copy.features[0, 0] != 1.0
    copy.features[0, 0] = 2  # writable
    assert not decode("k", META, bytes(REGIONS), copy=False).features.flags.writeable


def test_an_unaligned_value_is_copied() -> None:
    storage = bytearray(1) + REGIONS
    record = decode("k", META, memoryview(storage)[1:], copy=False)
    assert record.equals(RECORD)
    assert record.features.flags.aligned and record.attribute_scores.flags.aligned


def test_arrays_of_any_memory_order_are_written_in_c_order() -> None:
    record = dataclasses.replace(RECORD, features=np.asfortranarray(RECORD.features))
    assert encode_regions(record) == REGIONS


def test_meta_alone() -> None:
    meta = decode_meta(META, check=True)
    assert (meta.height, meta.width, meta.feature_dim, meta.num_regions) == (480, 640, 8, 3)
    np.testing.assert_array_equal(meta.boxes, RECORD.boxes)
    np.testing.assert_array_equal(meta.class_ids, RECORD.class_ids)
    np.testing.assert_array_equal(meta.class_scores, RECORD.class_scores)


@pytest.mark.parametrize(
    "meta, words",
    [
        (b"", "meta value has 0 bytes, its header alone has 32"),
        (META[:-1], "meta value has 97 bytes, 3 regions need 98"),
        (META + b"\0", "meta value has 99 bytes"),
        (b"XXXX" + META[4:], "meta value starts with b'XXXX', expected b'RBRM'"),
        (patched(META, 4, "H", 2), "meta value has version 2, this roibeam reads 1"),
        (patched(META, 6, "H", 1), "meta value has flags 0x1"),
        (patched(META, 8, "I", 2**32 - 1), "4294967295 regions need"),
        (encode_meta(make_record("k", 4)), "3 regions of 8 values, meta value 4 of 8"),
        (encode_meta(make_record("k", 3, 9)), "3 regions of 8 values, meta value 3 of 9"),
    ],
)
def test_hostile_meta(meta: bytes, words: str) -> None:
    with pytest.raises(ValueError, match="record 'k': ") as error:
        decode("k", meta, REGIONS)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "regions, words",
    [
        (REGIONS[:47], "region value has 47 bytes, a header has 48"),
        (REGIONS[:-1], "bytes of payload"),
        (REGIONS + b"\0", "bytes of payload"),
        (b"XXXX" + REGIONS[4:], "region value starts with b'XXXX', expected b'RBRR'"),
        (patched(REGIONS, 4, "H", 9), "region value has version 9"),
        (patched(REGIONS, 6, "B", 0), "dtype code 0"),
        (patched(REGIONS, 6, "B", 4), "dtype code 4"),
        (patched(REGIONS, 6, "B", 2), "its counts need"),
        (patched(REGIONS, 7, "B", 0x1B), "flags 0x1b"),
        (patched(REGIONS, 7, "B", 0x0F), "flags 0xf"),
        (patched(REGIONS, 8, "I", 2**32 - 1), "claims 4294967295 regions"),
        (patched(REGIONS, 8, "I", 65535), "its counts need"),
        (patched(REGIONS, 12, "I", 0), "of 0 values"),
        (patched(REGIONS, 12, "I", 2**32 - 1), "its counts need"),
        (patched(REGIONS, 16, "I", 0), "0 distribution columns"),
        (patched(REGIONS, 16, "I", 8), "8 distribution columns of 6 classes"),
        (patched(REGIONS, 16, "I", 2**32 - 1), "4294967295 distribution columns"),
        (patched(REGIONS, 20, "I", 1), "of 1 classes"),
        (patched(REGIONS, 24, "Q", 5), "belongs to another image id (key hash 0000000000000005)"),
        (patched(REGIONS, 32, "Q", 2**64 - 1), "its header says 18446744073709551615"),
    ],
)
def test_hostile_regions(regions: bytes, words: str) -> None:
    with pytest.raises(ValueError, match="record 'k': ") as error:
        decode("k", META, regions)
    assert words in str(error.value)


def test_values_of_another_record_and_bad_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="record 'other': region value belongs to another image id"):
        decode("other", META, REGIONS)
    with pytest.raises(ValueError, match="not UTF-8"):
        decode(b"\xff", META, REGIONS)


def test_checksums_find_every_flipped_bit_that_headers_do_not() -> None:
    for value, name in ((META, "meta"), (REGIONS, "region")):
        for position in range(0, len(value), 7):
            broken = patched(value, position, "B", value[position] ^ 4)
            pair = (broken, REGIONS) if name == "meta" else (META, broken)
            with pytest.raises(ValueError):
                decode("k", *pair, check=True)


def test_check_applies_the_rules_of_a_record() -> None:
    bad = object.__new__(type(RECORD))
    for field in dataclasses.fields(RECORD):
        object.__setattr__(bad, field.name, getattr(RECORD, field.name))
    object.__setattr__(bad, "features", np.full((3, 8), np.nan, np.float16))
    assert np.isnan(decode("k", META, encode_regions(bad)).features).all()
    with pytest.raises(ValueError, match="features holds NaN"):
        decode("k", META, encode_regions(bad), check=True)
