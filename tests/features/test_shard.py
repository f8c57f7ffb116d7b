"""One shard written and read back: growth, order, duplicates, damage, life of views."""

import os
import random
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest
from fuzz_child import in_a_child
from refusals import refused
from store_examples import FINGERPRINT, MEMBERS_DIGEST, make_record, write_shard, write_store

from roibeam.features.folders.local_folder import LocalFolder, output_folder
from roibeam.features.record.region_record import content_digest, record_digest
from roibeam.features.shard.layout import encode_meta, encode_regions
from roibeam.features.shard.manifest import ShardManifest, ShardSummary
from roibeam.features.shard.reader import ShardObject, ShardReader, shard_digests
from roibeam.features.shard.writer import ShardWriter

MIB = 2**20


def many(count: int, num_regions: int = 40, feature_dim: int = 512) -> list:
    base = make_record("x", num_regions, feature_dim, attributes=True)
    return [replace(base, image_id=f"i{number:05}", height=number + 1) for number in range(count)]


def assert_holds(path: Path, summary: ShardSummary, records: list) -> None:
    """The file holds exactly `records`, through LMDB and through the index."""
    ordered = sorted(records, key=lambda record: record.image_id)
    manifest = ShardManifest.from_summary(
        summary, shard=0, attempt="a", fingerprint=FINGERPRINT, members_digest=MEMBERS_DIGEST
    )
    with ShardReader(path, manifest) as reader:
        assert list(reader.ids()) == [record.image_id for record in ordered]
        assert all(got.equals(want) for got, want in zip(reader, ordered, strict=True))
        assert dict(reader.digests()) == {r.image_id.encode(): record_digest(r) for r in ordered}
        named = replace(manifest, data_file=path.name)
        assert list(shard_digests(LocalFolder(path.parent), named, rows_at_once=7)) == list(reader.digests())
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as env:
        meta, regions = env.open_db(b"meta", create=False), env.open_db(b"regions", create=False)
        with env.begin() as txn:
            assert txn.stat(meta)["entries"] == txn.stat(regions)["entries"] == len(records)
            for record in ordered:
                key = record.image_id.encode()
                assert txn.get(key, db=meta) == encode_meta(record)
                assert txn.get(key, db=regions) == encode_regions(record)


def finished(writer: ShardWriter, records: list) -> ShardSummary:
    for record in records:
        writer.put(record)
    return writer.finish()


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_any_order_gives_the_same_shard(tmp_path: Path, order: str) -> None:
    records = [make_record(f"i{i:03}", i % 101, 8, attributes=True, seed=i) for i in range(120)]
    orders = {"ascending": records, "descending": records[::-1], "shuffled": random.Random(1).sample(records, 120)}
    with ShardWriter(tmp_path / "s.lmdb", planned_bytes=0, commit_bytes=20_000) as writer:
        summary = finished(writer, orders[order])
    assert [path.name for path in tmp_path.iterdir()] == ["s.lmdb"]  # no lock file
    assert (tmp_path / "s.lmdb").stat().st_size == summary.data_bytes == summary.page_size * summary.num_pages
    assert (summary.first_id, summary.last_id, summary.num_records) == ("i000", "i119", 120)
    assert (summary.feature_dim, summary.feature_dtype) == (8, "float16")
    assert summary.num_regions == sum(record.num_regions for record in records)
    assert summary.content_digest == content_digest((r.image_id.encode(), record_digest(r)) for r in records)
    assert_holds(tmp_path / "s.lmdb", summary, records)


