"""One order of samples for any batch size and number of processes."""

from itertools import islice

import numpy as np
import pytest

from roibeam.pipelines.training.sample_order import GROUP, GROUPS, SampleOrder

SHAPES = np.random.default_rng(0).uniform(0.5, 2.0, 1300)


def read(
    order: SampleOrder, count: int, start: int = 0, batch_size: int = 1, num_ranks: int = 1
) -> list[tuple[int, int]]:
    """`count` samples, as many processes take them."""
    streams = [order.batches(start, batch_size=batch_size, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    rounds = (sample for _ in range(count) for stream in streams for sample in next(stream))
    return list(islice(rounds, count))


@pytest.mark.parametrize("likeness", [None, SHAPES], ids=["alone", "alike"])
def test_every_epoch_holds_each_sample_once_in_an_order_of_its_own(likeness: np.ndarray | None) -> None:
    order = SampleOrder(1300, (1, 7), likeness)
    samples = read(order, 3900)
    epochs = [[place for number, place in samples if number == epoch] for epoch in range(3)]
    assert all(sorted(each) == list(range(1300)) for each in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert samples == read(SampleOrder(1300, (1, 7), likeness), 3900)
    assert samples != read(SampleOrder(1300, (1, 8), likeness), 3900)


@pytest.mark.parametrize("likeness", [None, SHAPES], ids=["alone", "alike"])
def test_batch_size_processes_and_start_do_not_change_it(likeness: np.ndarray | None) -> None:
    order = SampleOrder(1300, (1, 7), likeness)
    samples = read(order, 3900)
    assert read(order, 3900, batch_size=7, num_ranks=3) == samples
    assert read(order, 3900, batch_size=16) == samples
    assert read(order, 500, start=1111, batch_size=4, num_ranks=2) == samples[1111:1611]


def test_alike_samples_stand_together_and_come_in_no_order_of_likeness() -> None:
    places = [place for _, place in read(SampleOrder(1300, (1, 7), SHAPES), 1300)]
    alone = [place for _, place in read(SampleOrder(1300, (1, 7)), 1300)]
    steps = {name: np.abs(np.diff(SHAPES[order])).mean() for name, order in (("alike", places), ("alone", alone))}
    assert steps["alike"] < 0.15 * steps["alone"]
    assert abs(np.corrcoef(np.arange(1024), SHAPES[places[:1024]])[0, 1]) < 0.3
    windows = range(0, 1300, GROUP * GROUPS)
    assert all(set(places[at : at + GROUP * GROUPS]) == set(alone[at : at + GROUP * GROUPS]) for at in windows)


def test_few_samples_are_other_batches_in_other_epochs() -> None:
    order = SampleOrder(12, (1, 7), SHAPES[:12])
    epochs = [frozenset(frozenset(read(order, 12, start=12 * n)[at : at + 4]) for at in (0, 4, 8)) for n in range(8)]
    batches = {frozenset(frozenset(place for _, place in batch) for batch in epoch) for epoch in epochs}
    assert len(batches) > 4


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="0 samples"):
        SampleOrder(0, (1,))
    with pytest.raises(ValueError, match="3 samples and 2 numbers"):
        SampleOrder(3, (1,), [1.0, 2.0])
