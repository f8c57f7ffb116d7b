"""What a caption says of a mirrored photo: left and right change places."""

from __future__ import annotations

import re

_SIDES = re.compile(r"\b(left|right)(most|wards?|hand)?\b", re.IGNORECASE)
_OTHER = {"left": "right", "right": "left"}


def swap_left_right(caption: str) -> str:
    """The caption with "left" for "right" and the other way round: whole words, "leftmost", "rightward".

    Words alone are looked at, so "the bus left" becomes "the bus right". VL-BERT's release swaps them for RefCOCO+ and
    VQA, and not in pre-training, where it mirrors photos too.
    """
    return _SIDES.sub(lambda found: _like(found[1], _OTHER[found[1].lower()]) + (found[2] or ""), caption)


def _like(pattern: str, word: str) -> str:
    """The word in the case of the pattern: left, Left or LEFT."""
    if pattern.isupper():
        return word.upper()
    return word.capitalize() if pattern[0].isupper() else word
