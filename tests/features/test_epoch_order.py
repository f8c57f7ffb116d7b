"""The order of an epoch: every record once, the same from anywhere, shards kept together."""

import numpy as np
import pytest
from refusals import refused

from roibeam.features.reading.batch_order import EpochOrder

SIZES = (5, 0, 12, 3, 7, 1)
TOTAL = sum(SIZES)
ALL = {(shard, row) for shard, size in enumerate(SIZES) for row in range(size)}


def as_set(places: np.ndarray) -> set[tuple[int, int]]:
    return {(int(shard), int(row)) for shard, row in places}


@pytest.mark.parametrize("window", [1, 4, 9, TOTAL, 1000])
def test_an_epoch_has_every_record_once_in_an_order_of_its_own(window: int) -> None:
    order = EpochOrder(SIZES, seed=3, window=window)
    assert order.num_samples == TOTAL
    epochs = [order.places(epoch * TOTAL, TOTAL) for epoch in range(3)]
    assert all(as_set(epoch) == ALL for epoch in epochs)
    assert len({epoch.tobytes() for epoch in epochs}) == 3


def test_the_records_of_one_shard_come_in_another_order_in_each_epoch() -> None:
    order = EpochOrder((50,), seed=3, window=50)
    first, second = (order.places(epoch * 50, 50) for epoch in range(2))
    assert as_set(first) == as_set(second) and first.tobytes() != second.tobytes()


@pytest.mark.parametrize("window", [1, 4, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_any_piece_is_that_piece_of_the_whole(window: int, shuffle: bool) -> None:
    whole = EpochOrder(SIZES, seed=1, window=window, shuffle=shuffle).places(0, 4 * TOTAL)
    for start, count in ((0, 1), (3, 10), (TOTAL - 2, 5), (2 * TOTAL, TOTAL), (17, 3 * TOTAL), (5, 0)):
        piece = EpochOrder(SIZES, seed=1, window=window, shuffle=shuffle).places(start, count)
        np.testing.assert_array_equal(piece, whole[start : start + count])


def test_stored_order_and_seeds() -> None:
    plain = EpochOrder(SIZES, shuffle=False).places(0, 2 * TOTAL)
    assert [tuple(row) for row in plain[:TOTAL].tolist()] == sorted(ALL)
    np.testing.assert_array_equal(plain[TOTAL:], plain[:TOTAL])
    assert len({EpochOrder(SIZES, seed=seed).places(0, TOTAL).tobytes() for seed in (0, 1)}) == 2
    # Written down once: a seed is one order for ever.
    assert EpochOrder((2, 3), seed=7, window=2).places(0, 5).tolist() == [[1, 1], [1, 0], [0, 0], [1, 2], [0, 1]]


def test_a_window_touches_few_shards() -> None:
    sizes = [100] * 50
    places = EpochOrder(sizes, seed=0, window=200).places(0, 5000)
    for first in range(0, 5000, 200):
        assert len(set(places[first : first + 200, 0].tolist())) <= 3


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((), {}, "needs shards with records"),
        ((0, 0), {}, "needs shards with records"),
        ((1, -1), {}, "needs shards with records"),
        ((1,), {"window": 0}, "window 0 must be at least 1"),
        ((1,), {"seed": -1}, "must not be negative"),
    ],
)
def test_what_has_no_order(sizes: tuple[int, ...], options: dict[str, int], message: str) -> None:
    refused(message, EpochOrder, sizes, **options)
    refused("numbers start at 0", EpochOrder((1,)).places, -1, 1)
