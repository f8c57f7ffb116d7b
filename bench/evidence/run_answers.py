"""What a run answered, as its file in results/ has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def rounded_tallies(tallies: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """By question: (pictures,) right answers and (pictures,) asked ones, short enough to be kept."""
    return {
        name: {"right": [_rounded(value) for value in right], "asked": asked.astype(int).tolist()}
        for name, (right, asked) in tallies.items()
    }


def _rounded(value: float) -> float:
    """Whole numbers as such, others with four digits."""
    return int(value) if value == int(value) else round(float(value), 4)
