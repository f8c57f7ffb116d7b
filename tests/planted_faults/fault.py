"""What a planted fault is."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """Attributes:
    name: of the fault, in words.
    function: where it is planted, as "Class.method"; "beside NAME" is the top of the file that defines NAME. "" is the
        top of whatever file has the text.
    found, planted: the text there, which stands there once, and what takes its place.
    test: the node that must fail.
    """

    name: str
    function: str
    found: str
    planted: str
    test: str


def first_steps(run: str) -> str:
    """The test that compares a run's first steps with those of the published code."""
    return f"tests/pipelines/test_trajectories.py::test_the_first_steps_are_the_official_ones[{run}]"
