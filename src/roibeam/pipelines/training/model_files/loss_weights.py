"""What a detector's losses count where it is trained beside a model. No torch."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class LossWeights:
    """What each of the detector's losses counts beside those of the model, on top of its `LossRules`.

    Raises:
        ValueError: for a negative number.
    """

    objectness: float = 1.0
    proposal_boxes: float = 1.0
    classes: float = 1.0
    region_boxes: float = 1.0
    attributes: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) < float("inf"):
                raise ValueError(f"the weight {field.name} is {getattr(self, field.name)!r}; it must not be negative")
