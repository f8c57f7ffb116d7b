"""Every kind of damage is found and named, and a whole store gives no complaint."""

import json
import os
from pathlib import Path

import pytest
from refusals import refused
from small_files import write_json
from store_examples import make_record, write_shard, write_store

from roibeam.features.shard.layout import checksum, encode_meta
from roibeam.features.shard.lmdb_file import IndexRow, _arrays
from roibeam.features.shard.manifest import ShardManifest, data_file_name
from roibeam.features.shard.reader import ShardReader
from roibeam.features.store import FeatureStore
from roibeam.features.verify import Problem, verify_store


def plan(folder: Path, *sizes: int, **change: object) -> None:
    shards = [{"number": number, "num_images": size} for number, size in enumerate(sizes)]
    content = {"format": "roibeam-plan", "version": 1, "source": {}, "settings": {}, "shards": shards}
    write_json(folder / "plan.json", content | change)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shards = [[make_record(f"s{s}i{i:03}", 5, 64, seed=i, attributes=True) for i in range(30)] for s in range(2)]
    write_store(tmp_path / "s", [*shards, []])
    return tmp_path / "s"


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


def rows_of(folder: Path, shard: int) -> tuple[Path, list[IndexRow]]:
    path = folder / data_file_name(shard, "a")
    with ShardReader(path, ShardManifest.read(folder / f"part-{shard:05}.json")) as reader:
        return path, list(reader.index_rows())


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_whole_store(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert verify_store(folder) == []
    assert verify_store(folder, deep=True, progress=lambda done, total: seen.append((done, total))) == []
    assert seen[-1] == (60, 60) and seen == sorted(seen)


def test_leftovers_are_listed(folder: Path) -> None:
    for name in ("part-00000.b.lmdb", "part-00000.a.lmdb-lock", ".manifest.json.7.abc.tmp", "notes.txt"):
        (folder / name).write_bytes(b"")
    write_shard(folder, 7, [])
    problems = verify_store(folder)
    assert all(problem.leftover for problem in problems)
    left = [".manifest.json.7.abc.tmp", "part-00000.a.lmdb-lock", "part-00000.b.lmdb", "part-00007.json"]
    assert [problem.file for problem in problems] == left


@pytest.mark.parametrize("deep", [False, True])
def test_files_cut_or_gone(folder: Path, deep: bool) -> None:
    path = folder / data_file_name(1, "a")
    os.truncate(path, path.stat().st_size - 4096)
    problem = only(verify_store(folder, deep=deep))
    assert problem.file == path.name and "its manifest says" in problem.what and "extract" in problem.what_to_do
    path.unlink()
    assert "is missing" in only(verify_store(folder, deep=deep)).what


def test_manifests_that_disagree(folder: Path) -> None:
    path = folder / "part-00001.json"
    write_json(path, json.loads(path.read_text()) | {"num_regions": 3})
    problem = only(verify_store(folder))
    assert problem.file == path.name and "does not agree with manifest.json about shard 1" in problem.what
    path.write_text("{")
    assert "is not JSON" in only(verify_store(folder)).what


@pytest.mark.parametrize("change", [{"content_digest": "0" * 64}, {"num_dead_letters": 3}])
def test_totals(folder: Path, change: dict[str, object]) -> None:
    path = folder / "manifest.json"
    write_json(path, json.loads(path.read_text()) | change)
    assert only(verify_store(folder)).file == "manifest.json"


def test_deep_finds_what_fast_cannot(folder: Path) -> None:
    path, rows = rows_of(folder, 1)
    for offset, words in [
        (rows[7].region_offset + 48 + 3, "record 's1i007': region value has checksum"),
        (rows[7].meta_offset + 40, "record 's1i007': meta value has checksum"),
    ]:
        original = path.read_bytes()
        overwrite(path, offset, bytes([original[offset] ^ 1]))
        assert verify_store(folder) == []
        problem = only(verify_store(folder, deep=True))
        assert problem.file == path.name and words in problem.what
        path.write_bytes(original)
    # A value swapped for another valid one: every checksum is right, only the digest tells.
    other = encode_meta(make_record("s1i007", 5, 64, seed=99))
    overwrite(path, rows[7].meta_offset, other)
    assert verify_store(folder) == []
    assert "another digest than the index says" in only(verify_store(folder, deep=True)).what


def test_deep_reads_the_shards_that_are_asked_for(folder: Path) -> None:
    path, (row, *_) = rows_of(folder, 1)
    overwrite(path, row.region_offset + 48 + 3, b"\xff\xff\xff\xff")
    assert verify_store(folder, deep=True, deep_shards=range(1)) == []
    assert only(verify_store(folder, deep=True, deep_shards=range(1, 9))).file == path.name


def test_deep_walks_the_tree_before_lmdb_opens_it(folder: Path) -> None:
    path = folder / data_file_name(0, "a")
    data = bytearray(path.read_bytes())
    for start in range(2 * 4096, len(data), 4096):
        if int.from_bytes(data[start + 10 : start + 12], "little") == 2:  # leaf pages: break the first node pointer
            data[start + 16 : start + 18] = b"\xff\xff"
    path.write_bytes(data)
    assert "not a whole LMDB 0.9 file" in only(verify_store(folder, deep=True)).what


def test_many_bad_records_give_a_short_report(folder: Path) -> None:
    path, rows = rows_of(folder, 0)
    for row in rows:
        overwrite(path, row.meta_offset + 33, b"\x11\x22\x33")
    assert len(verify_store(folder, deep=True)) == 20


def test_an_unfinished_store_tells_what_of_it_is_there(folder: Path, tmp_path: Path) -> None:
    nothing = only(verify_store(tmp_path))
    assert nothing.file == "manifest.json" and "no feature store here" in nothing.what
    (folder / "manifest.json").unlink()
    (folder / ".tmp-0a1b").mkdir()
    (folder / "part-00005.b.lmdb").write_bytes(b"")
    for deep in (False, True):
        first, *others = verify_store(folder, deep=deep)
        assert first.file == "manifest.json" and not first.leftover
        assert "has not finished, 3 shards of it can be used" in first.what
        assert [(one.file, one.leftover) for one in others] == [(".tmp-0a1b", True), ("part-00005.b.lmdb", True)]
    os.truncate(folder / data_file_name(0, "a"), 4096)
    first, second, *_ = verify_store(folder)
    assert "2 shards of it can be used" in first.what and "its manifest says" in second.what and not second.leftover


def sealed_index(folder: Path, at: int, data: bytes) -> None:
    """Writes into the index of shard 0, and its checksum anew."""
    path = folder / data_file_name(0, "a")
    manifest = ShardManifest.read(folder / "part-00000.json")
    overwrite(path, manifest.index_offset + at, data)
    index = path.read_bytes()[manifest.index_offset :][: manifest.index_bytes]
    overwrite(path, manifest.index_offset + 40, checksum([index[:40], index[48:]]).to_bytes(8, "little"))


def test_an_index_that_hides_a_record(folder: Path) -> None:
    sealed_index(folder, 48, bytes(8))  # the smallest of the key hashes
    assert verify_store(folder) == []
    problem = only(verify_store(folder, deep=True))
    assert "a lookup in the offset index does not find it" in problem.what


def test_an_index_that_points_outside_is_one_line(folder: Path) -> None:
    key_offsets = 48 + 64 * 4 + 64 * 2  # behind 30 hashes of 8 bytes and 30 rows of 4
    sealed_index(folder, key_offsets + 8, b"\xff" * 8)
    for deep in (False, True):
        assert "offset index puts key 0 at 0 to" in only(verify_store(folder, deep=deep)).what


def test_a_record_of_another_dtype_or_size_is_not_read(folder: Path) -> None:
    path, (row, *_) = rows_of(folder, 0)
    original = path.read_bytes()
    with FeatureStore(folder) as store:
        overwrite(path, row.region_offset + 6, b"\3")  # as wide as float16
        refused("record 's0i000' has bfloat16 features, the offset index says float16", store.get, "s0i000")
        path.write_bytes(original)
        overwrite(path, row.meta_offset + 12, b"\xff" * 4)
        for read in (store.get, store.meta):
            refused("an image of 640x4294967295 pixels", read, "s0i000")


def test_a_record_of_another_number_of_regions_is_not_read(folder: Path) -> None:
    places, _ = _arrays(30, 30 * len("s0i000"))
    sealed_index(folder, 48 + places["num_regions"][2], b"\x63\0")
    words = "record 's0i000' has . regions of 64 values, the offset index says 99 of"
    with FeatureStore(folder) as store:
        for read in (store.get, store.meta):
            refused(words, read, "s0i000")


def test_a_run_that_adds_images_and_has_not_finished_is_told_by_the_plan(folder: Path) -> None:
    plan(folder, 30, 30, 4)  # the third gave no record
    assert verify_store(folder, deep=True) == []
    plan(folder, 30, 30, 4, 20, 16)
    problem = only(verify_store(folder, deep=True))
    assert problem.file == "plan.json" and not problem.leftover
    missing = "2 of 5 planned shards (36 of 100 images) are missing"
    assert problem.what == f"a run that adds images has not finished: {missing}"
    assert problem.what_to_do == "run the same command again"
    # Its finished shards are no rubbish, their data least of all.
    write_shard(folder, 3, [make_record("later")])
    (folder / "part-00004.dead.lmdb").touch()
    told = {problem.file: problem.what_to_do for problem in verify_store(folder)}
    assert told == {
        "plan.json": "run the same command again",
        "part-00003.json": "run the same command again",
        "part-00004.dead.lmdb": "delete it when no run is writing this store",
    }


@pytest.mark.parametrize("change", [{"format": "mine"}, {"shards": [{}]}, {"shards": None}])
def test_a_damaged_plan(folder: Path, change: dict[str, object]) -> None:
    plan(folder, 30, **change)
    problem = only(verify_store(folder))
    assert problem.file == "plan.json" and "is damaged or no plan of roibeam" in problem.what
    assert problem.what_to_do == "run the same command again, or restore it"


def test_a_newer_attempt_of_a_shard_keeps_its_data(folder: Path) -> None:
    write_shard(folder, 1, [make_record("other")], attempt="b")
    problem = only(verify_store(folder))
    assert problem.file == "part-00001.json" and "does not agree" in problem.what


@pytest.mark.parametrize("new_attempt", [False, True])
def test_a_shard_whose_failed_images_are_tried_again_can_be_read(folder: Path, new_attempt: bool) -> None:
    with FeatureStore(folder) as store:
        wanted = [record.image_id for record in store]
    (folder / "part-00001.json").rename(folder / "retried-00001.json")
    if new_attempt:
        write_shard(folder, 1, [make_record("other")], attempt="b")
    with FeatureStore(folder) as store:
        assert [record.image_id for record in store.scan(check=True)] == wanted
    problem = only(verify_store(folder))
    assert problem.file == "part-00001.json" and "its failed images are tried again" in problem.what
    # That of another attempt is not what the store was made from.
    (folder / "retried-00001.json").write_text("{}")
    with pytest.raises((FileNotFoundError, ValueError), match=r"part-00001\.json: is (missing|not the manifest)"):
        FeatureStore(folder)["s1i000"]
