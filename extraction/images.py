"""What goes into the engine and what may come out instead of a record: an image to read, a failure with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageRef:
    """One image to extract.

    Attributes:
        image_id: key of its record; the source that made it documents the rule.
        location: local path or URL the bytes are read from.
    """

    image_id: str
    location: str


@dataclass(frozen=True)
class Failure:
    """One image that gave no record: data, not a crash.

    Attributes:
        image_id, location: as in the `ImageRef`.
        stage: "read", "decode", "detect" or "record".
        reason: short word for counting ("not found", "truncated", "too many pixels", ...).
        detail: one line for a person.
    """

    image_id: str
    location: str
    stage: str
    reason: str
    detail: str
