"""A number that was printed for a published run, of pre-training or of a task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A number that was printed for a run.

    Attributes:
        task: after fine-tuning on it, or "zero-shot ..." for none.
        metric: with the split.
        value: percent.
        where: table of the paper, or file.
    """

    task: str
    metric: str
    value: float
    where: str
