"""Scores of the task heads that ViLBERT's and InterBERT's releases have: of a pair, its regions and its pieces."""

from __future__ import annotations

from torch import Tensor, nn

from roibeam.model.common.heads import DroppedLinear
from roibeam.model.inputs import VLBatch, VLOutput, image_elements_of

# What padded regions get added (vilbert.py, vision_logit): finite, so that a loss over all rows stays finite.
PADDED_SCORE = -10_000.0


class ScoreHeads(nn.Module):
    """Beside a model with pre-training heads, whose states the three heads score."""

    pair_score: DroppedLinear
    region_score: DroppedLinear
    word_score: DroppedLinear

    def score_pairs(self, output: VLOutput) -> Tensor:
        """(B,) how well each text fits its image: choices of VCR, candidates of retrieval."""
        return self.pair_score(output.pooled).squeeze(-1)

    def score_regions(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B, R + 1) how well IMG and each region fit the text (RefCOCO+); `PADDED_SCORE` is added at padding.

        IMG takes part, in the releases' losses and in their choice of the best.
        """
        states, mask = image_elements_of(batch, output)
        return self.region_score(states).squeeze(-1) + (~mask).to(states.dtype) * PADDED_SCORE

    def score_words(self, states: Tensor) -> Tensor:
        """(...) one number for each of `states` (..., H)."""
        return self.word_score(states).squeeze(-1)
