"""Batches for training: every image once an epoch, the same for any ranks, exact after a restart."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from store_examples import make_record, write_store

from roibeam.features.batch import RegionFilter
from roibeam.features.reading.batch_order import BatchStream
from roibeam.features.reading.staging import plan_ranks
from roibeam.features.store import FeatureStore

SIZES = (7, 4, 0, 11)
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    folder = tmp_path_factory.mktemp("stream") / "s"
    numbers = itertools.count()
    shards = [[make_record(f"i{n:02}", n % 5, seed=n) for n in itertools.islice(numbers, size)] for size in SIZES]
    write_store(folder, shards)
    return FeatureStore(folder)


def taken(stream: BatchStream, count: int) -> list[str]:
    return [name for batch in itertools.islice(stream, count) for name in batch.image_ids]


def test_an_epoch_has_every_image_once(store: FeatureStore) -> None:
    stream = BatchStream(store, batch_size=2, seed=1, window=8)
    assert stream.num_samples == TOTAL
    names = taken(stream, TOTAL)
    assert sorted(names[:TOTAL]) == sorted(names[TOTAL:]) == sorted(store.ids())
    assert names[:TOTAL] != names[TOTAL:]
    assert taken(BatchStream(store, batch_size=1, shuffle=False), TOTAL) == list(store.ids())


@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_hold_their_records_while_they_are_valid(store: FeatureStore, ahead: int) -> None:
    stream = iter(BatchStream(store, batch_size=3, seed=2, ahead=ahead))
    held = [next(stream)]
    for _ in range(20):
        held = [held[-1], next(stream)]
        for batch in held:
            for row, name in enumerate(batch.image_ids):
                assert batch.features is not None
                np.testing.assert_array_equal(batch.features[row, : batch.num_regions[row]], store[name].features)


def test_ranks_together_take_what_one_takes(store: FeatureStore) -> None:
    alone = taken(BatchStream(store, batch_size=2, seed=4), 12)
    ranks = [BatchStream(store, batch_size=2, seed=4, rank=rank, num_ranks=3) for rank in range(3)]
    rounds = zip(*(itertools.islice(stream, 4) for stream in ranks), strict=True)
    assert [name for batches in rounds for batch in batches for name in batch.image_ids] == alone


@pytest.mark.parametrize(("batch_size", "num_ranks"), [(2, 1), (1, 2), (4, 3)])
def test_a_state_goes_on_anywhere(store: FeatureStore, batch_size: int, num_ranks: int) -> None:
    whole = taken(BatchStream(store, batch_size=1, seed=5), 60)
    first = BatchStream(store, batch_size=2, seed=5, num_ranks=2)
    taken(first, 5)
    state = json.loads(json.dumps(first.state_dict()))
    assert state["next_sample"] == first.next_sample == 20
    found: list[str] = []
    streams = [
        BatchStream(store, batch_size=batch_size, seed=5, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)
    ]
    for stream in streams:
        stream.load_state_dict(state)
    for batches in zip(*(itertools.islice(stream, 3) for stream in streams), strict=True):
        found += [name for batch in batches for name in batch.image_ids]
    assert found == whole[20 : 20 + len(found)] and len(found) == 3 * batch_size * num_ranks


def test_what_was_assembled_ahead_is_not_lost_when_a_loop_stops(store: FeatureStore) -> None:
    stream, whole = BatchStream(store, batch_size=2, ahead=3), taken(BatchStream(store, batch_size=2), 8)
    assert taken(stream, 3) + taken(stream, 5) == whole


def test_ranks_that_read_their_own_shards_read_the_store_together(store: FeatureStore) -> None:
    plan = plan_ranks(store.manifest.shards, 2)
    streams = [BatchStream(store, batch_size=1, seed=3, shards=entries) for entries in plan]
    assert sum(stream.num_samples for stream in streams) == TOTAL
    for stream, entries in zip(streams, plan, strict=True):
        names = taken(stream, stream.num_samples)
        ranges = [(entry.first_id or "", entry.last_id or "") for entry in entries]
        assert len(set(names)) == stream.num_samples
        assert all(any(first <= name <= last for first, last in ranges) for name in names)
    whole = BatchStream(store, batch_size=1, seed=3)
    with pytest.raises(ValueError, match=r"shards \[.*\], here None"):
        whole.load_state_dict(streams[0].state_dict())
    # States from before there were shares are of the whole store.
    old = {name: value for name, value in whole.state_dict().items() if name != "shards"}
    whole.load_state_dict(old | {"next_sample": 5})
    assert whole.next_sample == 5
    with pytest.raises(ValueError, match="are not of the store"):
        BatchStream(store, batch_size=1, shards=[replace(plan[0][0], shard=9)])


def test_options_reach_the_batches(store: FeatureStore) -> None:
    stream = BatchStream(store, batch_size=4, fields=(), ragged=True, regions=RegionFilter(max_regions=2))
    batch = next(iter(stream))
    assert batch.features is None and batch.offsets is not None and batch.num_regions.max() == 2


def test_states_and_settings_that_do_not_fit(store: FeatureStore) -> None:
    stream = BatchStream(store, batch_size=2, seed=1)
    for change, message in (
        ({"seed": 2}, "seed 2, here 1"),
        ({"content": "x"}, "content 'x', here"),
        ({"next_sample": -1}, "next_sample is no count"),
        ({"format": 9}, "format 9, here 1"),
    ):
        with pytest.raises(ValueError, match=message):
            stream.load_state_dict(stream.state_dict() | change)
    for options in ({"batch_size": 0}, {"batch_size": 1, "rank": 2}, {"batch_size": 1, "ahead": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            BatchStream(store, **options)
    with pytest.raises(ValueError, match="never ends; RegionIterable has epochs"):
        BatchStream(store, batch_size=1, at_epoch_end="drop")
    with pytest.raises(TypeError, match="seeed"):
        BatchStream(store, batch_size=1, seeed=3)
    with pytest.raises(IndexError, match="shard 1 has 4 records, asked for row 4"):
        store.id_at(1, 4)
