"""Stores under torch's DataLoader: the same batches for any workers, ranks and start method, exact after a restart."""

import itertools
import json
import pickle
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from store_examples import make_record, write_store
from torch.utils.data import ConcatDataset, DataLoader, Subset

from roibeam.features.batch import RegionFilter
from roibeam.features.reading.batch_order import BatchStream
from roibeam.features.reading.staging import plan_ranks
from roibeam.features.reading.torch_datasets import RegionBatchSampler, RegionDataset, RegionIterable
from roibeam.features.store import FeatureStore

SIZES = (7, 4, 0, 12)
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    folder = tmp_path_factory.mktemp("datasets") / "s"
    extras = {"attributes": True, "image_feature": True}
    records = (make_record(f"i{n:02}", n % 4, seed=n, **extras) for n in itertools.count())
    write_store(folder, [list(itertools.islice(records, size)) for size in SIZES])
    return FeatureStore(folder)


def sampled(store: FeatureStore, workers: int = 0, state: dict[str, Any] | None = None, **options: Any) -> Any:
    sampler = RegionBatchSampler(store, seed=3, window=9, **options)
    if state is not None:
        sampler.load_state_dict(state)
    dataset: Any = RegionDataset(store)
    return DataLoader(dataset, batch_sampler=sampler, num_workers=workers)


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
        np.testing.assert_array_equal(np.asarray(batch["features"][row, :count]), record.features)
        np.testing.assert_array_equal(np.asarray(batch["boxes"][row, :count]), record.boxes)
        assert batch["region_mask"][row].sum() == count == record.num_regions


def test_numbers_are_the_order_of_ids(store: FeatureStore) -> None:
    dataset = RegionDataset(store, fields=("features", "attributes", "image_feature"))
    assert len(dataset) == TOTAL
    assert [sample["image_id"] for sample in map(dataset.__getitem__, range(TOTAL))] == list(store.ids())
    sample, record = dataset[9], store["i09"]
    assert sample["features"].dtype == torch.float16
    assert sample["class_ids"].dtype == sample["attribute_ids"].dtype == torch.int64
    for name in ("boxes", "features", "class_ids", "class_scores", "attribute_ids", "image_feature"):
        np.testing.assert_array_equal(sample[name].numpy(), getattr(record, name))
    assert sample["image_hw"].tolist() == [480, 640] and int(sample["num_regions"]) == 1
    copied = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copied.__getitems__([9, 2])[0]["features"], sample["features"])
    for wrong in (-1, TOTAL):
        refused(f"records 0 to {TOTAL - 1}", dataset.__getitem__, wrong, error=IndexError)