@pytest.mark.parametrize("commit_bytes", [MIB // 2, 64 * MIB])
def test_the_map_grows_and_after_a_right_plan_need_not(tmp_path: Path, commit_bytes: int) -> None:
    records = random.Random(2).sample(many(200), 200)  # 8 MiB into a map of 2 MiB
    with ShardWriter(tmp_path / "s.lmdb", planned_bytes=1, commit_bytes=commit_bytes) as writer:
        first = writer._lmdb._map_bytes
        summary = finished(writer, records)
        assert first < summary.data_bytes <= writer._lmdb._map_bytes <= 8 * summary.data_bytes
    assert_holds(tmp_path / "s.lmdb", summary, records)
    planned = sum(len(encode_meta(record)) + len(encode_regions(record)) for record in records)
    with ShardWriter(tmp_path / "planned.lmdb", planned_bytes=planned * 2) as writer:
        first = writer._lmdb._map_bytes
        finished(writer, records)
        assert writer._lmdb._map_bytes == first


class FullAtCommit:
    """A transaction whose first commit finds the map full."""

    def __init__(self, inner: lmdb.Transaction) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def commit(self) -> None:
        self._inner.abort()
        raise lmdb.MapFullError("no room for the free list")


def test_a_map_that_is_full_at_commit(tmp_path: Path) -> None:
    records = [make_record(f"i{i:03}", seed=i) for i in range(20)]
    with ShardWriter(tmp_path / "s.lmdb", planned_bytes=0) as writer:
        for record in records:
            writer.put(record)
        writer._lmdb._txn = FullAtCommit(writer._lmdb._txn)
        summary = writer.finish()
    assert_holds(tmp_path / "s.lmdb", summary, records)


def test_what_a_writer_refuses(tmp_path: Path) -> None:
    path = tmp_path / "s.lmdb"
    with ShardWriter(path, planned_bytes=0) as writer:
        writer.put(make_record("b"))
        refused("image id 'b' is there already", writer.put, make_record("b", seed=3))
        words = r"features \(9, 'float16'\), the records before it \(8, 'float16'\)"
        refused(words, writer.put, make_record("c", feature_dim=9))
        refused("one store holds one width and dtype", writer.put, make_record("c", dtype="bfloat16"))
        refused("exists already", ShardWriter, path, planned_bytes=0)
        writer.put(make_record("a"))
        assert writer.finish().num_records == 2
        refused("finished or discarded", writer.put, make_record("d"))
    assert path.exists()
    refused("must be positive", ShardWriter, path, planned_bytes=-1)


def test_without_finish_or_records_there_is_no_file(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s.lmdb", planned_bytes=0) as writer:
        writer.put(make_record("a"))
    with ShardWriter(tmp_path / "t.lmdb", planned_bytes=0) as writer:
        assert writer.finish() == ShardSummary()
    assert list(tmp_path.iterdir()) == []


def test_a_file_at_its_limit_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.lmdb"

    def write(tell: Callable[[str], object]) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        told = rf"^\[Errno 27\] File too large: '{path}'$"
        with pytest.raises(OSError, match=told), ShardWriter(path, planned_bytes=0, commit_bytes=50_000) as writer:
            finished(writer, [make_record(f"i{i}", 40, 512) for i in range(50)])
        tell("+")

    in_a_child(write, range(1))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def shard(tmp_path: Path) -> tuple[Path, ShardManifest]:
    records = [make_record(f"i{i:02}", 20, 128, attributes=True, seed=i) for i in range(30)]
    manifest = write_shard(tmp_path, 0, records)
    return tmp_path / str(manifest.data_file), manifest


def test_features_lie_at_multiples_of_64_in_the_mapped_file(tmp_path: Path) -> None:
    record = make_record("i", 36, 2048, attributes=True, distribution="top-k", image_feature=True)
    manifest = write_shard(tmp_path, 0, [replace(record, image_id=f"i{i}") for i in range(5)])
    with ShardReader(tmp_path / str(manifest.data_file), manifest) as reader:
        for image_id in reader.ids():
            got = reader.get(image_id, copy=False)
            arrays = [got.features, got.class_distribution.class_ids, got.image_feature, got.attribute_scores]
            assert [array.ctypes.data % 64 for array in arrays] == [0] * 4
            assert not got.features.flags.writeable and not got.features.flags.owndata
            del got, arrays


def test_reading(shard: tuple[Path, ShardManifest]) -> None:
    with ShardReader(*shard) as reader:
        assert len(reader) == 30
        assert "i07" in reader and "i7" not in reader and 7 not in reader and "\udc80" not in reader
        assert reader.get("i07", check=True).equals(make_record("i07", 20, 128, attributes=True, seed=7))
        assert (reader.find("i07"), reader.row_of("i07"), reader.find("i7")) == (7, 7, -1)
        np.testing.assert_array_equal(reader.meta_at(7, check=True).boxes, reader.get("i07").boxes)
        assert reader.num_regions_at(7) == 20
        refused("image id 'i7' is not in", reader.get, "i7", error=KeyError)


def test_scan_gives_views_in_key_order_and_close_waits_for_them(shard: tuple[Path, ShardManifest]) -> None:
    reader = ShardReader(*shard)
    for row, record in enumerate(reader.scan(copy=False, check=True)):
        assert record.equals(make_record(f"i{row:02}", 20, 128, attributes=True, seed=row))
        assert not record.features.flags.writeable
    refused("copy=False are still alive", reader.close, error=BufferError)
    record = reader.get("i03", copy=False)
    refused("copy=False are still alive", reader.close, error=BufferError)
    assert reader.get("i04").image_id == "i04"  # still open
    assert record.equals(make_record("i03", 20, 128, attributes=True, seed=3))
    del record
    reader.close()
    reader.close()
    for use in (lambda: reader.get("i04"), lambda: len(reader), lambda: "i04" in reader, lambda: list(reader.ids())):
        refused("this reader is closed", use)


@pytest.mark.parametrize("change", [-1, -4096, -100_000, +1, +4096])
def test_a_file_of_another_length(shard: tuple[Path, ShardManifest], change: int) -> None:
    path, manifest = shard
    os.truncate(path, manifest.data_bytes + change)
    refused(rf"{path}: has {manifest.data_bytes + change} bytes, its manifest says", ShardReader, path, manifest)


def test_truncation_is_an_error_and_not_a_signal(shard: tuple[Path, ShardManifest]) -> None:
    """Cut at 12 places, with a manifest that is told the truth about the length: the pages must still be missed."""
    path, manifest = shard

    def read(tell: Callable[[str], object]) -> None:
        for step in range(11, -1, -1):
            short = manifest.data_bytes * step // 12
            os.truncate(path, short)
            for told in (manifest, replace(manifest, data_bytes=short, num_pages=short // 4096)):
                refused(str(path), lambda told=told: [each.features.sum() for each in ShardReader(path, told)])
                tell("+")

    in_a_child(read, range(24))


def test_a_missing_file_and_a_foreign_manifest(shard: tuple[Path, ShardManifest]) -> None:
    path, manifest = shard
    refused("which cannot be", ShardReader, path, replace(manifest, num_pages=manifest.num_pages + 1))
    refused("which cannot be", ShardReader, path, replace(manifest, index_bytes=2**40))
    refused("do not belong together", ShardReader, path, replace(manifest, num_records=29))
    shifted = replace(manifest, index_offset=manifest.index_offset + 8, index_bytes=3000)
    refused("offset index starts with", ShardReader, path, shifted)
    halves = replace(manifest, page_size=2048, num_pages=2 * manifest.num_pages)
    refused("pages of 4096 bytes, its manifest says", ShardReader, path, halves)
    data = bytearray(path.read_bytes())
    data[manifest.index_offset + manifest.index_bytes - 1] ^= 1
    path.write_bytes(data)
    refused("offset index has a wrong checksum", ShardReader, path, manifest)
    os.remove(path)
    refused("data file of shard 0 is missing", ShardReader, path, manifest, error=FileNotFoundError)


def test_a_shard_at_a_url_has_the_records_and_digests_of_the_file(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [[make_record(f"i{n}") for n in range(5)]])
    folder = output_folder(f"file://{tmp_path}/s")
    manifest = ShardManifest.read(tmp_path / "s" / "part-00000.json")
    assert manifest.data_file is not None
    shard = ShardObject(folder, manifest)
    with ShardReader(tmp_path / "s" / manifest.data_file, manifest) as reader:
        assert list(shard.digests()) == list(reader.digests()) and len(shard) == len(reader) == 5
        for row in range(5):
            mine, theirs = shard.record_at(row), reader.record_at(row)
            assert mine.image_id == theirs.image_id and np.array_equal(mine.features, theirs.features)

    more = replace(manifest, num_regions=manifest.num_regions + 1)
    refused(r"its index counts records, .* its manifest", ShardObject, folder, more)
    refused(r"\.lmdb: offset index", ShardObject, folder, replace(manifest, index_offset=manifest.index_offset - 64))
    path = tmp_path / "s" / manifest.data_file
    path.write_bytes(path.read_bytes()[: manifest.index_offset + 10])
    refused(f"has 10 bytes from {manifest.index_offset} on", ShardObject, folder, manifest)
    path.unlink()
    refused(manifest.data_file, ShardObject, folder, manifest, error=FileNotFoundError)
