"""What runs on VCR are called, and what those of one model for both problems leave open, whichever system's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roibeam.pipelines.finetuning.tasks.vcr import ANSWER, RATIONALE

PROBLEM_NAMES: Mapping[str, str] = MappingProxyType({ANSWER: "Q->A", RATIONALE: "QA->R"})
BOTH_OPEN = (
    "In the release each problem has an update of its own, the first one's with gradients that the other left, and the "
    "rise ends after half of what is meant (--set steps.rule=release); here one update of both."
)
NAMES_OPEN = (
    "The releases draw names from a table of their own (--set vcr.people=unisex_names_table.csv takes it); here "
    "they are drawn from the 15 of VisualBERT's."
)
