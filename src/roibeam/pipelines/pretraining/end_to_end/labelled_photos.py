"""Labelled photos beside the captions of an end-to-end run, so that the detector is trained on too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from roibeam.pipelines.training.detector.labelled_batches import LabelledBatches


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
