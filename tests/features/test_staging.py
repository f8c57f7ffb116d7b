"""A store at a URL, staged to a folder: whole or not there, inside its limit, for any number of processes."""

import json
import multiprocessing
import os
import pickle
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem
from refusals import refused
from store_examples import make_record, write_store

from roibeam.features.folders import object_folder
from roibeam.features.folders.folder_protocol import UnreachableError
from roibeam.features.reading.staging import StagedStore, plan_ranks
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, ShardEntry, StoreManifest
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store

# Three with three images each, i00 to i22, and one without.
SHARDS = [*([make_record(f"i{shard}{n}", 3, seed=10 * shard + n) for n in range(3)] for shard in range(3)), []]


class FlakyFiles(LocalFileSystem):
    """Local files behind a line that breaks, of a server that may know no ranges."""

    protocol = "flaky"
    bytes_until_it_breaks: int | None = None
    knows_ranges = True
    bytes_read = 0

    def _open(self, path: str, *args: Any, **options: Any) -> Any:
        source = super()._open(path, *args, **options)
        kind = type(self)

        def read(count: int) -> bytes:
            if path.endswith(".lmdb") and kind.bytes_until_it_breaks is not None:
                count = min(count, 4096)
                if kind.bytes_until_it_breaks <= 0:
                    raise ConnectionResetError("the line broke")
                kind.bytes_until_it_breaks -= count
            data = source.f.read(count)
            kind.bytes_read += len(data) if path.endswith(".lmdb") else 0
            return data

        def seek(position: int) -> int:
            if not kind.knows_ranges:
                raise ValueError("Cannot seek streaming HTTP file")
            return source.f.seek(position)

        return closing(SimpleNamespace(read=read, seek=seek, close=source.close))


