"""What a planted fault is."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """Attributes:
    name: of the fault, in words.
    file: where it is planted.
    found, planted: the text there, which stands in the file once, and what takes its place.
    test: the node that must fail.
    """

    name: str
    file: str
    found: str
    planted: str
    test: str


def first_steps(run: str) -> str:
    """The test that compares a run's first steps with those of the published code."""
    return f"tests/pipelines/test_trajectories.py::test_the_first_steps_are_the_official_ones[{run}]"
