"""Which caption stands with which image, and whether they belong together: the draws of the systems' matching tasks.

Drawn before anything is masked, and nothing is masked by it: a mask that is more common in one kind tells the kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from roibeam.pipelines.data.captioned.corpus import Corpus


NEGATIVES = ("caption", "image", "caption_or_image")


class Pair(NamedTuple):
    """Whose caption and whose image stand in a row of a batch, as rows of the corpus."""

    caption_row: int
    image_row: int
    matched: bool


def draw_pair(
    corpus: Corpus, row: int, random: np.random.Generator, *, mismatched_probability: float, negatives: str = "caption"
) -> Pair:
    """The pair of `row`, or one that does not belong together.

    Args:
        mismatched_probability: of a pair that does not belong together.
        negatives: one of `NEGATIVES`, what of it is another image's, each row of other images as likely;
            "caption_or_image" replaces one or the other, equally often.
    Raises:
        ValueError: when there is no caption of another image.
    """
    if random.random() >= mismatched_probability:
        return Pair(row, row, True)
    other = corpus.draw_row_of_another_image(row, random)
    if negatives == "image" or (negatives == "caption_or_image" and random.random() < 0.5):
        return Pair(row, other, False)
    return Pair(other, row, False)


def draw_second_caption(
    corpus: Corpus, row: int, random: np.random.Generator, *, mismatched_probability: float
) -> Pair:
    """Another caption for the image of `row`: one of its others, each as likely, or a mismatched one of another image.

    The only caption of its image has no second one, so it always stands with one of another image.

    Raises:
        ValueError: when there is no caption of another image.
    """
    matched = random.random() >= mismatched_probability
    own = corpus.rows_of_image(row)
    if matched and len(own) > 1:
        others = own[own != row]
        return Pair(int(others[random.integers(len(others))]), row, True)
    return Pair(corpus.draw_row_of_another_image(row, random), row, False)
