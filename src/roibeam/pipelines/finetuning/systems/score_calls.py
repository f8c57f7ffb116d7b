"""Models that hold the heads of their release for several tasks, each called with a batch for the scores of one task.

Each class stands before a model's own among the bases of a network; `forward` gives something else there, hence Any.
"""

from __future__ import annotations

from typing import Any

from roibeam.model.inputs import VLBatch


class CalledModel:
    """What is called: `encode` of the model, then one of its heads."""

    encode: Any


class CalledForAnswers(CalledModel):
    """(B, A) logits."""

    answers: Any

    def forward(self, batch: VLBatch) -> Any:
        return self.answers(self.encode(batch))


class CalledForChoices(CalledModel):
    """(B, 1) scores."""

    score_pairs: Any

    def forward(self, batch: VLBatch) -> Any:
        return self.score_pairs(self.encode(batch))[:, None]


class CalledForRegions(CalledModel):
    """(B, R + 1) scores, the whole image first."""

    score_regions: Any

    def forward(self, batch: VLBatch) -> Any:
        return self.score_regions(batch, self.encode(batch))


class CalledForImagePairs(CalledModel):
    """(B / 2, 2) logits of a statement about two images, which rows 2i and 2i + 1 show."""

    image_pairs: Any

    def forward(self, batch: VLBatch) -> Any:
        return self.image_pairs(self.encode(batch))
