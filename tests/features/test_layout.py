"""Bytes of one record: round trips, and values that lie about themselves."""

import dataclasses
import hashlib
import mmap
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from characters import CHARACTERS, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from store_examples import make_record, with_image_feature, write_store

from roibeam.features.record.region_record import record_digest
from roibeam.features.shard import layout
from roibeam.features.shard.layout import RegionMeta, decode, decode_meta, encode_meta, encode_regions
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store

RECORD = make_record("k", 3, attributes=True, distribution="top-k", image_feature=True)
META, REGIONS = encode_meta(RECORD), encode_regions(RECORD)


OWN_WIDTH = encode_regions(with_image_feature(RECORD, 5))


def patched(value: bytes, offset: int, code: str, number: int) -> bytes:
    changed = bytearray(value)
    struct.pack_into("<" + code, changed, offset, number)
    return bytes(changed)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("num_regions", [0, 1, 89, 90, 100])
@pytest.mark.parametrize("distribution", [None, "full", "top-k"])
@pytest.mark.parametrize("attributes", [False, True])
def test_round_trip(dtype: str, num_regions: int, distribution: str | None, attributes: bool) -> None:
    """With no image feature, and with one of the width of the features, 5, or of its own."""
    plain = make_record("é/1.jpg", num_regions, 5, dtype, attributes=attributes, distribution=distribution)
    for width in (0, 1, 4, 5, 6, 33, 2048):
        record = with_image_feature(plain, width) if width else plain
        meta, regions = encode_meta(record), encode_regions(record)
        assert len(meta) == 32 + 22 * num_regions
        assert regions[7] & 0b10010 == {0: 0, 5: 0b10}.get(width, 0b10000)
        for copy in (True, False):
            assert decode("é/1.jpg".encode(), meta, regions, copy=copy, check=True).equals(record)
            assert decode("é/1.jpg", meta, regions, copy=copy).equals(record)


def test_bytes_of_an_image_feature_of_its_own_width() -> None:
    assert hashlib.sha256(OWN_WIDTH).hexdigest()[:16] == "c41e3c3aa619b314"
    assert record_digest(with_image_feature(RECORD, 5)).hex()[:16] == "e3320a22c9016080"


def test_a_store_holds_image_features_of_their_own_width(tmp_path: Path) -> None:
    records = [with_image_feature(make_record(f"{i}", i, 24, attributes=True), 100 + i) for i in range(3)]
    write_store(tmp_path / "s", [records])
    with FeatureStore(tmp_path / "s") as store:
        assert all(store[record.image_id].equals(record) for record in records)
    assert verify_store(tmp_path / "s", deep=True) == []


@settings(max_examples=20, deadline=None)
@given(texts(30, 1, CHARACTERS.filter(str.isprintable)), st.integers(0, 9), st.integers(1, 70))
def test_round_trip_of_any_id_and_size(image_id: str, num_regions: int, feature_dim: int) -> None:
    record = make_record(image_id, num_regions, feature_dim, attributes=True)
    assert decode(image_id, encode_meta(record), encode_regions(record), check=True).equals(record)


def test_every_block_starts_at_a_multiple_of_64_of_the_payload() -> None:
    storage = np.zeros(len(REGIONS) + 128, np.uint8)
    start = -storage.ctypes.data % 64 + 16  # where a large value starts in an LMDB page
    storage[start : start + len(REGIONS)] = np.frombuffer(REGIONS, np.uint8)
    record = decode("k", META, storage.data[start : start + len(REGIONS)], copy=False)
    top = record.class_distribution
    of_record = [record.features, record.image_feature, record.attribute_scores]
    assert [block.ctypes.data % 64 for block in [*of_record, top.class_ids, top.probabilities, top.rest]] == [0] * 6
    assert record.attribute_ids.ctypes.data == record.attribute_scores.ctypes.data + 12


def test_views_share_memory_and_copies_do_not() -> None:
    storage = bytearray(REGIONS)
    view, copy = decode("k", META, storage, copy=False), decode("k", META, storage)
    storage[48:50] = b"\x00\x3c"
    assert view.features[0, 0] == 1.0 and copy.features[0, 0] != 1.0
    copy.features[0, 0] = 2  # writable
    assert not decode("k", META, bytes(REGIONS), copy=False).features.flags.writeable


@pytest.mark.parametrize("distribution", ["full", "top-k"])
def test_every_view_alone_keeps_a_mapped_value_from_being_closed(distribution: str) -> None:
    written = make_record("k", 3, attributes=True, distribution=distribution, image_feature=True)
    value = encode_regions(written)
    mapped = mmap.mmap(-1, len(value))
    mapped[:] = value

    def views() -> list[np.ndarray]:
        record = decode("k", encode_meta(written), memoryview(mapped).toreadonly(), copy=False)
        top = record.class_distribution
        of_distribution = [top] if isinstance(top, np.ndarray) else [top.class_ids, top.probabilities, top.rest]
        return [record.features, record.image_feature, record.attribute_ids, record.attribute_scores, *of_distribution]

    for position in range(len(views())):
        view = views()[position]
        assert not view.flags.writeable and not view.flags.owndata
        with pytest.raises(BufferError):
            mapped.close()
        del view
    mapped.close()


def test_meta_arrays_are_writable_copies_alone_and_beside_views() -> None:
    meta = bytearray(META)
    alone = decode_meta(meta, check=True)
    assert (alone.height, alone.width, alone.feature_dim, alone.num_regions) == (480, 640, 8, 3)
    for found in (alone, decode("k", meta, REGIONS, copy=False)):
        for name in ("boxes", "class_ids", "class_scores"):
            np.testing.assert_array_equal(getattr(found, name), getattr(RECORD, name))
            getattr(found, name)[:] = 0
    assert meta == META


