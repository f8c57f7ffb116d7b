"""Stores under torch's DataLoader: the same batches for any workers, ranks and start method, exact after a restart."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from store_examples import make_record, write_store
from torch.utils.data import DataLoader, SequentialSampler, Subset

from roibeam.features.reading.batch_stream import BatchStream
from roibeam.features.reading.rank_plan import plan_ranks
from roibeam.features.reading.torch_datasets import RegionBatchSampler, RegionDataset, RegionIterable
from roibeam.features.region_filter import RegionFilter
from roibeam.features.store import FeatureStore

SIZES = (7, 4, 0, 12)
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    folder = tmp_path_factory.mktemp("datasets") / "s"
    numbers = itertools.count()
    extras = {"attributes": True, "image_feature": True}
    shards = [
        [make_record(f"i{n:02}", n % 4, seed=n, **extras) for n in itertools.islice(numbers, size)] for size in SIZES
    ]
    write_store(folder, shards)
    return FeatureStore(folder)


def sampled(store: FeatureStore, workers: int = 0, state: dict[str, Any] | None = None, **options: Any) -> Any:
    sampler = RegionBatchSampler(store, seed=3, window=9, **options)
    if state is not None:
        sampler.load_state_dict(state)
    dataset = RegionDataset(store)
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=RegionDataset.collate, num_workers=workers)


def streamed(store: FeatureStore, workers: int = 0, state: dict[str, Any] | None = None, **options: Any) -> Any:
    dataset = RegionIterable(store, seed=3, window=9, **options)
    if state is not None:
        dataset.load_state_dict(state)
    return DataLoader(dataset, batch_size=None, num_workers=workers)


def position(loader: Any) -> Any:
    return loader.dataset if isinstance(loader.dataset, RegionIterable) else loader.batch_sampler


def names(loader: Any, count: int | None = None) -> list[list[str]]:
    return [batch["image_ids"] for batch in itertools.islice(loader, count)]


def flat(batches: Iterable[list[str]]) -> list[str]:
    return list(itertools.chain.from_iterable(batches))


def check(store: FeatureStore, batch: dict[str, Any]) -> None:
    for row, name in enumerate(batch["image_ids"]):
        record, count = store[name], int(batch["num_regions"][row])
        np.testing.assert_array_equal(batch["features"][row, :count].numpy(), record.features)
        np.testing.assert_array_equal(batch["boxes"][row, :count].numpy(), record.boxes)
        assert batch["region_mask"][row].sum() == count == record.num_regions


def test_numbers_are_the_order_of_ids(store: FeatureStore) -> None:
    dataset = RegionDataset(store, fields=("features", "attributes", "image_feature"))
    assert len(dataset) == TOTAL
    assert [sample["image_id"] for sample in map(dataset.__getitem__, range(TOTAL))] == list(store.ids())
    sample, record = dataset[9], store["i09"]
    assert sample["features"].dtype == torch.float16 and sample["class_ids"].dtype == torch.uint16
    for name in ("boxes", "features", "class_ids", "class_scores", "attribute_ids", "image_feature"):
        np.testing.assert_array_equal(sample[name].numpy(), getattr(record, name))
    assert sample["image_hw"].tolist() == [480, 640] and int(sample["num_regions"]) == 1
    copied = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copied.__getitems__([9, 2])["features"], dataset.__getitems__([9, 2])["features"])
    for wrong in (-1, TOTAL):
        with pytest.raises(IndexError, match=f"records 0 to {TOTAL - 1}"):
            dataset[wrong]


def test_the_samplers_of_torch_work(store: FeatureStore) -> None:
    dataset = RegionDataset(store, fields=(), ragged=True, regions=RegionFilter(max_regions=2))
    for source in (dataset, Subset(dataset, range(TOTAL))):
        loader: Any = DataLoader(source, 5, sampler=SequentialSampler(source), collate_fn=RegionDataset.collate)  # type: ignore[arg-type]
        batches = list(loader)
        assert [name for batch in batches for name in batch["image_ids"]] == list(store.ids())
        assert "features" not in batches[0] and int(batches[0]["num_regions"].max()) == 2
        assert int(batches[0]["offsets"][-1]) == len(batches[0]["boxes"])
    with pytest.raises(ValueError, match="pad them in a collate_fn of your own"):
        RegionDataset.collate([dataset[0]])  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [sampled, streamed])
def test_the_number_of_workers_changes_nothing(store: FeatureStore, make: Any) -> None:
    alone = names(make(store, batch_size=5, at_epoch_end="short"))
    assert sorted(flat(alone)) == sorted(store.ids()) and len(alone) == 5  # two workers: one has a batch less
    batches = list(make(store, 2, batch_size=5, at_epoch_end="short"))
    assert [batch["image_ids"] for batch in batches] == alone
    for batch in batches:
        check(store, batch)
        assert batch["image_hw"].is_shared()


def test_both_ways_and_the_stream_give_one_order(store: FeatureStore) -> None:
    stream = BatchStream(store, batch_size=3, seed=3, window=9)
    want = [list(batch.image_ids) for batch in itertools.islice(stream, 20)]
    assert names(sampled(store, batch_size=3, at_epoch_end="go on"), 20) == want
    assert names(streamed(store, batch_size=3, at_epoch_end="go on"), 20) == want
    with pytest.raises(TypeError, match="batches never end"):
        len(RegionIterable(store, batch_size=3, at_epoch_end="go on"))


@pytest.mark.parametrize("make", [sampled, streamed])
@pytest.mark.parametrize(("at_epoch_end", "lengths"), [("drop", [3, 3, 3]), ("short", [4, 4, 4])])
def test_ranks_share_an_epoch(store: FeatureStore, make: Any, at_epoch_end: str, lengths: list[int]) -> None:
    alone = [name for batch in names(make(store, batch_size=1, at_epoch_end="short")) for name in batch]
    ranks = [make(store, batch_size=2, rank=rank, num_ranks=3, at_epoch_end=at_epoch_end) for rank in range(3)]
    assert [len(position(loader)) for loader in ranks] == lengths
    found = [names(loader) for loader in ranks]
    assert [len(batches) for batches in found] == lengths
    together = [name for batches in itertools.zip_longest(*found, fillvalue=[]) for batch in batches for name in batch]
    assert together == alone[: 18 if at_epoch_end == "drop" else TOTAL]


@pytest.mark.parametrize("size", [1, 2, 3, 5, TOTAL, TOTAL + 1])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_lengths_are_what_comes(store: FeatureStore, size: int, num_ranks: int) -> None:
    for at_epoch_end in ("drop", "short"):
        found = []
        for rank in range(num_ranks):
            sampler = RegionBatchSampler(
                store, batch_size=size, rank=rank, num_ranks=num_ranks, at_epoch_end=at_epoch_end
            )
            batches = list(sampler)
            assert len(batches) == len(sampler) and all(batches)
            found += [number for batch in batches for number in batch]
        assert len(set(found)) == len(found)
        assert len(found) == (TOTAL if at_epoch_end == "short" else TOTAL // (size * num_ranks) * size * num_ranks)


@pytest.mark.parametrize(("make", "other"), [(sampled, streamed), (streamed, sampled)])
@pytest.mark.parametrize(("num_ranks", "size", "workers"), [(1, 3, 2), (3, 1, 0)])
def test_a_state_goes_on_anywhere(
    store: FeatureStore, make: Any, other: Any, num_ranks: int, size: int, workers: int
) -> None:
    whole = [name for batch in names(make(store, batch_size=1, at_epoch_end="short")) for name in batch]
    ranks = [make(store, 2 - rank, batch_size=2, rank=rank, num_ranks=2, at_epoch_end="short") for rank in range(2)]
    for loader in ranks:
        names(loader, 3)  # the worker is further already
    states = [json.loads(json.dumps(position(loader).state_dict(3))) for loader in ranks]
    assert states[0] == states[1] and states[0]["next_sample"] == 12
    rest = [
        names(other(store, workers, states[0], batch_size=size, rank=rank, num_ranks=num_ranks, at_epoch_end="short"))
        for rank in range(num_ranks)
    ]
    found = [name for batches in itertools.zip_longest(*rest, fillvalue=[]) for batch in batches for name in batch]
    assert found == whole[12:]


@pytest.mark.parametrize("make", [sampled, streamed])
def test_epochs_are_set_and_a_position_inside_one_stays(store: FeatureStore, make: Any) -> None:
    loader = make(store, batch_size=4, at_epoch_end="short")
    order = position(loader)
    first = names(loader)
    assert names(loader) == first  # nobody moved it
    order.set_epoch(1)
    second = names(loader)
    assert second != first and sorted(flat(second)) == sorted(flat(first))
    assert order.state_dict(len(second))["next_sample"] == 2 * TOTAL  # the short batch is no whole one
    order.load_state_dict(order.state_dict(2))
    order.set_epoch(order.epoch)
    assert names(loader) == second[2:]
    with pytest.raises(ValueError, match="counted from 0"):
        order.set_epoch(-1)


def test_persistent_workers_hear_of_a_new_epoch(store: FeatureStore) -> None:
    dataset = RegionIterable(store, batch_size=4, at_epoch_end="short")
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append(names(loader))
    dataset.set_epoch(1)
    assert epochs[1] == names(DataLoader(dataset, batch_size=None)) != epochs[0]


def test_reused_buffers_hold_a_batch_and_the_next(store: FeatureStore) -> None:
    dataset = RegionIterable(store, batch_size=3, at_epoch_end="go on", reused_buffers=5)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, prefetch_factor=2)
    held: list[dict[str, Any]] = []
    for batch in itertools.islice(loader, 25):
        held = [*held[-1:], batch]
        for one in held:
            check(store, one)
    with pytest.raises(ValueError, match="at least 2"):
        RegionDataset(store, reused_buffers=1)


def test_a_rank_reads_its_own_shards(store: FeatureStore) -> None:
    found: list[str] = []
    for entries in plan_ranks(store.manifest.shards, 2):
        one, other = (
            flat(names(make(store, batch_size=2, shards=entries, at_epoch_end="short"))) for make in (sampled, streamed)
        )
        assert one == other
        found += one
    assert sorted(found) == sorted(store.ids())


def test_bfloat16(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [[make_record("a", dtype="bfloat16"), make_record("b", 0, dtype="bfloat16")]])
    dataset = RegionDataset(FeatureStore(tmp_path / "s"))
    batch = dataset.__getitems__([0, 1])
    want = torch.from_numpy(FeatureStore(tmp_path / "s")["a"].features.astype(np.float32))
    assert batch["features"].dtype == torch.bfloat16 and torch.equal(batch["features"][0].float(), want)
    assert dataset[1]["features"].shape == (0, 8) and batch["region_mask"].tolist() == [[True] * 3, [False] * 3]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_methods(store: FeatureStore, method: str) -> None:
    dataset = RegionIterable(store, batch_size=4, at_epoch_end="short", reused_buffers=5)
    want = names(DataLoader(dataset, batch_size=None))
    loader: Any = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    assert names(loader) == want
    dataset.set_epoch(1)
    assert names(loader) == names(DataLoader(dataset, batch_size=None)) != want


def test_what_cannot_be_asked_for(store: FeatureStore) -> None:
    with pytest.raises(ValueError, match="at_epoch_end 'stop': choose one of go on, drop, short"):
        RegionBatchSampler(store, batch_size=1, at_epoch_end="stop")
    with pytest.raises(ValueError, match="fields \\['masks'\\] are unknown"):
        RegionIterable(store, batch_size=1, fields=("masks",))
