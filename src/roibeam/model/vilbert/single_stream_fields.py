"""Sizes of ViLBERT's single-stream baseline (arXiv:1908.02265, section 4), without torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from roibeam.model.common.fields import MASKED_APPEARANCES, BertFields

REGION_SEGMENT = 1
REGION_LOSSES = ("kl", "none")


@dataclass(kw_only=True, repr=False, eq=False)
class SingleStreamFields(BertFields):
    """Sizes of the baseline; defaults are those of the release (config/bert_base_baseline.json).

    Fields, beside those of `BertFields`:
        region_feature_size: D, width of a stored region feature.
        region_loss: "kl" predicts the detector's class distribution, "none" predicts no regions: the model has no such
            head.
        region_target_size: classes with background.
        masked_appearance: as in `ViLbertFields`.
        num_answers: labels of the answer classifier of the task model.
    """

    choices = MappingProxyType(
        {
            "region_loss": REGION_LOSSES,
            "masked_appearance": MASKED_APPEARANCES,
        }
    )

    region_feature_size: int = 2048
    region_loss: str = "kl"
    region_target_size: int = 1601
    masked_appearance: str = "zero"
    num_answers: int = 3129

    def check(self) -> None:
        super().check()
        if self.num_segments <= REGION_SEGMENT:
            raise ValueError(f"SingleStreamConfig: num_segments must be at least 2, got {self.num_segments}")
