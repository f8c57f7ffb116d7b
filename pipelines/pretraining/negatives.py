"""Pairs that do not belong together: which caption meets which image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipelines.pretraining.corpus import Corpus

# What of a mismatched pair is another one's. "any_caption" may draw the image's own caption and still calls it a
# mismatch, as the releases of ViLBERT do.
NEGATIVES = ("caption", "caption_or_image", "any_caption")


class Pair(NamedTuple):
    """Whose caption and whose image stand in a row of a batch, as rows of the corpus."""

    caption_row: int
    image_row: int
    matched: bool


def draw_pair(
    corpus: Corpus, row: int, random: np.random.Generator, *, mismatched_probability: float, negatives: str = "caption"
) -> Pair:
    """The pair of `row`, or one that does not belong together.

    Nothing else of a sample may be drawn by whether it matches: a mask that is more common in one kind tells the kind.

    Args:
        mismatched_probability: of a pair that does not belong together.
        negatives: one of `NEGATIVES`: "caption" replaces it by a caption of another image, each row as likely;
            "caption_or_image" replaces one or the other, equally often.
    Raises:
        ValueError: when there is no caption of another image.
    """
    if random.random() >= mismatched_probability:
        return Pair(row, row, True)
    if negatives == "any_caption":
        return Pair(int(random.integers(len(corpus))), row, False)
    other = corpus.draw_row_of_another_image(row, random)
    if negatives == "caption_or_image" and random.random() < 0.5:
        return Pair(row, other, False)
    return Pair(other, row, False)