fsspec.register_implementation("flaky", FlakyFiles, clobber=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_store(tmp_path / "source", SHARDS)
    return tmp_path / "source"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_folder, "WAIT_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def flaky(source: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in (("bytes_until_it_breaks", None), ("knows_ranges", True), ("bytes_read", 0)):
        monkeypatch.setattr(FlakyFiles, name, value)
    return f"flaky://{source}"


def data_files(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[0] for path in folder.glob("part-*.lmdb"))


def shard_bytes(source: Path) -> int:
    return max(entry.data_bytes for entry in StoreManifest.read(source / STORE_MANIFEST_NAME).shards)


def test_shards_come_when_they_are_read(source: Path, tmp_path: Path) -> None:
    with FeatureStore(source) as want, StagedStore(f"file://{source}", tmp_path / "here") as store:
        assert len(store) == len(want) and data_files(tmp_path / "here") == []
        assert store["i12"].image_id == "i12"
        assert data_files(tmp_path / "here") == ["part-00001"]
        assert [record.image_id for record in store] == list(want.ids())
        store.stage()  # what is left: the manifest of the shard without records
    assert verify_store(tmp_path / "here", deep=True) == []
    shutil.rmtree(source)
    with FeatureStore(tmp_path / "here") as alone:
        assert len(list(alone)) == 9


def test_a_share_is_staged_and_any_driver_will_do(source: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in source.iterdir():
        memory.pipe(f"/staging-test/{path.name}", path.read_bytes())
    store = StagedStore("memory://staging-test/", tmp_path / "here")
    share = plan_ranks(store.manifest.shards, 2)[1]
    told: list[tuple[int, int]] = []
    store.stage(share, progress=lambda done, total: told.append((done, total)))
    assert data_files(tmp_path / "here") == [f"part-{entry.shard:05d}" for entry in share]
    assert len(told) == len(share) and told[-1][0] == told[-1][1] == sum(entry.data_bytes for entry in share)
    memory.rm("/staging-test", recursive=True)
    store.stage(share)  # nothing left to ask for
    refused(r"memory://staging-test/part-0000\d.json: is missing, manifest.json", store.stage, error=FileNotFoundError)


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_broken_line_is_gone_on_with(
    flaky: str, source: Path, tmp_path: Path, knows_ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlakyFiles, "knows_ranges", knows_ranges)
    monkeypatch.setattr(FlakyFiles, "bytes_until_it_breaks", 3 * 4096)
    store = StagedStore(flaky, tmp_path / "here")
    first = store.manifest.shards[0]
    told = r"part-00000.a.lmdb: cannot be read, tried 4 times \(ConnectionResetError: the line broke\).*run the same"
    refused(told, store.stage, [first], error=UnreachableError)
    assert data_files(tmp_path / "here") == []
    (partial,) = (tmp_path / "here").glob(".part-00000.a.lmdb.tmp")
    assert partial.stat().st_size == (3 * 4096 if knows_ranges else 0)  # else each try begins anew
    monkeypatch.setattr(FlakyFiles, "bytes_until_it_breaks", None)
    store.stage([first])
    assert FlakyFiles.bytes_read == first.data_bytes + (0 if knows_ranges else 3 * 4096)
    assert [store[f"i0{n}"].image_id for n in range(3)] == ["i00", "i01", "i02"]


def test_what_arrives_damaged_is_dropped(source: Path, tmp_path: Path) -> None:
    path = source / "part-00001.a.lmdb"
    whole = path.read_bytes()
    with FeatureStore(source) as store:
        features = store["i11"].features.tobytes()
    at = whole.index(features)
    path.write_bytes(whole[: at + 5] + bytes([whole[at + 5] ^ 1]) + whole[at + 6 :])
    store = StagedStore(str(source), tmp_path / "here")
    refused(r"part-00001.a.lmdb: arrived damaged twice and was dropped .*'i11'", store.__getitem__, "i10")
    assert not list((tmp_path / "here").glob("*part-00001.a*"))
    assert store["i00"].image_id == "i00"
    path.write_bytes(whole[:-4096])
    refused(r"ends after \d+ bytes, its manifest says \d+", store.__getitem__, "i10", error=OSError)
    path.write_bytes(whole)
    assert store["i10"].image_id == "i10"


def test_a_manifest_that_is_not_the_stores(source: Path, tmp_path: Path) -> None:
    store = StagedStore(str(source), tmp_path / "here")
    path = source / "part-00002.json"
    path.write_text(path.read_text() + " ")
    refused(r"is not the manifest that manifest\.json was made from", store.__getitem__, "i20")


def test_names_from_elsewhere_stay_inside(source: Path, tmp_path: Path) -> None:
    path = source / STORE_MANIFEST_NAME
    text = path.read_text()
    data_files = [{"data_file": name} for name in ("../x.lmdb", "manifest.json", "part-00000.json")]
    for change in (*data_files, {"manifest": "x.json"}):
        value = json.loads(text)
        value["shards"][1] |= change
        path.write_text(json.dumps(value))
        refused(r"plain file name|expected part-00001\.json", StagedStore, str(source), tmp_path / "here")
        assert not (tmp_path / "here").exists(), change


def test_the_least_recently_used_make_room_and_those_in_use_stay(source: Path, tmp_path: Path) -> None:
    here, limit = tmp_path / "here", int(2.5 * shard_bytes(source))
    store = StagedStore(str(source), here, max_bytes=limit)
    for shard, seconds in ((0, 200), (1, 100)):
        store.stage([store.manifest.shards[shard]])
        os.utime(here / f".part-0000{shard}.json.lock", (seconds, seconds))
    assert store["i20"].image_id == "i20"
    assert data_files(here) == ["part-00000", "part-00002"]
    reader = StagedStore(str(source), here)
    view = reader.get("i00", copy=False)
    # 0 and 2 are open; the store gives its own way, not the other's.
    assert store["i10"].image_id == "i10"
    assert data_files(here) == ["part-00000", "part-00001"]
    tight = StagedStore(str(source), here, max_bytes=limit)
    refused(r"no room for shard 2 .* are of shards in use", tight.__getitem__, "i20")
    reader.close()
    assert tight["i20"].image_id == "i20" and view.boxes.shape == (3, 4)
    assert data_files(here) == ["part-00001", "part-00002"]
    refused(r"4 shards have [\d,]+ bytes, the limit is", store.stage)
    refused("no room for shard 0", StagedStore(str(source), tmp_path / "other", max_bytes=10).__getitem__, "i00")


def test_a_store_that_grew_keeps_its_shards_and_another_is_refused(source: Path, tmp_path: Path, flaky: str) -> None:
    StagedStore(flaky, tmp_path / "here").stage()
    before = FlakyFiles.bytes_read
    shutil.rmtree(source)
    write_store(source, [*SHARDS, [make_record("new")]])
    with StagedStore(flaky, tmp_path / "here") as store:
        store.stage()
        assert FlakyFiles.bytes_read - before == store.manifest.shards[-1].data_bytes
        assert store["i00"].image_id == "i00"
        shutil.rmtree(source)
        write_store(source, [[make_record("i00", seed=99)]])
        refused(r"shard 0 changed at .* and a process reads the staged one", StagedStore, flaky, tmp_path / "here")
    with StagedStore(flaky, tmp_path / "here") as store:
        assert list(store.ids()) == ["i00"]
    path = source / STORE_MANIFEST_NAME
    value = json.loads(path.read_text())
    value["fingerprint"]["feature_space"] = "imported:other"
    path.write_text(json.dumps(value))
    refused("holds shards of another store", StagedStore, flaky, tmp_path / "here")


def test_folders_and_urls_that_are_not_for_staging(source: Path, tmp_path: Path) -> None:
    refused("has files that were not staged here", StagedStore, str(source), source)
    refused("max_bytes must be at least 1", StagedStore, str(source), tmp_path / "here", max_bytes=0)

    with pytest.raises(FileNotFoundError, match=r"gone/manifest.json: is not there .*; is the URL right"):
        StagedStore(f"file://{tmp_path}/gone", tmp_path / "here")
    with pytest.raises(ValueError, match=r"nonsense://a: Protocol not known: nonsense; stores are in folders"):
        StagedStore("nonsense://a", tmp_path / "here")
    fsspec.register_implementation("lacking", "a_package_nobody_has.Files", clobber=True)
    with pytest.raises(ValueError, match=r"the package that reads lacking:// is missing: .*a_package_nobody_has"):
        StagedStore("lacking://a", tmp_path / "here")


def test_a_kill_between_data_and_manifest_costs_no_copy(flaky: str, tmp_path: Path) -> None:
    store = StagedStore(flaky, tmp_path / "here")
    store.stage()
    (tmp_path / "here" / "part-00001.json").unlink()
    before = FlakyFiles.bytes_read
    assert StagedStore(flaky, tmp_path / "here")["i11"].image_id == "i11"
    assert FlakyFiles.bytes_read == before


def test_forked_children_neither_keep_nor_end_a_lock(source: Path, tmp_path: Path) -> None:
    here, limit = tmp_path / "here", int(1.5 * shard_bytes(source))
    store = StagedStore(str(source), here)
    assert store["i00"].image_id == "i00"
    processes = multiprocessing.get_context("fork")
    reader = processes.Process(target=store.meta, args=("i01",))  # lets go of what it has from its parent
    reader.start()
    reader.join()
    assert reader.exitcode == 0
    refused("no room for shard 1", StagedStore(str(source), here, max_bytes=limit).__getitem__, "i10")
    end = processes.Event()
    idle = processes.Process(target=end.wait, args=(60,))
    idle.start()
    store.close()
    assert StagedStore(str(source), here, max_bytes=limit)["i10"].image_id == "i10"
    assert data_files(here) == ["part-00001"]
    end.set()
    idle.join()


def read_all(arguments: tuple[str, str, bytes | None]) -> tuple[list[str], int]:
    url, folder, pickled = arguments
    store = StagedStore(url, folder) if pickled is None else pickle.loads(pickled)
    return [record.image_id for record in store], FlakyFiles.bytes_read


def test_processes_share_a_folder_and_copy_each_shard_once(flaky: str, source: Path, tmp_path: Path) -> None:
    parent = StagedStore(flaky, tmp_path / "here")
    jobs = [(flaky, str(tmp_path / "here"), None), (flaky, str(tmp_path / "here"), pickle.dumps(parent))] * 2
    with multiprocessing.get_context("fork").Pool(4) as pool:
        results = pool.map(read_all, jobs, chunksize=1)
    assert all(ids == [record.image_id for shard in SHARDS for record in shard] for ids, _ in results)
    # A worker that did two jobs counts the bytes of both in the second.
    assert max(count for _, count in results) <= sum(entry.data_bytes for entry in parent.manifest.shards)
    assert verify_store(tmp_path / "here", deep=True)[0].file == "part-00003.json"  # the empty shard was not asked for


# --- Shards shared out among ranks: each once, balanced by bytes


def sized(number: int, data_bytes: int, num_records: int = 1) -> ShardEntry:
    return ShardEntry(
        shard=number, manifest=f"part-{number:05d}.json", data_file="x", num_records=num_records, num_regions=1,
        data_bytes=data_bytes, first_id="a", last_id="b", content_digest="", manifest_sha256="",
    )  # fmt: skip


@pytest.mark.parametrize("num_ranks", [1, 3, 7, 64])
def test_every_shard_goes_to_one_rank_and_loads_are_even(num_ranks: int) -> None:
    sizes = np.random.default_rng(0).integers(50, 400, 1650)
    shards = [sized(number, int(size)) for number, size in enumerate(sizes)]
    plan = plan_ranks(shards, num_ranks)
    assert sorted(entry.shard for entries in plan for entry in entries) == list(range(1650))
    assert all(entries == sorted(entries, key=lambda entry: entry.shard) for entries in plan)
    loads = [sum(entry.data_bytes for entry in entries) for entries in plan]
    assert max(loads) <= 1.02 * sum(loads) / num_ranks and min(loads) >= 0.98 * sum(loads) / num_ranks
    assert plan == plan_ranks(shards[::-1], num_ranks)


def test_empty_shards_and_more_ranks_than_shards() -> None:
    plan = plan_ranks([sized(0, 10), sized(1, 0, num_records=0), sized(2, 5)], 4)
    assert [[entry.shard for entry in entries] for entries in plan] == [[0], [2], [], []]
    refused("at least one rank", plan_ranks, [], 0)
