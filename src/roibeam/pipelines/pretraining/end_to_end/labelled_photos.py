"""Labelled photos beside the captions of an end-to-end run, so that the detector is trained on too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from roibeam.pipelines.detector.labelled_batches import LabelledBatches

HEADS = ("weights", "new")


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


class LabelledStream:
    """Which labelled photos stand beside which captions: each caption of a run, by its number, brings the next ones.

    So batches of any size, on any number of processes, train on the same photos, and a run goes on with the next one.
    """

    def __init__(self, photos: LabelledBatches, per_caption: float) -> None:
        self.photos = photos
        self._per_caption = Fraction(per_caption).limit_denominator(1000)

    def beside(
        self, start_sample: int, *, batch_size: int, rank: int, num_ranks: int
    ) -> Iterator[list[tuple[int, int]]]:
        """Epoch and place of the photos beside each batch of captions, which come as `SampleOrder.batches` has them."""
        first = start_sample + rank * batch_size
        number = self._before(first)
        places = self.photos.places(number, batch_size=1, rank=0, num_ranks=1)
        while True:
            begin, end = self._before(first), self._before(first + batch_size)
            for _ in range(begin - number):
                next(places)  # another process's
            yield [next(places)[0] for _ in range(end - begin)]
            number = end
            first += batch_size * num_ranks

    def most(self, batch_size: int) -> int:
        """Photos beside a batch of so many captions, at most."""
        return math.ceil(batch_size * self._per_caption)

    def _before(self, caption: int) -> int:
        """Photos that captions before number `caption` brought."""
        return math.floor(caption * self._per_caption)