def test_records_read_back_are_pickled_and_replaced_like_any() -> None:
    for copy in (True, False):
        record = decode("k", META, REGIONS, copy=copy)
        assert vars(record).keys() == vars(RECORD).keys()
        assert pickle.loads(pickle.dumps(record)).equals(RECORD)
        assert dataclasses.replace(record, height=481).height == 481
    assert vars(decode_meta(META)).keys() == {field.name for field in dataclasses.fields(RegionMeta)}


def test_an_unaligned_value_is_copied() -> None:
    storage = bytearray(1) + REGIONS
    record = decode("k", META, memoryview(storage)[1:], copy=False)
    assert record.equals(RECORD)
    assert record.features.flags.aligned and record.attribute_scores.flags.aligned
    written = make_record("k", 0, attributes=True, image_feature=True)  # empty arrays count as aligned anywhere
    record = decode("k", encode_meta(written), memoryview(bytearray(1) + encode_regions(written))[1:], copy=False)
    assert record.equals(written) and record.image_feature is not None and record.image_feature.flags.aligned


def test_a_value_too_large_for_a_reader_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_VALUE_BYTES", len(REGIONS) - 1)
    refused(f"record 'k': 3 regions of 8 values take .* at most {len(REGIONS) - 1} fit", encode_regions, RECORD)
    monkeypatch.setattr(layout, "MAX_VALUE_BYTES", len(REGIONS))
    assert encode_regions(RECORD) == REGIONS


HOSTILE_META = [
    (b"", "meta value has 0 bytes, its header alone has 32"),
    (META[:-1], "meta value has 97 bytes, 3 regions need 98"),
    (META + b"\0", "meta value has 99 bytes"),
    (b"XXXX" + META[4:], "meta value starts with b'XXXX', expected b'RBRM'"),
    (patched(META, 4, "H", 2), "meta value has version 2, this roibeam reads 1"),
    (patched(META, 6, "H", 1), "meta value has flags 0x1"),
    (patched(META, 8, "I", 2**32 - 1), "4294967295 regions need"),
    (encode_meta(make_record("k", 4)), "3 regions of 8 values, meta value 4 of 8"),
    (encode_meta(make_record("k", 3, 9)), "3 regions of 8 values, meta value 3 of 9"),
]
HOSTILE_REGIONS = [
    (REGIONS[:47], "region value has 47 bytes, a header has 48"),
    (REGIONS[:-1], "bytes of payload"),
    (REGIONS + b"\0", "bytes of payload"),
    (b"XXXX" + REGIONS[4:], "region value starts with b'XXXX', expected b'RBRR'"),
    (patched(REGIONS, 4, "H", 9), "region value has version 9"),
    (patched(REGIONS, 6, "B", 0), "dtype code 0"),
    (patched(REGIONS, 6, "B", 4), "dtype code 4"),
    (patched(REGIONS, 6, "B", 2), "its counts need"),
    (patched(REGIONS, 7, "B", 0x1B), "flags 0x1b"),  # two image features
    (patched(REGIONS, 7, "B", 0x0F), "flags 0xf"),
    (patched(REGIONS, 7, "B", 0x2B), "flags 0x2b"),
    (patched(OWN_WIDTH, 7, "B", 0x0B), "its counts need"),
    (OWN_WIDTH[:-1], "bytes of payload"),
    (OWN_WIDTH + b"\0", "bytes of payload"),
    (patched(OWN_WIDTH + b"\0", 32, "Q", len(OWN_WIDTH) - 47), "its counts need"),
    (patched(OWN_WIDTH, 32, "Q", 2**64 - 1), "its header says 18446744073709551615"),
    (patched(OWN_WIDTH[:-10], 32, "Q", len(OWN_WIDTH) - 58), "image feature of 0 values"),
    (patched(OWN_WIDTH[:-11], 32, "Q", len(OWN_WIDTH) - 59), "its counts need"),
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
]


@pytest.mark.parametrize(
    "meta, regions, words",
    [*((meta, REGIONS, words) for meta, words in HOSTILE_META), *((META, *each) for each in HOSTILE_REGIONS)],
)
def test_hostile_values(meta: bytes, regions: bytes, words: str) -> None:
    assert decode("k", META, REGIONS).equals(RECORD)  # counts found sound here must not be believed of another value
    assert words in refused("record 'k': ", decode, "k", meta, regions)


def test_values_of_another_record_and_bad_keys_are_refused() -> None:
    refused("record 'other': region value belongs to another image id", decode, "other", META, REGIONS)
    refused("not UTF-8", decode, b"\xff", META, REGIONS)


def test_checksums_find_every_flipped_bit_that_headers_do_not() -> None:
    metas, regions = (
        [patched(value, position, "B", value[position] ^ 4) for position in range(0, len(value), 7)]
        for value in (META, REGIONS)
    )
    for pair in [*((meta, REGIONS) for meta in metas), *((META, value) for value in regions)]:
        refused("record 'k': ", decode, "k", *pair, check=True)


def test_check_applies_the_rules_of_a_record() -> None:
    bad = dataclasses.replace(RECORD)
    object.__setattr__(bad, "features", np.full((3, 8), np.nan, np.float16))
    assert np.isnan(decode("k", META, encode_regions(bad)).features).all()
    refused("features holds NaN", decode, "k", META, encode_regions(bad), check=True)
