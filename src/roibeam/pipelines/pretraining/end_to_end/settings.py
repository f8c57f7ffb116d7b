"""Settings that a run through the region encoder has beside those of every run. No torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HEADS = ("weights", "new")


@dataclass(frozen=True)
class PhotoRules:
    """How photos become batches; what they hide is said by `EndToEndChoices`.

    Attributes:
        flip: whether every other photo, by chance, is mirrored left to right, its boxes with it.
        swap_left_right: whether "left" and "right" change places in the caption of a mirrored photo (VL-BERT's release
            leaves them in pre-training).
        short_edges: pixels; each photo is resized to one of these, by chance (scale jitter). () means the encoder's own
            short edge. Its limit of the long edge holds for all.
        fixed_size: whether every photo is padded to the encoder's short edge x long edge (R2C), instead of to the
            largest of its batch.
        aspect_buckets: whether photos of nearly the same shape come together, so that batches need little padding.
        read_ahead: threads that read and resize the next batch's photos while one is trained on.
        skip_broken: whether a photo that cannot be used drops its sample from the batch, counted, instead of stopping
            the run. It is never replaced by another picture.

    Raises:
        ValueError: naming the field.
    """

    flip: bool = True
    swap_left_right: bool = True
    short_edges: tuple[int, ...] = ()
    fixed_size: bool = False
    aspect_buckets: bool = True
    read_ahead: int = 2
    skip_broken: bool = False

    def __post_init__(self) -> None:
        if self.read_ahead < 1:
            raise ValueError(f"PhotoRules: read_ahead must be at least 1, got {self.read_ahead}")
        if not all(isinstance(edge, int) and edge >= 16 for edge in self.short_edges):
            raise ValueError(f"PhotoRules: short_edges must be pixels, 16 or more, got {list(self.short_edges)}")
        if self.fixed_size and self.short_edges:
            raise ValueError("PhotoRules: fixed_size is of one size; leave short_edges out")

    def draw(self, random: np.random.Generator, short_edge: int) -> tuple[int, bool]:
        """What chance does to one photo: pixels of its short edge, and whether it is mirrored.

        Args:
            short_edge: the encoder's own, pixels.
        """
        chosen = int(random.choice(self.short_edges or (short_edge,)))
        return chosen, bool(random.random() < 0.5) and self.flip


@dataclass(frozen=True)
class LabelledRules:
    """Which labelled photos come, and how.

    Attributes:
        photos_per_caption: labelled photos for each caption. 0.25 is one for each four.
        flip: whether every other photo, by chance, is mirrored left to right.
        short_edges: pixels; each photo is resized to one of these, by chance. () means the encoder's own short edge.
        heads: where proposal network and heads come from: "weights", the file that the encoder starts from, or "new":
            drawn, for as many classes and attributes as the labels have.

    Raises:
        ValueError: naming the field.
    """

    photos_per_caption: float = 0.25
    flip: bool = True
    short_edges: tuple[int, ...] = ()
    heads: str = "weights"

    def __post_init__(self) -> None:
        if not 0.001 <= self.photos_per_caption <= 1000:
            raise ValueError(
                f"LabelledRules: photos_per_caption must be in 0.001..1000, got {self.photos_per_caption}; for none, "
                f"name no labels"
            )
        if not all(isinstance(edge, int) and edge >= 16 for edge in self.short_edges):
            raise ValueError(f"LabelledRules: short_edges must be pixels, 16 or more, got {list(self.short_edges)}")
        if self.heads not in HEADS:
            raise ValueError(f"LabelledRules: heads is {self.heads!r}; it must be one of {', '.join(map(repr, HEADS))}")
