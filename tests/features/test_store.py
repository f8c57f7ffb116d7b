"""The store as its users see it: lookups over shards, processes, missing pieces."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fuzz_child import in_a_child, limited_time
from refusals import refused
from store_examples import FINGERPRINT, make_record, write_shard, write_store

from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.shard.writer import publish_store
from roibeam.features.store import FeatureStore


def record(number: int, **rest: object):
    return make_record(f"i{number:03}", number % 7, seed=number, **rest)


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    """Shard ranges overlap: 0..58 even, 1..59 odd, 20..22 with a suffix, 100..109, and one shard without records."""
    late = [make_record(f"i{number:03}x", 2) for number in (20, 21, 22)]
    even, odd, last = (map(record, numbers) for numbers in (range(0, 60, 2), range(1, 60, 2), range(100, 110)))
    write_store(tmp_path / "s", [even, odd, [], late, last])
    return FeatureStore(tmp_path / "s")


def test_lookups(store: FeatureStore) -> None:
    assert len(store) == 73 and len(list(store.ids())) == len(set(store.ids())) == 73
    for number in (0, 1, 21, 58, 59, 100, 109):
        assert store[f"i{number:03}"].equals(record(number))
        assert f"i{number:03}" in store
    assert store.get("i021x", copy=False, check=True).num_regions == 2
    for absent in ("", "a", "i0", "i019x", "i060", "i110", "zzz", "\udc80", 3):
        assert absent not in store
    np.testing.assert_array_equal(store.meta("i058").boxes, record(58).boxes)
    refused(r"image id 'i060' is not in the store .*s \(73 records\)", store.__getitem__, "i060", error=KeyError)


def test_iteration_and_properties(store: FeatureStore) -> None:
    assert [one.image_id for one in store] == list(store.ids())
    assert all(view.equals(one) for view, one in zip(store.scan(copy=False, check=True), store, strict=True))
    assert list(store.ids())[:2] == ["i000", "i002"]
    assert (store.feature_dim, store.feature_dtype) == (8, "float16")
    assert store.num_regions == sum(one.num_regions for one in store)
    assert store.fingerprint == FINGERPRINT
    assert store.vocabulary == {"classes": ["cat", "dog"], "attributes": None}
    assert repr(store).endswith("73 records in 5 shards)")


def test_few_open_shards_at_once(store: FeatureStore) -> None:
    narrow = FeatureStore(store.path, max_open_shards=1)
    kept = narrow.get("i000", copy=False)
    for number in (1, 100, 0, 21, 109):
        assert narrow[f"i{number:03}"].equals(record(number))
        assert len(narrow._open.readers) == 1
    assert kept.equals(record(0))  # its shard was let go, its memory was not
    refused("at least 1, got 0", FeatureStore, store.path, max_open_shards=0)


def test_open_shards_respect_the_limit_of_open_files(tmp_path: Path) -> None:
    """A reader of many shards failed under a small `ulimit -n`, whatever `max_open_shards` was."""
    write_store(tmp_path / "s", [[record(number)] for number in range(40)])
    child = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
from roibeam.features.store import FeatureStore
store = FeatureStore(sys.argv[1])
print(sum(store[image_id].num_regions >= 0 for image_id in store.ids()))
"""
    run = subprocess.run([sys.executable, "-c", child, tmp_path / "s"], capture_output=True, text=True)
    assert run.stdout == "40\n", run.stderr


def test_close(store: FeatureStore) -> None:
    with store:
        view = store.get("i003", copy=False)
    assert view.equals(record(3))
    for use in (lambda: store["i003"], lambda: list(store), lambda: "i003" in store):
        refused("this store is closed", use)
    refused("this store is closed", pickle.loads(pickle.dumps(store)).__getitem__, "i003")


