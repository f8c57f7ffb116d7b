"""A stream of whole numbers that is the same on every machine, Python and library version.

SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): additions, shifts and
multiplications modulo 2**64. numpy's generators promise no such thing for their distributions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

_T = TypeVar("_T")
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
MAX_SEED = (1 << 63) - 1


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


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

    def bits(self) -> int:
        """64 random bits."""
        self._state = value = (self._state + _GOLDEN) & _MASK
        # `_mix`, written out: this runs some five hundred times for a scene.
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)

    def below(self, count: int) -> int:
        """0 to count - 1; the unevenness, count / 2**32, is far below what anyone can measure here."""
        return ((self.bits() >> 32) * count) >> 32

    def between(self, lowest: int, highest: int) -> int:
        """lowest to highest, both included."""
        return lowest + self.below(highest - lowest + 1)

    def percent(self, chance: int) -> bool:
        """True in `chance` of 100 cases."""
        return self.below(100) < chance

    def weighted(self, weights: Weights) -> int:
        """An index, in proportion to its weight."""
        return bisect_right(weights.cumulative, self.below(weights.cumulative[-1]))

    def pick(self, items: Sequence[_T]) -> _T:
        return items[self.below(len(items))]
