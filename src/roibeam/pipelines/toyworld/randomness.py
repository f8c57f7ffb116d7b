"""A stream of whole numbers that is the same on every machine, Python and library version.

SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): additions, shifts and
multiplications modulo 2**64. numpy's generators promise no such thing for their distributions.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np

_T = TypeVar("_T")
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
MAX_SEED = (1 << 63) - 1
# Numbers are made this many at a time: numpy is faster at it, and its uint64 wrap around in the same way everywhere.
_BLOCK = 128
_STEPS = np.arange(1, _BLOCK + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_all(values: np.ndarray) -> np.ndarray:
    """`_mix` of each of these uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Weights:
    """Whole-number weights, prepared for `IntegerStream.weighted`."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.cumulative = tuple(accumulate(weights))


class IntegerStream:
    """Draws of one purpose of one image: streams of different keys have nothing to do with one another.

    Args:
        keys: whole numbers from 0 to 2**63 - 1, such as seed, purpose, image.
    """

    def __init__(self, *keys: int) -> None:
        state = 0
        for key in keys:
            state = _mix((state + _GOLDEN + key) & _MASK)
        self._state = state
        self._ready: list[int] = []  # Upper halves of the next numbers, the next one last.

    def below(self, count: int) -> int:
        """Draws from 0 to count - 1; the unevenness, count / 2**32, is too small to be measured here."""
        if not self._ready:
            numbers = _mix_all(_STEPS + np.uint64(self._state))
            self._state = (self._state + _BLOCK * _GOLDEN) & _MASK
            self._ready = (numbers >> np.uint64(32))[::-1].tolist()
        return (self._ready.pop() * count) >> 32

    def between(self, lowest: int, highest: int) -> int:
        """Draws from lowest to highest, both included."""
        return lowest + self.below(highest - lowest + 1)

    def percent(self, chance: int) -> bool:
        """Draws True in `chance` of 100 cases."""
        return self.below(100) < chance

    def weighted(self, weights: Weights) -> int:
        """Draws an index, in proportion to its weight."""
        return bisect_right(weights.cumulative, self.below(weights.cumulative[-1]))

    def pick(self, items: Sequence[_T]) -> _T:
        return items[self.below(len(items))]
