"""A measured number beside what chance reaches, in words: clearly above it, at it, or below."""

from __future__ import annotations

import math
from typing import Literal

Word = Literal["clearly above chance", "at chance", "below chance", "better than chance", "worse than chance"]
_SURE = 1.96  # standard deviations of a 95 % interval


def verdict_word(low: float, high: float, chance: float, *, lower_is_better: bool = False) -> Word:
    """What the interval `low`..`high` of a number says of it beside `chance`.

    A share of right answers is above or below chance; of a loss or a rank, where less is more, better or worse.
    """
    if low <= chance <= high:
        return "at chance"
    if lower_is_better:
        return "better than chance" if high < chance else "worse than chance"
    return "clearly above chance" if low > chance else "below chance"


def share_interval(share: float, items: int) -> tuple[float, float]:
    """The 95 % interval of a share of `items` answers that do not hang together (E. B. Wilson, 1927).

    Args:
        share: 0..1.
        items: at least 1.
    """
    squared = _SURE**2 / items
    middle = (share + squared / 2) / (1 + squared)
    reach = _SURE * math.sqrt(share * (1 - share) / items + squared / (4 * items)) / (1 + squared)
    # The ends are exact where no answer, or every one, is right; in arithmetic they are a digit off.
    return (0.0 if share == 0 else max(middle - reach, 0.0)), (1.0 if share == 1 else min(middle + reach, 1.0))
