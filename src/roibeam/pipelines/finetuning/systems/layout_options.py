"""How a row is laid out, whatever system and task: settings without torch."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.data.fit import check_choice

LONGEST, LAST, FIRST, RELEASE, BEFORE_SEP = "longest", "last", "first", "release", "before_sep"
CUTS = (LONGEST, LAST, FIRST, RELEASE, BEFORE_SEP)
BEST, IN_FILE = "best", "file"
REGION_ORDERS = (BEST, IN_FILE)
SHOWN, ALL, STORED = "shown", "all", "stored"
WHOLE_IMAGES = (SHOWN, ALL, STORED)


@dataclass(frozen=True)
class LayoutOptions:
    """How a row is laid out, whatever system and task.

    Attributes:
        max_pieces: text pieces of a row, special ones counted; 0 = as many as the model has positions for.
        cut: what a longer text loses: pieces at the end of its "longest" part, one by one; of its "last" or its "first"
            part, and of the next one when that is gone; or whatever stands at the end, special pieces too: "release",
            as the first ViLBERT, whose long texts lose their [SEP]; "before_sep", all but the last [SEP], as
            VisualBERT, whose long questions lose their "?" and [MASK], so that another word is read, and which reads a
            phrase whose word is cut where that stood: [SEP], or a region.
        max_regions: of an image; 0 = all.
        region_order: which of more regions: the "best", by their class scores, or the first in their "file" (ViLBERT).
        whole_image: its feature where the model has one of that width: the mean of the regions that are "shown", or of
            "all" regions of the store (ViLBERT), or the one that is "stored", of all regions where there is none
            (VL-BERT).
        box_numbers: whether six numbers of its box stand behind each feature, as VisualBERT's release has them for
            Flickr30k; the model is as much wider.
        task_token: of a multi-task ViLBERT, the number of the token that stands for the task; -1 for none.
    """

    max_pieces: int = 0
    cut: str = LONGEST
    max_regions: int = 0
    region_order: str = BEST
    whole_image: str = SHOWN
    box_numbers: bool = False
    task_token: int = -1

    def __post_init__(self) -> None:
        check_choice(self, "cut", CUTS)
        check_choice(self, "region_order", REGION_ORDERS)
        check_choice(self, "whole_image", WHOLE_IMAGES)
        for name in ("max_pieces", "max_regions"):
            if getattr(self, name) < 0:
                raise ValueError(f"LayoutOptions: {name} must not be negative, got {getattr(self, name)}")