def everything(store: FeatureStore, **options: Any) -> Any:
    return RegionDataset(store, fields=("features", "attributes", "image_feature"), **options)


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Names, dtypes and values."""
    tensors = one.keys() - {"image_ids"}
    return (
        one.keys() == other.keys()
        and one["image_ids"] == other["image_ids"]
        and all(one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in tensors)
    )


@pytest.mark.parametrize(("workers", "ragged"), [(0, False), (0, True), (2, False)])
def test_a_loader_needs_no_collate_function(store: FeatureStore, workers: int, ragged: bool) -> None:
    """Batches of a plain DataLoader are those of the store, whatever is drawn, and whatever stands around it."""
    dataset = everything(store, ragged=ragged)
    in_order: list[Any] = list(DataLoader(dataset, batch_size=5, drop_last=True, num_workers=workers))
    ids = list(store.ids())
    assert [batch["image_ids"] for batch in in_order] == [ids[at : at + 5] for at in range(0, 20, 5)]
    shuffled: list[Any] = list(DataLoader(dataset, batch_size=5, shuffle=True))
    assert sorted(flat(batch["image_ids"] for batch in shuffled)) == ids and len(shuffled) == 5
    for batch in [*in_order, *shuffled]:
        want = store.get_batch(batch["image_ids"], fields=("features", "attributes", "image_feature"), ragged=ragged)
        names = [name for name, value in vars(want).items() if value is not None]
        assert sorted(batch) == sorted(names)
        for name in set(names) - {"image_ids"}:
            np.testing.assert_array_equal(batch[name].numpy(), getattr(want, name))
        assert batch["class_ids"].dtype == batch["attribute_ids"].dtype == torch.int64
    half: Any = Subset(dataset, range(11))
    both = ConcatDataset([half, Subset(dataset, range(11, TOTAL))])
    for source, with_workers in ((half, 0), (both, workers)):  # a ConcatDataset asks for single images
        found: list[Any] = list(DataLoader(source, batch_size=5, num_workers=with_workers))
        assert all(map(equal, found[:2], in_order))


class Labelled:
    """Regions beside a label, as everybody writes it."""

    def __init__(self, regions: Any) -> None:
        self.regions = regions

    def __len__(self) -> int:
        return len(self.regions)

    def __getitem__(self, index: int) -> Any:
        return self.regions[index], index % 2


def test_samples_are_single_images_for_whoever_asks(store: FeatureStore) -> None:
    dataset = everything(store, regions=RegionFilter(max_regions=2))
    (batch,) = DataLoader(dataset, batch_size=TOTAL)
    regions, labels = next(iter(DataLoader(Labelled(dataset), batch_size=TOTAL)))  # type: ignore[arg-type]
    assert equal(regions, batch) and labels.tolist() == [number % 2 for number in range(TOTAL)]
    for ragged in (False, True):
        dataset = everything(store, ragged=ragged)
        (samples,) = DataLoader(dataset, batch_size=TOTAL, collate_fn=list)  # somebody else's
        alone = list(DataLoader(dataset, batch_size=None))
        assert len(samples) == len(alone) == TOTAL
        for sample, one in zip(samples, alone, strict=True):
            assert sample.keys() == one.keys() and sample["image_id"] == one["image_id"]
            assert all(torch.equal(sample[name], one[name]) for name in one.keys() - {"image_id"})
    taken = dataset.__getitems__([3, 9, 2])
    assert taken[-1]["image_id"] == "i02" and [each["image_id"] for each in taken[1:]] == ["i09", "i02"]


def test_images_that_are_no_batch(store: FeatureStore, tmp_path: Path) -> None:
    write_store(tmp_path / "s", [[make_record("other", 2, 5)]])
    mixed: Any = ConcatDataset([RegionDataset(store), RegionDataset(FeatureStore(tmp_path / "s"))])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"record 'other' has features .*5.* record 'i00' .*a batch needs one kind"):
        list(DataLoader(mixed, batch_size=TOTAL + 1))
    fewer: Any = ConcatDataset([everything(store), RegionDataset(store)])  # type: ignore[list-item]
    refused(r"has (attribute_ids|attribute_scores|image_feature) none,", list, DataLoader(fewer, batch_size=TOTAL + 1))


@pytest.mark.parametrize("regions", [None, RegionFilter(max_regions=2)])
def test_ids_of_the_best_classes_are_int64_too(tmp_path: Path, regions: RegionFilter | None) -> None:
    write_store(tmp_path / "s", [[make_record(name, distribution="top-k") for name in "ab"]])
    store = FeatureStore(tmp_path / "s")
    dataset: Any = RegionDataset(store, fields=("class_distribution",), regions=regions)
    (batch,) = DataLoader(dataset, batch_size=2)
    assert batch["top_k_ids"].dtype == torch.int64
    want = store.get_batch(["a", "b"], fields=("class_distribution",), regions=regions)
    np.testing.assert_array_equal(batch["top_k_ids"].numpy(), want.top_k_ids)


@pytest.mark.parametrize("make", [sampled, streamed])
def test_the_number_of_workers_changes_nothing(store: FeatureStore, make: Any) -> None:
    alone = names(make(store, batch_size=5, at_epoch_end="short"))
    assert sorted(flat(alone)) == sorted(store.ids()) and len(alone) == 5  # two workers: one has a batch less
    batches = list(make(store, 2, batch_size=5, at_epoch_end="short"))
    assert [batch["image_ids"] for batch in batches] == alone
    for batch in batches:
        check(store, batch)
        assert batch["image_hw"].is_shared()


def taken(stream: BatchStream, count: int) -> list[list[str]]:
    return [list(batch.image_ids) for batch in itertools.islice(stream, count)]


@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 1), (1, 3)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_both_ways_and_the_stream_give_one_order(store: FeatureStore, rank: int, num_ranks: int, shuffle: bool) -> None:
    options = {"batch_size": 3, "rank": rank, "num_ranks": num_ranks, "shuffle": shuffle}
    stream = BatchStream(store, seed=3, window=9, **options)
    assert stream.num_samples == TOTAL
    want = taken(stream, 20)
    assert (flat(want)[:TOTAL] == list(store.ids())) == (num_ranks == 1 and not shuffle)
    for make in (sampled, streamed):
        loader = make(store, **options, at_epoch_end="go on")
        assert names(loader, 20) == want
        state = json.loads(json.dumps(position(loader).state_dict(7)))
        again = BatchStream(store, seed=3, window=9, **options)
        again.load_state_dict(state)
        assert again.state_dict() == state and again.next_sample == 21 * num_ranks
        assert taken(again, 5) + taken(again, 8) == want[7:]  # what was assembled ahead is not lost
        assert again.state_dict() == stream.state_dict()
    refused("batches never end", len, RegionIterable(store, batch_size=3, at_epoch_end="go on"), error=TypeError)


@pytest.mark.parametrize("make", [sampled, streamed])
@pytest.mark.parametrize(("at_epoch_end", "lengths"), [("drop", [3, 3, 3]), ("short", [4, 4, 4])])
def test_ranks_share_an_epoch(store: FeatureStore, make: Any, at_epoch_end: str, lengths: list[int]) -> None:
    alone = flat(names(make(store, batch_size=1, at_epoch_end="short")))
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
    whole = flat(names(make(store, batch_size=1, at_epoch_end="short")))
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
    assert names(loader) == first  # unmoved
    order.set_epoch(1)
    second = names(loader)
    assert second != first and sorted(flat(second)) == sorted(flat(first))
    assert order.state_dict(len(second))["next_sample"] == 2 * TOTAL  # the short batch is no whole one
    order.load_state_dict(order.state_dict(2))
    order.set_epoch(order.epoch)
    assert names(loader) == second[2:]
    refused("counted from 0", order.set_epoch, -1)


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
    loaded = DataLoader(dataset, batch_size=None, num_workers=1, prefetch_factor=2)
    streams = [map(vars, BatchStream(store, batch_size=3, seed=2, ahead=ahead)) for ahead in (1, 3)]
    for batches in (loaded, *streams):
        held: list[dict[str, Any]] = []
        for batch in itertools.islice(batches, 25):
            held = [*held[-1:], batch]
            for one in held:
                check(store, one)
    refused("at least 2", RegionDataset, store, reused_buffers=1)


def test_a_rank_reads_its_own_shards(store: FeatureStore) -> None:
    found: list[str] = []
    plan = plan_ranks(store.manifest.shards, 2)
    for entries in plan:
        stream = BatchStream(store, batch_size=1, seed=3, window=9, shards=entries)
        own = flat(taken(stream, stream.num_samples))
        for make in (sampled, streamed):
            assert flat(names(make(store, batch_size=2, shards=entries, at_epoch_end="short"))) == own
        ranges = [(entry.first_id or "", entry.last_id or "") for entry in entries]
        assert all(any(first <= name <= last for first, last in ranges) for name in own)
        found += own
    assert sorted(found) == sorted(store.ids())
    whole = BatchStream(store, batch_size=1, seed=3, window=9)
    refused(r"shards \[.*\], here None", whole.load_state_dict, stream.state_dict())
    # States from before there were shares are of the whole store.
    old = {name: value for name, value in whole.state_dict().items() if name != "shards"}
    whole.load_state_dict(old | {"next_sample": 5})
    assert whole.next_sample == 5
    refused("are not of the store", BatchStream, store, batch_size=1, shards=[replace(plan[0][0], shard=9)])


def test_bfloat16(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [[make_record("a", dtype="bfloat16"), make_record("b", 0, dtype="bfloat16")]])
    dataset = RegionDataset(FeatureStore(tmp_path / "s"))
    batch = dataset.__getitems__([0, 1]).batch
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


def test_options_reach_the_batches_of_a_stream(store: FeatureStore) -> None:
    stream = BatchStream(store, batch_size=4, fields=(), ragged=True, regions=RegionFilter(max_regions=2))
    batch = next(iter(stream))
    assert batch.features is None and batch.offsets is not None and batch.num_regions.max() == 2


def test_what_cannot_be_asked_for(store: FeatureStore) -> None:
    stream = BatchStream(store, batch_size=2, seed=1)
    for change, words in (
        ({"seed": 2}, "seed 2, here 1"),
        ({"content": "x"}, "content 'x', here"),
        ({"next_sample": -1}, "next_sample is no count"),
        ({"format": 9}, "format 9, here 1"),
    ):
        refused(words, stream.load_state_dict, stream.state_dict() | change)
    for options in ({"batch_size": 0}, {"batch_size": 1, "rank": 2}, {"batch_size": 1, "ahead": 0}):
        refused("must be at least 1", BatchStream, store, **options)
    refused("never ends; RegionIterable has epochs", BatchStream, store, batch_size=1, at_epoch_end="drop")
    refused("seeed", BatchStream, store, batch_size=1, seeed=3, error=TypeError)
    refused("shard 1 has 4 records, asked for row 4", store.id_at, 1, 4, error=IndexError)
    words = "at_epoch_end 'stop': choose one of go on, drop, short"
    refused(words, RegionBatchSampler, store, batch_size=1, at_epoch_end="stop")
    refused(r"fields \['masks'\] are unknown", RegionIterable, store, batch_size=1, fields=("masks",))


def test_a_sample_may_be_given_more_or_be_cut(store: FeatureStore) -> None:
    """Labels are collated by torch's rules, rows of regions padded, and a cut that forgets an array is refused."""
    dataset = RegionDataset(store)

    def batch_of(change: Any) -> Any:
        return next(iter(DataLoader([change(dataset[index]) for index in (2, 3, 6)], batch_size=3)))  # type: ignore[arg-type]

    added = {"label": 3, "name": "x", "answers": torch.zeros(5)}
    made = batch_of(lambda sample: sample | added | {"ranks": torch.arange(len(sample["features"]))})
    assert made["label"].tolist() == [3, 3, 3] and made["name"] == ["x"] * 3 and made["answers"].shape == (3, 5)
    assert made["ranks"].tolist() == [[0, 1, 0], [0, 1, 2], [0, 1, 0]]
    assert made["region_mask"].sum(1).tolist() == [2, 3, 2]

    def cut(sample: Any, *names: str) -> Any:
        return sample | {name: sample[name][:1] for name in names}

    def cut_whole(sample: Any) -> Any:
        return cut(sample, "boxes", "class_ids", "class_scores", "features") | {"num_regions": torch.tensor(1)}

    assert batch_of(cut_whole)["region_mask"].tolist() == [[True]] * 3
    refused("'i02': features has 1 rows, and num_regions is 2", batch_of, lambda sample: cut(sample, "features"))
    with pytest.raises(ValueError, match="'i06' has label int, record 'i02' none"):
        batch_of(lambda sample: sample | ({"label": 1} if sample["image_id"] == "i06" else {}))