def test_other_processes(store: FeatureStore) -> None:
    assert "i021" in store  # open in the parent
    copy = pickle.loads(pickle.dumps(store))  # what a spawned process gets
    assert copy._open.readers == {} and copy["i021"].equals(record(21))

    def read(tell: Callable[[str], object]) -> None:
        with limited_time(20):
            assert store["i021"].equals(record(21)) and len(list(store)) == 73
        tell("+")

    with store._open.lock:  # held by "another thread" at the fork: the child must not wait for it
        in_a_child(read, range(1))
    assert store["i021"].equals(record(21))


def test_threads_share_one_store(store: FeatureStore) -> None:
    narrow = FeatureStore(store.path, max_open_shards=1)
    numbers = range(60)  # of two shards in turn
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda number: narrow[f"i{number:03}"], numbers))
    assert all(one.equals(record(number)) for one, number in zip(found, numbers, strict=True))


def test_nothing_there(tmp_path: Path) -> None:
    refused(r"no feature store here \(the folder is empty\)", FeatureStore, tmp_path, error=FileNotFoundError)
    refused("no feature store here", FeatureStore, tmp_path / "absent", error=FileNotFoundError)
    write_shard(tmp_path, 0, [record(1)])
    refused(r"has not finished: run the same command again$", FeatureStore, tmp_path, error=FileNotFoundError)
    (tmp_path / "plan.json").touch()  # of an extraction, which can be watched
    words = f"same command again; roibeam progress {tmp_path} tells whether"
    refused(words, FeatureStore, tmp_path, error=FileNotFoundError)


def test_a_changed_or_missing_shard(store: FeatureStore) -> None:
    write_shard(store.path, 0, [record(1)], attempt="b")
    refused(r"part-00000\.json: is not the manifest that manifest\.json was made from", store.__getitem__, "i000")
    (store.path / "part-00004.a.lmdb").unlink()
    with pytest.raises(FileNotFoundError, match=r"part-00004\.a\.lmdb: the data file of shard 4 is missing"):
        store["i100"]


def test_empty_store(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [[]])
    store = FeatureStore(tmp_path / "s")
    assert (len(store), list(store), "a" in store, store.feature_dim, store.feature_dtype) == (0, [], False, 0, None)


def test_growing_a_store(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [[record(i) for i in range(0, 10)]])
    write_shard(tmp_path / "s", 1, [record(i) for i in range(10, 20)])
    grown = publish_store(tmp_path / "s", [0, 1], fingerprint=FINGERPRINT, config={})
    assert grown.num_records == len(FeatureStore(tmp_path / "s")) == 20
    assert grown.content_digest == write_store(tmp_path / "t", [[record(i) for i in range(20)]]).content_digest


def test_what_publishing_refuses(tmp_path: Path) -> None:
    def publish(fingerprint: Fingerprint = FINGERPRINT) -> None:
        publish_store(tmp_path, [0, 1], fingerprint=fingerprint, config={})

    write_shard(tmp_path, 0, [record(1), record(2)])
    refused(r"part-00001\.json", publish, error=FileNotFoundError)
    write_shard(tmp_path, 1, [record(2), record(3)])
    refused("image id 'i002' is in two shards", publish)
    write_shard(tmp_path, 1, [record(3, dtype="float32")], attempt="b")
    refused("shards differ in feature width and dtype", publish)
    refused("features of two detectors or conventions do not mix", publish, Fingerprint("imported:other"))
    (tmp_path / "part-00001.json").write_bytes((tmp_path / "part-00000.json").read_bytes())
    refused("is the manifest of shard 0, expected 1", publish)
    assert not (tmp_path / "manifest.json").exists()


def test_a_store_is_found_when_the_process_moves(store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.path.parent)
    with FeatureStore(store.path.name) as opened:
        first = next(opened.ids())
    opened = FeatureStore(store.path.name)
    monkeypatch.chdir("/")
    assert opened[first].equals(store[first]) and str(opened.path) == store.path.name


def test_ids_are_texts(store: FeatureStore) -> None:
    for wrong in (0, slice(2), b"a", ["a"]):
        refused("image ids are texts, got", store.__getitem__, wrong, error=TypeError)
    ids = list(store.ids())[:2]
    assert store.get_batch(iter(ids)).image_ids == tuple(ids)  # type: ignore[arg-type]
