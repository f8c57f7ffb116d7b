"""One order of samples for any batch size and number of processes; sources mixed by weight: shares and rounds."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from roibeam.pipelines.training.sample_order import GROUP, GROUPS, SampleOrder, SourceMixture

SHAPES = np.random.default_rng(0).uniform(0.5, 2.0, 1300)
SIZES, WEIGHTS = (30, 300, 7), (1, 2, 1)
Sample = tuple[int, int]


def read(of: SampleOrder, count: int, start: int = 0, batch_size: int = 1, num_ranks: int = 1) -> list[Sample]:
    """`count` samples, as many processes take them."""
    streams = [of.batches(start, batch_size=batch_size, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
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
@pytest.mark.parametrize("sizes", [(1300,), SIZES], ids=["one source", "mixed"])
def test_batch_size_processes_and_start_do_not_change_it(likeness: np.ndarray | None, sizes: tuple[int, ...]) -> None:
    mixture = SourceMixture(sizes, WEIGHTS) if len(sizes) > 1 else None
    of = SampleOrder(sum(sizes), (1, 7), None if likeness is None else likeness[: sum(sizes)], mixture)
    samples = read(of, 3 * sum(sizes))
    for batch_size, num_ranks in ((7, 3), (16, 1), (7, 2), (5, 4)):
        assert read(of, len(samples), batch_size=batch_size, num_ranks=num_ranks) == samples
    assert read(of, 300, start=611, batch_size=3, num_ranks=2) == samples[611:911]
    assert read(of, 100, start=2 * sum(sizes) + 17, batch_size=4, num_ranks=2) == samples[2 * sum(sizes) + 17 :][:100]


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


# Sources mixed by weight


def order(likeness: np.ndarray | None = None, seed: int = 7) -> SampleOrder:
    return SampleOrder(sum(SIZES), (1, seed), likeness, SourceMixture(SIZES, WEIGHTS))


def sources_of(samples: list[Sample]) -> np.ndarray:
    return np.searchsorted(np.cumsum(SIZES), [place for _, place in samples], side="right")


def test_the_order_of_one_source_is_what_it_was_before_there_were_several() -> None:
    samples = read(SampleOrder(10, (1, 7)), 20)
    assert [epoch for epoch, _ in samples] == [0] * 10 + [1] * 10
    assert [place for _, place in samples] == [9, 1, 2, 0, 7, 6, 4, 5, 3, 8, 3, 5, 7, 9, 6, 2, 0, 4, 8, 1]
    alike = read(SampleOrder(40, (1, 7), np.linspace(1, 2, 40) ** 2), 20, start=30)
    assert [place for _, place in alike] == [4, 6, 10, 5, 12, 2, 9, 13, 8, 11, 6, 13, 2, 16, 8, 12, 1, 14, 7, 9]


@pytest.mark.parametrize("likeness", [None, np.linspace(0, 1, sum(SIZES))], ids=["alone", "alike"])
def test_each_source_gives_its_share_and_is_read_in_rounds_of_its_own(likeness: np.ndarray | None) -> None:
    total, epochs = sum(SIZES), 12
    samples = read(order(likeness), epochs * total)
    for source, count in enumerate((84, 169, 84)):  # of 337: a quarter, a half, a quarter
        for epoch in range(epochs):
            of_epoch = sources_of(samples[epoch * total : (epoch + 1) * total])
            assert (of_epoch == source).sum() == count
        mine = [sample for sample, of in zip(samples, sources_of(samples), strict=True) if of == source]
        assert len(set(mine)) == len(mine)  # so every one has masks of its own
        rounds = Counter(number for number, _ in mine)
        full, rest = divmod(len(mine), SIZES[source])
        assert rounds == Counter({number: SIZES[source] for number in range(full)} | ({full: rest} if rest else {}))
    assert samples != read(order(likeness, seed=8), epochs * total)


def test_any_stretch_of_samples_has_about_the_shares() -> None:
    mixture = SourceMixture((20_000, 30_000), (1, 2))
    samples = read(SampleOrder(50_000, (1, 3), None, mixture), 50_000, batch_size=1000)
    first = np.array([place < 20_000 for _, place in samples])
    for length in (500, 5_000):
        counts = first.reshape(-1, length).sum(1)
        deviation = np.sqrt(length * (1 / 3) * (2 / 3))  # of independent draws; these are drawn without putting back
        assert np.abs(counts - length / 3).max() < 5 * deviation
        assert counts.std() > 0.5 * deviation  # by chance, not in turns
    pairs = first[:-1] & first[1:]
    assert abs(pairs.mean() - 1 / 9) < 5 * np.sqrt(1 / 9 * 8 / 9 / len(pairs))


def test_weights_as_the_sizes_take_everything_once_an_epoch() -> None:
    samples = read(SampleOrder(37, (1, 3), None, SourceMixture((30, 7), (30, 7))), 74)
    for epoch in range(2):
        assert sorted(samples[37 * epoch : 37 * epoch + 37]) == [(epoch, place) for place in range(37)]


@pytest.mark.parametrize(
    ("sizes", "weights", "words"),
    [
        ((3, 4), (1,), "2 sources and 1 weights"),
        ((3, 4), (1, 0), "positive numbers, got 1, 0"),
        ((3, 4), (1, -2), "positive numbers, got 1, -2"),
        ((3, 4), (1, float("nan")), "positive numbers, got 1, nan"),
        ((3, 4), (1, 1e-3), "weight 0.001 of source 2 gives it not one of the 7 samples of an epoch"),
    ],
)
def test_weights_that_are_none(sizes: tuple[int, ...], weights: tuple[float, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SourceMixture(sizes, weights)