@pytest.mark.parametrize(("field", "fields"), [("features", ("features",)), ("class_scores", ())])
def test_damage_is_found_where_checks_are_asked_for(
    store: FeatureStore, tmp_path: Path, field: str, fields: tuple[str, ...]
) -> None:
    shutil.copytree(store.path, tmp_path / "s")
    (path,) = (tmp_path / "s").glob("part-00001.*.lmdb")
    data = path.read_bytes()
    at = data.index(getattr(store["i07"], field).tobytes())
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    checked: Any = {"check": True, "fields": fields}
    with FeatureStore(tmp_path / "s") as reader:
        assert reader.get_batch(["i07"], fields=fields).num_regions == [3]  # as fast as can be, so not checked
        stream = RegionIterable(reader, batch_size=4, at_epoch_end="short", **checked)
        for read, argument in (
            (lambda ids: reader.get_batch(ids, **checked), ["i07"]),
            (RegionDataset(reader, **checked).__getitem__, 7),
            (list, stream),
            (next, iter(BatchStream(reader, batch_size=TOTAL, **checked))),
        ):
            refused(r"'i07'.*checksum", read, argument)


def test_a_stream_of_batches_is_not_batched_again(store: FeatureStore, caplog: pytest.LogCaptureFixture) -> None:
    refused("batch_size=None", next, iter(DataLoader(RegionIterable(store, batch_size=2))))
    for made in (RegionDataset, RegionBatchSampler, RegionIterable, BatchStream):
        options = {} if made is RegionDataset else {"batch_size": 2}
        refused("open it with FeatureStore", made, str(store.path), **options, error=TypeError)
    for wrong in ("i00", [0, 1], 1.5):
        refused("counts its records: expected a number", RegionDataset(store).__getitem__, wrong, error=TypeError)
    assert not list(RegionIterable(store, batch_size=24)) and "there is nothing to read" in caplog.text
