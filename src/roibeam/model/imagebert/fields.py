"""Sizes and choices of ImageBERT (arXiv:2001.07966), without torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from roibeam.model.common.fields import MASKED_APPEARANCES, MASKED_LOSS_PAIRS, WIDTH_REDUCTIONS, BertFields

IMAGE_SEGMENT = 1  # "segment embedding is added to each input token to distinguish different modalities" (4.1)
FINAL_SEPARATORS = ("none", "dummy", "next")


@dataclass(kw_only=True, repr=False, eq=False)
class ImageBertFields(BertFields):
    """Sizes and choices of an ImageBERT; defaults are those of the paper (sections 4.1, 4.3 and 5.1).

    Fields, beside those of `BertFields`:
        num_region_labels: K, the detector's classes. 1600 are Visual Genome's without background; 1601 counts
            background too, which is last in the store.
        dummy_position: row of the position table that all visual elements share.
        final_separator: whether a [SEP] ends the row, and on which position: "none", on the "dummy" one, or on the
            "next" one after the row's real text.
        global_feature_size: G, width of `VLBatch.global_features`, which become one more visual element; 0 for none.
        masked_appearance: "zero": a masked region's feature is 0. "pixels": it is the feature that the batch brings,
            made end to end of blanked pixels.
        feature_reduction: whether the squared error of a region's feature is a "mean" over its D numbers or their
            "sum", as the formula of section 4.3 prints.
        masked_loss_pairs: whether masked words and regions are predicted only in "matched" pairs ("conditional mask")
            or in "all".
        with_word_head, with_region_class_head, with_region_feature_head, with_match_head: the four tasks of section
            4.3, MLM, MOC, MRFR and ITM; fine-tuning keeps the last alone.
    """

    choices = MappingProxyType(
        {
            "final_separator": FINAL_SEPARATORS,
            "masked_appearance": MASKED_APPEARANCES,
            "feature_reduction": WIDTH_REDUCTIONS,
            "masked_loss_pairs": MASKED_LOSS_PAIRS,
        }
    )

    num_region_labels: int = 1600
    dummy_position: int = 0
    final_separator: str = "none"
    global_feature_size: int = 0
    masked_appearance: str = "zero"
    feature_reduction: str = "mean"
    masked_loss_pairs: str = "matched"
    with_word_head: bool = True
    with_region_class_head: bool = True
    with_region_feature_head: bool = True
    with_match_head: bool = True

    def check(self) -> None:
        super().check()
        if self.num_segments <= IMAGE_SEGMENT:
            raise ValueError(f"ImageBertConfig: num_segments must be at least 2, got {self.num_segments}")
        if not 0 <= self.dummy_position < self.max_position_embeddings:
            raise ValueError(
                f"ImageBertConfig: dummy_position {self.dummy_position} is none of {self.max_position_embeddings} rows"
            )
        if self.global_feature_size < 0:
            raise ValueError(f"ImageBertConfig: global_feature_size {self.global_feature_size} must not be negative")
        if not self.with_match_head and self.masked_loss_pairs == "matched":
            raise ValueError(
                "ImageBertConfig: masked_loss_pairs 'matched' with with_match_head=False: without a matching task all "
                "pairs should match; set masked_loss_pairs='all'"
            )
