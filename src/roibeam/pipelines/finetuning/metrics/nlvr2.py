"""NLVR2: accuracy, and consistency, the share of groups of which every statement is judged rightly.

Source: Suhr et al. (arXiv:1811.00491, section 5), as lil-lab/nlvr nlvr2/eval/metrics.py computes it. A group is an
identifier (split-set-pair-sentence) without its third field, not a sentence's text: that may come again in other sets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from roibeam.pipelines.finetuning.metrics.measure import Measure


class JudgedStatement(NamedTuple):
    """An identifier, and whether its statement was judged rightly."""

    identifier: str
    is_right: bool


def group_of(identifier: str) -> str:
    """The identifier without its third field."""
    fields = identifier.split("-")
    fields[2] = ""
    return "-".join(fields)


def nlvr2_measures(statements: Iterable[JudgedStatement]) -> dict[str, Measure]:
    """ "accuracy" over statements and "consistency" over groups, by name. A set of pairs counts as one image."""
    rights: list[float] = []
    sets: list[str] = []
    groups: dict[str, bool] = {}
    for identifier, is_right in statements:
        rights.append(float(is_right))
        sets.append("-".join(identifier.split("-")[:2]))
        group = group_of(identifier)
        groups[group] = groups.get(group, True) and is_right
    set_of_group = ["-".join(group.split("-")[:2]) for group in groups]
    return {
        "accuracy": Measure("accuracy", rights, sets),
        "consistency": Measure("consistency", [float(each) for each in groups.values()], set_of_group),
    }
