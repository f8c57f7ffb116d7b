"""Guesses from counted neighbours, against counts by hand."""

import numpy as np
import pytest

from roibeam.pipelines.common.statistics.neighbour_counts import UNKNOWN, count_neighbours

END, A, RED, BLUE, CAR, BALL, RUNS = range(7)
# a red car / a blue car / a blue car runs / a red ball / a red ball runs
TEXTS = [
    [END, A, RED, CAR, END],
    [END, A, BLUE, CAR, END],
    [END, A, BLUE, CAR, RUNS, END],
    [END, A, RED, BALL, END],
    [END, A, RED, BALL, RUNS, END],
]
COUNTS = count_neighbours(map(np.array, TEXTS))


@pytest.mark.parametrize(
    ("left", "right", "guess"),
    [
        (A, CAR, BLUE),  # 2 of 3
        (A, BALL, RED),  # 2 of 2
        (A, UNKNOWN, RED),  # 3 of 5
        (UNKNOWN, CAR, BLUE),
        (UNKNOWN, UNKNOWN, A),  # 5 of 17
        (RED, RUNS, BALL),
        # Never counted between these two: after "a" red 3/5, blue 2/5; before "runs" car 1/2, ball 1/2.
        (A, RUNS, RED),
        (CAR, CAR, RUNS),  # nor these: after "car" runs 1/1, since an end is no word; before "car" blue 2/3, red 1/3
        (RED, END, CAR),  # once, as "ball": of equal ones the lower number
    ],
)
def test_both_neighbours_then_each_of_them_then_neither(left: int, right: int, guess: int) -> None:
    assert COUNTS.guess(left, right) == guess


def test_a_word_itself_can_be_taken_out_of_the_counts() -> None:
    assert COUNTS.guess(RED, END, without=CAR) == BALL
    # The only "ball" between "red" and "runs" gone: after "red" car 1/2, ball 1/2; before "runs" car 1/1.
    assert COUNTS.guess(RED, RUNS, without=BALL) == CAR
    assert COUNTS.guess(RED, RUNS, without=A) == BALL  # was not counted here


def test_counts_are_each_triple_once_and_nothing_guesses_nothing() -> None:
    assert int(COUNTS.times.sum()) == sum(len(text) - 2 for text in TEXTS) and len(COUNTS.triples) == 12
    found = dict(zip(map(tuple, COUNTS.triples.tolist()), COUNTS.times.tolist(), strict=True))
    assert found[END, A, RED] == 3 and found[A, BLUE, CAR] == 2
    nothing = count_neighbours([np.array([END, END])])
    assert nothing.guess(A, CAR) == nothing.guess(UNKNOWN, UNKNOWN) == -1
