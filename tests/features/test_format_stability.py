"""The bytes of version 1 cannot drift: golden hashes of encoded values, and a committed store that must stay readable.

`python tests/features/test_format_stability.py` makes the store again. Do that only for a new version of the format,
into a new folder: the old one is what proves that old stores are still read.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from store_examples import FINGERPRINT, make_record, write_shard

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


def test_the_committed_store_is_still_read() -> None:
    store = FeatureStore(STORE)
    wanted = [record for records in example_shards() for record in records]
    assert all(got.equals(want) for got, want in zip(store, wanted, strict=True))
    assert store.manifest.content_digest == STORE_DIGEST
    assert (store.manifest.num_dead_letters, store.fingerprint) == (1, FINGERPRINT)
    assert store.vocabulary == {"classes": ["cat"], "attributes": ["red"]}
    assert verify_store(STORE, deep=True) == []
    assert sum(path.stat().st_size for path in STORE.iterdir()) < 100_000


def test_todays_writer_gives_the_same_content(tmp_path: Path) -> None:
    write_example_store(tmp_path / "s")
    assert FeatureStore(tmp_path / "s").manifest.content_digest == STORE_DIGEST


if __name__ == "__main__":
    write_example_store(STORE)
