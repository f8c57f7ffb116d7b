"""Which regions of a stored record a reader wants, so that one store serves several policies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RegionFilter:
    """Keeps the regions of a class score of at least `min_score`; where these are too few or too many, as many of the
    best as `min_regions` or `max_regions` say. Kept regions stay in their stored order.

    It can only narrow what was stored: a record of 12 regions has no 36. The scores are those of the store; a store
    that was selected by them (BUTD's 10 to 100 at 0.2) gives its 36 best by `RegionFilter(max_regions=36)`.

    Attributes:
        min_score: 0..1.
        min_regions: kept whatever their scores, if the record has so many.
        max_regions: at most so many; None for all.

    Raises:
        ValueError: for limits that cannot be met together.
    """

    min_score: float = 0.0
    min_regions: int = 0
    max_regions: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"min_score must be in 0..1, got {self.min_score}")
        if self.min_regions < 0 or (self.max_regions is not None and self.max_regions < max(self.min_regions, 1)):
            raise ValueError(
                f"min_regions {self.min_regions} and max_regions {self.max_regions}: expected 0 <= min_regions <= "
                f"max_regions, and max_regions of at least 1"
            )

    def rows(self, class_scores: np.ndarray) -> np.ndarray | None:
        """(k,) int64 rows to keep of (K,) float32 scores, ascending; None for all. Ties go to the earlier row."""
        count = len(class_scores)
        passing = int((class_scores >= self.min_score).sum())
        wanted = max(passing, min(self.min_regions, count))
        wanted = wanted if self.max_regions is None else min(wanted, self.max_regions)
        if wanted == count:
            return None
        return np.sort(np.argsort(-class_scores, kind="stable")[:wanted])
