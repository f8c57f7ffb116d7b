"""How much of the soaks runs: all of it, or the share that ROIBEAM_SOAK says, as CI sets it."""

import os
import random
from collections.abc import Container, Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
SHARE = float(os.environ.get("ROIBEAM_SOAK", "1"))


def share_of(cases: Sequence[T], seed: str) -> list[T]:
    """All of them, or a seeded share, one at least; in their order."""
    if SHARE >= 1:
        return list(cases)
    chosen = random.Random(seed).sample(range(len(cases)), max(1, round(SHARE * len(cases))))
    return [cases[place] for place in sorted(chosen)]


def many(count: int) -> Any:
    """A case of a parametrized test that draws so many times, or as many as the share says: a soak."""
    return pytest.param(round(SHARE * count), marks=pytest.mark.soak, id=str(count))


def some(cases: Iterable[T], kept: Container[T]) -> list[Any]:
    """Cases of a parametrized test of which those not `kept` are a soak, for they meet what a kept one meets."""
    return [pytest.param(case, marks=() if case in kept else pytest.mark.soak(cases=True)) for case in cases]
