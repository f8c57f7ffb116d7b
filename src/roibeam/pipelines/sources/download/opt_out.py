"""The header by which a site says that its images are not for machine learning: X-Robots-Tag."""

from __future__ import annotations

import re
from collections.abc import Iterable

AGENT = "roibeam"
# As img2dataset honours them; "none" is short for noindex, nofollow.
_REFUSALS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
# Directives with a value; any other name before a colon is that of a robot.
_WITH_VALUE = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})


def refusal(values: Iterable[str]) -> str | None:
    """The directive that forbids us to take the image, or None.

    Args:
        values: of all X-Robots-Tag headers of an answer. A name before a colon says whom the rest of its header
            concerns ("otherbot: noai, noindex"); without a name it concerns everybody.
    """
    for value in values:
        is_for_us = True
        for part in value.lower().split(","):
            name, colon, rest = (piece.strip() for piece in part.partition(":"))
            if colon and name in _WITH_VALUE:
                continue
            if colon and re.fullmatch(r"[a-z0-9_.*-]+", name):
                is_for_us = name in (AGENT, "*")
                name = rest
            if is_for_us and name in _REFUSALS:
                return name
    return None
