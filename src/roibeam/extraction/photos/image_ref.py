"""What goes into the engine and what may come out instead of a record: an image to read, a failure with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.name_list import check_lists
from roibeam.short_repr import short_repr

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class ImageRef:
    """One image to extract.

    Attributes:
        image_id: key of its record; the source that made it documents the rule.
        location: where its bytes are: a local path, a URL, or a member of an archive
            (`pipelines/common/files/locations.py`).
        boxes: x1 y1 x2 y2 of the regions to describe, in pixels of the decoded photo, kept in number and order; None
            means that the detector proposes and selects.
        boxes_hw: height and width of the image that the boxes were drawn on, where their file tells; a photo of another
            size becomes a failure, since its boxes would cut out other things.
        captions: what the source says of the image, in its order; they travel with it and change no feature.
        labels: its labels as the source writes them ("dog", "n01440764", "7"), likewise.
    """

    image_id: str
    location: str
    boxes: tuple[Box, ...] | None = None
    boxes_hw: tuple[int, int] | None = None
    captions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if not isinstance(self.image_id, str) or not isinstance(self.location, str):
            raise ValueError(
                f"an ImageRef is an id and a location, both texts; got {self.image_id!r:.80} and {self.location!r:.80}"
            )
        if type(self.captions) is not tuple or type(self.labels) is not tuple:  # of millions, hardly one
            check_lists(self, "captions", "labels")


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
