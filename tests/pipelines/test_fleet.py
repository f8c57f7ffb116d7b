"""A fleet of ranks with several workers each loses a rank in mid-epoch: what counts has every image once, by every
reader, on as many ranks as before and on one less.

Other tests look at one reader, one state or one number of workers; this one at a whole fleet with all of them.
"""

import json
from collections.abc import Iterator
from itertools import count, islice, product
from typing import Any

import numpy as np
import pytest
import store_scale
from torch.utils.data._utils import worker as torch_worker

from roibeam.features.reading.torch_datasets import RegionBatchSampler, RegionIterable
from roibeam.features.store import FeatureStore
from roibeam.pipelines.training.sample_order import SampleOrder

SHARDS, RECORDS = 12, 250
IMAGES = SHARDS * RECORDS
RANKS, WORKERS, BATCH = 4, 2, 16
SAVED_AT, LOST_AT = 18, 23  # steps at the checkpoint, and when a rank is lost
State = dict[str, Any] | None


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    folder = tmp_path_factory.mktemp("fleet") / "store"
    store_scale.build(folder, SHARDS, RECORDS)
    with FeatureStore(folder) as opened:
        yield opened


def records(store: FeatureStore, place: tuple[int, int], ranks: int, state: State) -> Iterator[list[int]]:
    """What one worker of a rank's DataLoader reads, as numbers of images."""
    rank, worker = place
    reader = RegionIterable(store, batch_size=BATCH, rank=rank, num_ranks=ranks, at_epoch_end="short", seed=1)
    if state is not None:
        reader.load_state_dict(state)
    # As a DataLoader tells its worker which of them it is.
    torch_worker._worker_info = torch_worker.WorkerInfo(id=worker, num_workers=WORKERS, seed=0, dataset=reader)
    try:
        for batch in reader:
            yield [int(image[-12:-7]) * RECORDS + int(image[-7:]) for image in batch["image_ids"]]
    finally:
        torch_worker._worker_info = None


def numbers(store: FeatureStore, place: tuple[int, int], ranks: int, state: State) -> Iterator[list[int]]:
    """Numbers of records that the rank's one sampler hands to this worker."""
    rank, worker = place
    sampler = RegionBatchSampler(store, batch_size=BATCH, rank=rank, num_ranks=ranks, at_epoch_end="short", seed=1)
    if state is not None:
        sampler.load_state_dict(state)
    yield from islice(sampler, worker, None, WORKERS)


def captions(store: FeatureStore, place: tuple[int, int], ranks: int, state: State) -> Iterator[list[int]]:
    """The order by which `pretrain` shares captions out, here one a record; to the end of the epoch."""
    rank, worker = place
    first = 0 if state is None else state["next_sample"]
    batches = SampleOrder(len(store), (1, 1)).batches(first, batch_size=BATCH, rank=rank, num_ranks=ranks)
    for batch in islice(batches, worker, None, WORKERS):
        yield [at for epoch, at in batch if epoch == 0]
        if batch[-1][0] > 0:
            return


READERS = {"store": records, "numbers": numbers, "order": captions}


def taken(kind: str, store: FeatureStore, ranks: int, state: State) -> np.ndarray:
    """(IMAGES,) how often each image came in what counts: up to the checkpoint, or from a state to the epoch's end."""
    counts = np.zeros(IMAGES, np.int64)
    for place in product(range(ranks), range(WORKERS)):
        batches = READERS[kind](store, place, ranks, state)
        for step, images in zip(count(place[1], WORKERS), batches, strict=False):
            if state is not None or step < SAVED_AT:
                counts[images] += 1
            if state is None and step >= LOST_AT:
                break
        else:
            assert state is not None, f"{place} ended before the rank was lost"
        batches.close()  # type: ignore[attr-defined]
    return counts


@pytest.mark.parametrize("left", [RANKS, RANKS - 1], ids=["restarted", "one rank less"])
@pytest.mark.parametrize("kind", READERS)
def test_every_image_comes_once_though_a_rank_was_lost(kind: str, left: int, store: FeatureStore) -> None:
    reader = RegionIterable(store, batch_size=BATCH, rank=0, num_ranks=RANKS, at_epoch_end="short", seed=1)
    state = json.loads(json.dumps(reader.state_dict(SAVED_AT)))
    assert state["next_sample"] == SAVED_AT * RANKS * BATCH
    first = taken(kind, store, RANKS, None)
    assert first.sum() == SAVED_AT * RANKS * BATCH and first.max() == 1
    assert (first + taken(kind, store, left, state) == 1).all()
    # From another place than the saved one some come twice.
    late = taken(kind, store, left, state | {"next_sample": (SAVED_AT - 1) * RANKS * BATCH})
    assert np.count_nonzero(first + late == 2) == RANKS * BATCH and np.count_nonzero(first + late) == IMAGES
