"""NLVR2: accuracy, and consistency, the share of groups of which every statement is judged rightly.

Source: Suhr et al. (arXiv:1811.00491, section 5), as lil-lab/nlvr nlvr2/eval/metrics.py computes it. A group is an
identifier (split-set-pair-sentence) without its third field, not a sentence's text: that may come again in other sets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from roibeam.pipelines.finetuning.metrics.measure import Measure


class JudgedStatement(NamedTuple):
    """An identifier, whether its statement was judged rightly, and whether it is true; None where that is not told."""

    identifier: str
    is_right: bool
    is_true: bool | None = None


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
    labels: dict[str, list[bool | None]] = {}
    for identifier, is_right, is_true in statements:
        rights.append(float(is_right))
        labels.setdefault(group_of(identifier), []).append(is_true)
        sets.append("-".join(identifier.split("-")[:2]))
        group = group_of(identifier)
        groups[group] = groups.get(group, True) and is_right
    set_of_group = ["-".join(group.split("-")[:2]) for group in groups]

    def commonest() -> float:
        trues = sum(label is True for own in labels.values() for label in own) / len(rights)
        return max(trues, 1 - trues)

    def consistent() -> float:
        """Of always one label, or where groups have both of them, of a coin for each statement."""
        of_one = max(sum(set(own) == {label} for own in labels.values()) for label in (True, False))
        return max(of_one, sum(0.5 ** len(own) for own in labels.values())) / len(labels)

    consistency = [float(each) for each in groups.values()]
    told = all(None not in own for own in labels.values())
    return {
        "accuracy": Measure("accuracy", rights, sets, guess=commonest if told else None),
        "consistency": Measure("consistency", consistency, set_of_group, guess=consistent if told else None),
    }
