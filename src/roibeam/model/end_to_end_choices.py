"""What a run through the region encoder hides of its photos, and how, as settings without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MASKED_PIXELS = ("blank", "whole", "shown")
# `end_to_end.masking`: what becomes of a masked region, by name. Each name stands for a pair of settings: these
# `masked_pixels`, and the system's `masked_appearance`, which its fields.py names (MASKING).
#   paper    the paper's vector stands in place of the region, and its pixels are blank (VL-BERT, section 3.3)
#   release  the model is given the feature of the blank region (VL-BERT's MASK_RAW_PIXELS)
#   feature  the vector stands in place of the feature, and the photo is whole (VL-BERT's multi-task class with
#            MASK_RAW_PIXELS off)
DEFAULT_MASKING = "release"
MASKINGS: Mapping[str, str] = MappingProxyType({"paper": "blank", "release": "blank", "feature": "whole"})
BLANK_PIXELS = ("after_resize", "before_resize")
WHOLE_IMAGES = ("box", "model")


@dataclass(frozen=True)
class EndToEndChoices:
    """What a run does that no model's config says.

    Attributes:
        masked_pixels: "blank": every masked region is blank in the network input, for all regions that overlap it too
            (VL-BERT's MASK_RAW_PIXELS). "whole": photos are whole, as those that stored features were measured on; then
            a masked region still shows in regions that overlap it. "shown": photos are whole, and a masked region keeps
            its own feature too, so that its token alone tells that it is masked: VL-BERT's release on captions alone,
            MASK_RAW_PIXELS off, which gives the answer away.
        blank_pixels: when they are blanked. "after_resize", in the network's input, as the release does: the resize has
            mixed what stands at the edge of a box into the pixels beside it. "before_resize": in the photo first, so
            that no pixel outside a box knows what was in it.
        whole_image: where `VLBatch.whole_image_features` come from. "box": the encoder's feature of the whole photo's
            box, as VL-BERT has it end to end. "model": the model takes the mean of the regions, or knows no whole
            image.

    Raises:
        ValueError: for another word.
    """

    masked_pixels: str = "blank"
    blank_pixels: str = "after_resize"
    whole_image: str = "model"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("masked_pixels", MASKED_PIXELS),
            ("blank_pixels", BLANK_PIXELS),
            ("whole_image", WHOLE_IMAGES),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"EndToEndChoices: {name} is {getattr(self, name)!r}; it must be one of "
                    f"{', '.join(map(repr, allowed))}"
                )
