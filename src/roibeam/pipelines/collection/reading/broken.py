"""What was read but is no page."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.collection.reasons import Reason


@dataclass(frozen=True)
class BrokenPage:
    """Attributes:
    place: as of `Page`.
    detail: one line for people.
    """

    place: str
    reason: Reason
    detail: str
