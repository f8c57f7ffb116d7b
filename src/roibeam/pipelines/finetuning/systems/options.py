"""Options of a task's head and of the layout of its rows, for any system: settings without torch."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.data.compatibility import check_choices, check_least

UNIFORM_HEAD, RELEASE, RELEASE_MT, MATCH = "ours", "release", "release-mt", "match"
HEAD_KINDS = (UNIFORM_HEAD, RELEASE, RELEASE_MT, MATCH)
DRAWN, WORDS = "drawn", "words"
HEAD_STARTS = (DRAWN, WORDS)


@dataclass(frozen=True)
class HeadOptions:
    """
    Attributes:
        kind: "ours", the same kind of head on every system; "release", that of the system's release; "release-mt", that
            of ViLBERT's multi-task release; "match", that of pre-training for a pair, which scores choices: of
            retrieval.
        start: of the last layer of labels: "drawn", or each label at the mean of its word embeddings ("words": VL-BERT
            on VQA, with the head of its release).
    """

    kind: str = UNIFORM_HEAD
    start: str = DRAWN

    def __post_init__(self) -> None:
        check_choices(self, kind=HEAD_KINDS, start=HEAD_STARTS)
        if self.start == WORDS and self.kind != RELEASE:
            raise ValueError(
                "HeadOptions: start 'words' is of a release's head; set kind to 'release', or start to 'drawn'"
            )


LONGEST, LAST, FIRST, RELEASE_CUT, BEFORE_SEP = "longest", "last", "first", "release", "before_sep"
CUTS = (LONGEST, LAST, FIRST, RELEASE_CUT, BEFORE_SEP)
BEST, IN_FILE = "best", "file"
REGION_ORDERS = (BEST, IN_FILE)
SHOWN, ALL, STORED = "shown", "all", "stored"
WHOLE_IMAGES = (SHOWN, ALL, STORED)
HIDDEN = "hidden"


@dataclass(frozen=True)
class LayoutOptions:
    """Layout of rows, for any system and task.

    Attributes:
        max_pieces: text pieces of a row, special ones counted; 0 = as many as the model has positions for.
        cut: what a longer text loses: pieces at the end of its "longest" part, one by one; of its "last" or its "first"
            part, and of the next one when that is gone; or whatever stands at the end, special pieces too: "release",
            as the first ViLBERT, whose long texts lose their [SEP]; "before_sep", all but the last [SEP], as
            VisualBERT, whose long questions lose their "?" and [MASK], so that another word is read, and which reads a
            phrase whose word is cut where that stood: [SEP], or a region.
        max_regions: of an image; 0 = all.
        region_order: which of more regions: the "best", by their class scores, or the first in their "file" (ViLBERT).
        whole_image: its feature where the model has one of that width: the mean of the input regions ("shown"), or of
            "all" regions of the store (ViLBERT), or the one that is "stored", of all regions where there is none
            (VL-BERT).
        box_numbers: whether six numbers of its box stand behind each feature, as VisualBERT's release has them for
            Flickr30k; the model is as much wider.
        task_token: of a multi-task ViLBERT, the number of the token that stands for the task; -1 for none.
        images: "shown", or "hidden" in training and predictions: what the text alone tells.
    """

    max_pieces: int = 0
    cut: str = LONGEST
    max_regions: int = 0
    region_order: str = BEST
    whole_image: str = SHOWN
    box_numbers: bool = False
    task_token: int = -1
    images: str = SHOWN

    def __post_init__(self) -> None:
        check_choices(self, cut=CUTS, region_order=REGION_ORDERS, whole_image=WHOLE_IMAGES, images=(SHOWN, HIDDEN))
        check_least(self, max_pieces=0, max_regions=0)
