"""docs/store-format.md is enough: the committed store read by its tables alone (struct, json, hashlib, xxhash)."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import xxhash
from store_examples import make_record, with_image_feature

from roibeam.features.record.region_record import record_digest
from roibeam.features.shard.layout import encode_meta, encode_regions

STORE = Path(__file__).parent / "data" / "store-v1"


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
