"""VCR accuracy: the right answer, the right rationale given the RIGHT answer, and both of one question.

Source: Zellers et al. (arXiv:1811.10830, section 3), as rowanz/r2c models/eval_q2ar.py computes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from roibeam.pipelines.data.datasets.vcr import NUM_CHOICES
from roibeam.pipelines.finetuning.metrics.measure import Measure

# Of four answers and four rationales one each is right.
CHANCE: Mapping[str, float] = MappingProxyType(
    {"Q->A": 1 / NUM_CHOICES, "QA->R": 1 / NUM_CHOICES, "Q->AR": 1 / NUM_CHOICES**2}
)


class ChosenRow(NamedTuple):
    """A question: numbers of the choices taken, of the right ones, and its image.

    `rationale` is what was taken when the right answer was given. None for what was not told.
    """

    answer: int | None
    rationale: int | None
    right_answer: int
    right_rationale: int
    image: str


def best_choice(scores: Sequence[float]) -> int:
    """The number of the highest score; the first of equal ones."""
    return int(np.argmax(np.asarray(scores, dtype=np.float64)))


def vcr_measures(rows: Iterable[ChosenRow]) -> dict[str, Measure]:
    """ "Q->A", "QA->R" and "Q->AR", by name. The last is counted question by question: no product of the other two.

    Each over the rows that tell what it asks; left out where none does.
    """
    hits: dict[str, list[tuple[float, str]]] = {"Q->A": [], "QA->R": [], "Q->AR": []}
    for row in rows:
        is_answered, is_reasoned = row.answer == row.right_answer, row.rationale == row.right_rationale
        if row.answer is not None:
            hits["Q->A"].append((float(is_answered), row.image))
        if row.rationale is not None:
            hits["QA->R"].append((float(is_reasoned), row.image))
        if None not in (row.answer, row.rationale):
            hits["Q->AR"].append((float(is_answered and is_reasoned), row.image))
    return {
        name: Measure(
            name, [hit for hit, _ in found], [image for _, image in found], guess=partial(CHANCE.__getitem__, name)
        )
        for name, found in hits.items()
        if found
    }
