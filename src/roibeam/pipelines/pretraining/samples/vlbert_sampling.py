"""The settings of VL-BERT's samples, which `--set sampling.` changes. No torch: a wrong one is said at once."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.data.fit import check_probabilities


@dataclass(frozen=True)
class VLBertSampling:
    """How samples are made; defaults are the release's.

    Attributes:
        max_elements: text pieces + whole image + regions kept, cut from the longer side (SEQ_LEN, [END] not counted);
            0 = no cut. Text is always cut to the positions the model has.
        word_probability, region_probability: how often a word or region is predicted.
        word_masked_share: how many of the predicted words become [MASK]; half of the others become random ones.
        region_masked_share: how many of the predicted regions are hidden.
        mismatched_probability: how often the caption is another image's, for a model with a relationship head; the
            release draws any other row of its data, which may be of the same image.
        min_text_words: whole words that a row of text alone has at least: lines that follow join it (MIN_SEQ_LEN).
        max_text_pieces: where a row of text alone is cut (SEQ_LEN of the second data set).
    """

    max_elements: int = 64
    word_probability: float = 0.15
    region_probability: float = 0.15
    word_masked_share: float = 0.8
    region_masked_share: float = 0.9
    mismatched_probability: float = 0.5
    min_text_words: int = 64
    max_text_pieces: int = 64

    def __post_init__(self) -> None:
        for name in ("min_text_words", "max_text_pieces"):
            if getattr(self, name) < 1:
                raise ValueError(f"VLBertSampling: {name} must be at least 1, got {getattr(self, name)}")
        check_probabilities(self, "mismatched_probability")
        if self.max_elements and self.max_elements < 4:
            raise ValueError(f"VLBertSampling: max_elements must be 0 or at least 4, got {self.max_elements}")
        check_probabilities(self, "word_probability", "region_probability", "word_masked_share", "region_masked_share")
