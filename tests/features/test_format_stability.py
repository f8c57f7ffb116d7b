"""The bytes of version 1 cannot drift: golden hashes of encoded values, and a committed store that must stay readable.

`python tests/features/test_format_stability.py` makes the store again. Do that only for a new version of the format,
into a new folder: the old one is what proves that old stores are still read.
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from store_examples import FINGERPRINT, make_record, with_image_feature, write_shard

from roibeam.features.record.region_record import RegionRecord, record_digest
from roibeam.features.shard.layout import encode_meta, encode_regions
from roibeam.features.shard.lmdb_file import IndexRow, encode_index
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.shard.writer import publish_store
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store

STORE = Path(__file__).parent / "data" / "store-v1"
STORE_DIGEST = "76420894c14de31250de0c4f4298528fc2ea677b9c3a25770b756fef85912b0a"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plain_record() -> RegionRecord:
    """Written out by hand, so that this golden hangs on nothing but the encoder."""
    return RegionRecord(
        image_id="a", height=3, width=5,
        boxes=np.array([[0, 1, 2, 3]], np.float32), features=np.array([[1, -2]], np.float16),
        class_ids=np.array([7], np.uint16), class_scores=np.array([0.5], np.float32),
        attribute_ids=np.array([9], np.uint16), attribute_scores=np.array([0.25], np.float32),
    )  # fmt: skip


def test_a_record_byte_by_byte() -> None:
    assert encode_meta(plain_record()).hex(" ", 4) == (
        "5242 524d0100 00000100 00000300 00000500 00000200 0000673d cbf41cae 60d00000 003f0000 "
        "00000000 803f0000 00400000 40400700"
    )
    assert encode_regions(plain_record()).hex(" ", 4) == (
        "5242 52520100 01010100 00000200 00000000 00000000 00001f4e 961eb632 c6e64600 00000000 "
        "000052e0 f229b652 08a3003c 00c00000 00000000 00000000 00000000 00000000 00000000 00000000 "
        "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 803e0900"
    )
    assert record_digest(plain_record()).hex() == "837a2eec9bfe8d5ffdac87edefcc928e843437703296ce0e62dbace0d84b545d"


def test_every_kind_of_block() -> None:
    got = {}
    for dtype in ("float16", "float32", "bfloat16"):
        for distribution in ("full", "top-k"):
            record = make_record("é", 5, 40, dtype, attributes=True, distribution=distribution, image_feature=True)
            got[dtype, distribution] = (sha256(encode_regions(record))[:16], record_digest(record).hex()[:16])
    assert got == {
        ("float16", "full"): ("1aab1fa7ef0370ef", "3d0f0ef0e783a96a"),
        ("float16", "top-k"): ("9f860286b421da81", "bb34f871acfb52f7"),
        ("float32", "full"): ("b29c4cc592c8c2d4", "909afb9cdcd85de4"),
        ("float32", "top-k"): ("730ef9ad9a7997dd", "56b8fb927b216de1"),
        ("bfloat16", "full"): ("0ea14c3a1832e664", "976a37ffbebdf0dc"),
        ("bfloat16", "top-k"): ("d4141631ef810e4e", "fe027a3b3c50f0e0"),
    }


def test_an_index() -> None:
    rows = [
        IndexRow(b"a", 100, 54, 8208, 300, 1, bytes(range(32))),
        IndexRow("b/é".encode(), 160, 76, 12304, 400, 2, bytes(range(32, 64))),
    ]
    value = encode_index(rows, feature_dim=2, feature_dtype="float16")
    assert value[:48].hex(" ", 4) == (
        "52424958 01000100 02000000 02000000 05000000 00000000 03000000 00000000 00000000 00000000 936558f6 f18a330d"
    )
    assert (len(value), sha256(value)) == (688, "03042928b97cce77af7298af378ce08f58e609dace31cea3793961d372ec5086")


def example_shards() -> list[list[RegionRecord]]:
    """Inline and overflow values of both kinds, every optional field, an empty record, an empty shard."""
    return [
        [
            make_record("000", 0, 24),
            make_record("001", 3, 24),
            make_record("002-é", 3, 24, attributes=True, distribution="full", image_feature=True),
            make_record("003", 92, 24, attributes=True, distribution="top-k"),
        ],
        [],
    ]


def write_example_store(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, records in enumerate(example_shards()):
        dead = [] if records else [DeadLetter("bad", "/photos/bad.jpg", "decode", "not an image", "first bytes 00 00")]
        write_shard(folder, number, records, attempt="example", dead_letters=dead, stats={"seconds": 0.5})
    publish_store(
        folder, range(2), fingerprint=FINGERPRINT, config={"recipe": "example"}, classes=["cat"], attributes=["red"]
    )


def test_the_committed_store_is_still_read_and_written(tmp_path: Path) -> None:
    store = FeatureStore(STORE)
    wanted = [record for records in example_shards() for record in records]
    assert all(got.equals(want) for got, want in zip(store, wanted, strict=True))
    assert store.manifest.content_digest == STORE_DIGEST
    assert (store.manifest.num_dead_letters, store.fingerprint) == (1, FINGERPRINT)
    assert store.vocabulary == {"classes": ["cat"], "attributes": ["red"]}
    assert verify_store(STORE, deep=True) == []
    assert sum(path.stat().st_size for path in STORE.iterdir()) < 100_000

    write_example_store(tmp_path / "s")
    assert FeatureStore(tmp_path / "s").manifest.content_digest == STORE_DIGEST


# --- docs/store-format.md is enough: bytes are read by its tables alone


def up(offset: int) -> int:
    return (offset + 63) // 64 * 64


def digest_of(image_id: str, meta: bytes, dtype: str, d: int, features: bytes, *more: Any) -> bytes:
    """The digest of a record from its stored bytes alone; `more` (name, dtype, shape, bytes) stand behind the plain."""
    k, height, width = struct.unpack_from("<III", meta, 8)
    raw, itemsize = image_id.encode(), {"float16": 2, "float32": 4}[dtype]
    state = hashlib.sha256(b"roibeam-record-1\0")
    for name, kind, shape, data in [
        ("image_id", "utf8", (len(raw),), raw),
        ("height", "int64", (), struct.pack("<q", height)),
        ("width", "int64", (), struct.pack("<q", width)),
        ("boxes", "float32", (k, 4), meta[32 + 4 * k : 32 + 20 * k]),
        ("features", dtype, (k, d), features[: itemsize * k * d]),
        ("class_ids", "uint16", (k,), meta[32 + 20 * k :]),
        ("class_scores", "float32", (k,), meta[32 : 32 + 4 * k]),
        *more,
    ]:
        state.update(name.encode() + b"\0" + kind.encode() + b"\0" + bytes([len(shape)]))
        state.update(struct.pack(f"<{len(shape)}Q", *shape) + data)
    return state.digest()


def test_the_document_is_enough() -> None:
    store = json.loads((STORE / "manifest.json").read_text())
    whole = hashlib.sha256()
    seen = []
    for entry in store["shards"]:
        text = (STORE / entry["manifest"]).read_bytes()
        assert hashlib.sha256(text).hexdigest() == entry["manifest_sha256"]
        shard = json.loads(text)
        if shard["data_file"] is None:
            continue
        data = (STORE / shard["data_file"]).read_bytes()
        assert len(data) == shard["data_bytes"] == shard["page_size"] * shard["num_pages"]
        index = data[shard["index_offset"] :][: shard["index_bytes"]]
        magic, version, _, _, n, _, blob, _, _, checksum = struct.unpack_from("<4sHBBIIQQQQ", index)
        assert (magic, version, n) == (b"RBIX", 1, shard["num_records"])
        assert xxhash.xxh3_64_intdigest(index[:40] + index[48:]) == checksum
        arrays, at = [], 0
        for code, count in [("Q", n), ("I", n), ("Q", n + 1), ("B", blob), *((c, n) for c in "Q I Q Q H 32s".split())]:
            at = up(at)
            arrays.append(struct.unpack_from(f"<{count}{code}" if code != "32s" else "<" + "32s" * n, index, 48 + at))
            at += count * struct.calcsize("<" + code)
        assert len(index) == 48 + at
        hashes, rows, ends, keys, meta_at, meta_len, region_at, region_len, regions_of, digests = arrays
        for i in range(n):
            key = bytes(keys[ends[i] : ends[i + 1]])
            assert rows[hashes.index(xxhash.xxh3_64_intdigest(key))] == i
            whole.update(struct.pack("<I", len(key)) + key + digests[i])
            meta = data[meta_at[i] :][: meta_len[i]]
            value = data[region_at[i] :][: region_len[i]]
            assert meta[:8] == b"RBRM\1\0\0\0" and value[:6] == b"RBRR\1\0"
            k, d, meta_sum = struct.unpack_from("<I8xIQ", meta, 8)
            assert (k, len(meta)) == (regions_of[i], 32 + 22 * k)
            assert xxhash.xxh3_64_intdigest(meta[:24] + meta[32:]) == meta_sum
            head = struct.unpack_from("<BBIIIIQQQ", value, 6)
            assert head[2:4] == (k, d) and head[6:8] == (xxhash.xxh3_64_intdigest(key), len(value) - 48)
            assert xxhash.xxh3_64_intdigest(value[:40] + value[48:]) == head[8]
            if head[:2] == (1, 0):  # a plain record
                assert digest_of(key.decode(), meta, "float16", d, value[48:]) == digests[i]
                seen.append(key)
    assert whole.hexdigest() == store["content_digest"]
    assert seen == [b"000", b"001"]


def test_an_image_feature_of_its_own_width_is_read_by_the_tables() -> None:
    """That of the committed store is as wide as its features."""
    record = with_image_feature(make_record("k", 3, 40, "float32", attributes=True, distribution="full"), 7)
    value = encode_regions(record)
    dtype, flags, k, d, columns, classes, key_hash, payload_bytes, checksum = struct.unpack_from("<BBIIIIQQQ", value, 6)
    assert (dtype, flags, k, d, columns, classes) == (2, 0b10101, 3, 40, 7, 6)
    assert (key_hash, payload_bytes) == (xxhash.xxh3_64_intdigest(b"k"), len(value) - 48)
    assert xxhash.xxh3_64_intdigest(value[:40] + value[48:]) == checksum
    starts = [48]
    for length in (4 * k * d, 2 * k * columns, 4 * k + 2 * k):
        starts.append(48 + up(starts[-1] - 48 + length))
    features, distribution, attributes, image_feature = (value[start:] for start in starts)
    assert struct.unpack("<7f", image_feature) == tuple(record.image_feature)
    found = digest_of(
        "k", encode_meta(record), "float32", d, features,
        ("attribute_ids", "uint16", (k,), attributes[4 * k :][: 2 * k]),
        ("attribute_scores", "float32", (k,), attributes[: 4 * k]),
        ("class_distribution", "float16", (k, columns), distribution[: 2 * k * columns]),
        ("image_feature", "float32", (7,), image_feature),
    )  # fmt: skip
    assert found == record_digest(record)


if __name__ == "__main__":
    write_example_store(STORE)
