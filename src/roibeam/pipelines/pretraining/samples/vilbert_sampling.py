"""The settings of ViLBERT's samples, which `--set sampling.` changes. No torch: a wrong one is said at once."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.data.fit import check_choice, check_probabilities, check_room
from roibeam.pipelines.pretraining.samples.pairs import NEGATIVES

OVERLAPPING_REGIONS = ("kept", "hidden", "uncounted")


@dataclass(frozen=True)
class ViLbertSampling:
    """How samples are made; defaults are the first release's. (There a mismatched caption may be the image's own.)

    Attributes:
        max_pieces: text is cut at its end to so many pieces, [CLS] and [SEP] counted.
        max_regions: regions of the highest class score that are kept, in the order of the record; IMG is not counted.
        word_probability, region_probability: how often a piece of a word or a region is predicted. Of the pieces 80 %
            become [MASK], 10 % random ones; of the regions 90 % are hidden.
        mismatched_probability: of a caption and an image that do not belong together; 0 is the multi-task release's
            `--objective 2`, whose model has no match head.
        negatives: what of such a pair is another image's: "caption" (the releases), "caption_or_image" (the paper),
            equally often, or "image".
        overlapping_regions: regions with an IoU above 0.4 to a predicted one: "kept" as they are (first release),
            "hidden" with a hidden one (what arXiv:1912.02315 says), or seen but not counted where IMG is averaged,
            "uncounted" (the code of that paper).
    """

    max_pieces: int = 36
    max_regions: int = 36
    word_probability: float = 0.15
    region_probability: float = 0.15
    mismatched_probability: float = 0.5
    negatives: str = "caption"
    overlapping_regions: str = "kept"

    def __post_init__(self) -> None:
        check_room(self, "max_pieces", 3)
        check_room(self, "max_regions", 1)
        check_probabilities(self, "word_probability", "region_probability", "mismatched_probability")
        check_choice(self, "negatives", NEGATIVES)
        check_choice(self, "overlapping_regions", OVERLAPPING_REGIONS)
