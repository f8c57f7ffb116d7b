"""How a row is laid out, whatever system and task: settings without torch."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.inputs.fit import check_choice

LONGEST, LAST, FIRST, RELEASE = "longest", "last", "first", "release"
CUTS = (LONGEST, LAST, FIRST, RELEASE)


@dataclass(frozen=True)
class LayoutOptions:
    """How a row is laid out, whatever system and task.

    Attributes:
        max_pieces: text pieces of a row, special ones counted; 0 = as many as the model has positions for.
        cut: what a longer text loses: pieces at the end of its "longest" part, one by one; of its "last" or its "first"
            part, and of the next one when that is gone; or "release": whatever stands at the end, special pieces too,
            as the first ViLBERT and VisualBERT do (a long question of VisualBERT loses its [MASK]).
        max_regions: of an image, those of the highest class score; 0 = all.
        task_token: of a multi-task ViLBERT, the number of the token that stands for the task; -1 for none.
    """

    max_pieces: int = 0
    cut: str = LONGEST
    max_regions: int = 0
    task_token: int = -1

    def __post_init__(self) -> None:
        check_choice(self, "cut", CUTS)
        for name in ("max_pieces", "max_regions"):
            if getattr(self, name) < 0:
                raise ValueError(f"LayoutOptions: {name} must not be negative, got {getattr(self, name)}")
