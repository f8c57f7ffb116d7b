"""The settings of ImageBERT's samples, which `--set sampling.` changes. No torch: a wrong one is said at once."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.data.fit import check_choice, check_probabilities
from roibeam.pipelines.pretraining.samples.pairs import NEGATIVES


@dataclass(frozen=True)
class ImageBertSampling:
    """How samples are made; defaults are the paper's, where it says.

    Attributes:
        max_pieces: text is cut at its end to so many pieces, [CLS] and [SEP] counted, the model's last [SEP] too where
            it has one. 44 is what 100 regions leave of 144 (section 5.1).
        max_regions: those of highest score ("top-100 ranked objects", section 5.3; its ablation has 36); 0 = all.
        word_probability, region_probability: how often a piece or region is predicted.
        word_masked_share: how many of the predicted pieces become [MASK]; half of the others become random ones.
        region_masked_share: how many of the predicted regions are hidden; the others stay as they are.
        mismatched_probability: how often caption and image do not belong together, for a model with a match head.
            Section 4.3 does not say.
        negatives: what of such a pair is another image's, see `pairs`; the paper has both kinds, how many it does not
            say.
    """

    max_pieces: int = 44
    max_regions: int = 100
    word_probability: float = 0.15
    region_probability: float = 0.15
    word_masked_share: float = 0.8
    region_masked_share: float = 0.9
    mismatched_probability: float = 0.5
    negatives: str = "caption_or_image"

    def __post_init__(self) -> None:
        check_probabilities(self, "word_probability", "region_probability", "word_masked_share", "region_masked_share")
        check_probabilities(self, "mismatched_probability")
        check_choice(self, "negatives", NEGATIVES)
        if self.max_pieces < 4 or self.max_regions < 0:
            raise ValueError(
                f"ImageBertSampling: max_pieces must be at least 4 and max_regions not negative, got "
                f"{self.max_pieces} and {self.max_regions}"
            )
