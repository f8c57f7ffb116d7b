"""Ranks of retrieval from the scores of all pairs, by hand: ranx and torchmetrics neither count ties nor read blocks.

Also chance levels, and the best ranks that equal captions allow.

Image to text: the rank of the best of an image's captions among all captions. Text to image: the rank of a caption's
image among all images. A wrong candidate that scores as high as the right one stands before it: rank = 1 + the wrong
ones with at least its score. A model that gives all the same score gets the worst rank.

Captions that a model reads alike are one text: they are scored once, and their scores are equal to the last bit.
"""

from dataclasses import dataclass

import numpy as np

CUTS = (1, 5, 10)  # K of R@K
_NUMBERS_AT_ONCE = 2**22  # scores in memory, 16 MB of them


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Pairs of texts and images that belong together: (captions,) int64 each, numbers from 0. An image may have several
    texts, a text several images; each has a caption."""

    text_of_caption: np.ndarray
    image_of_caption: np.ndarray
    num_texts: int
    num_images: int


@dataclass(frozen=True, eq=False)
class Ranks:
    """Attributes:
    image_to_text: (images,) int64, from 1.
    text_to_image: (captions,) int64, from 1, in the order of the captions.
    """

    image_to_text: np.ndarray
    text_to_image: np.ndarray


def retrieval_ranks(scores_TI: np.ndarray, captioned: CaptionedImages, *, ties_count: bool = True) -> Ranks:
    """Ranks of the right candidates; ValueError where a score is not a finite number: it would have no rank.

    Args:
        scores_TI: (T, I) float, of each text with each image; may be a file on disk that memory does not hold: rows are
            read in order, twice.
        ties_count: whether a wrong candidate that scores as high as the right one stands before it. False gives the
            best that an order of equal scores can give; the two together say how much of a figure is ties.
    """
    at_least, itself = (np.greater_equal, 0) if ties_count else (np.greater, 1)  # a right one is as good as itself
    texts, images, of_caption = _true_pairs(captioned)
    captions_of_pair = np.bincount(of_caption, minlength=len(texts))
    captions_of_text = np.bincount(captioned.text_of_caption, minlength=captioned.num_texts).astype(np.float64)
    at_once = max(1, _NUMBERS_AT_ONCE // captioned.num_images)
    starts = range(0, captioned.num_texts, at_once)
    best = np.full(captioned.num_images, -np.inf)
    for start in starts:
        block = np.asarray(scores_TI[start : start + at_once])
        if not np.isfinite(block).all():
            raise ValueError("the model gave a match score that is not finite; are its weights damaged?")
        here = _between(texts, start, start + at_once)
        np.maximum.at(best, images[here], block[texts[here] - start, images[here]])
    better = np.zeros(captioned.num_images)
    rank_of_pair = np.zeros(len(texts), np.int64)
    for start in starts:
        block = np.asarray(scores_TI[start : start + at_once])
        here = _between(texts, start, start + at_once)
        as_good = at_least(block, best)
        better += captions_of_text[start : start + at_once] @ as_good
        # An image's own captions are no wrong ones.
        np.subtract.at(better, images[here], captions_of_pair[here] * as_good[texts[here] - start, images[here]])
        for pair in range(here.start, here.stop):
            scores = block[texts[pair] - start]
            rank_of_pair[pair] = itself + np.count_nonzero(at_least(scores, scores[images[pair]]))
    return Ranks(1 + np.rint(better).astype(np.int64), rank_of_pair[of_caption])


def best_possible_ranks(captioned: CaptionedImages) -> Ranks:
    """Ranks of a model that errs only where captions cannot distinguish images: a caption that several images have.

    Such captions score alike, so image to text none of them comes first; text to image, the images that share one come
    first in some order, those with most of its captions in front.
    """
    texts, images, of_caption = _true_pairs(captioned)
    captions_of_pair = np.bincount(of_caption, minlength=len(texts))
    captions_of_text = np.bincount(captioned.text_of_caption, minlength=captioned.num_texts)
    image_to_text = np.full(captioned.num_images, np.iinfo(np.int64).max)
    np.minimum.at(image_to_text, images, 1 + captions_of_text[texts] - captions_of_pair)
    order = np.lexsort((-captions_of_pair, texts))
    first_of_text = np.searchsorted(texts, texts)  # pairs are sorted by text
    rank_of_pair = np.empty(len(texts), np.int64)
    rank_of_pair[order] = np.arange(len(texts)) - first_of_text + 1
    return Ranks(image_to_text, rank_of_pair[of_caption])


def recall_by_chance(num_true: np.ndarray, num_candidates: int, cut: int) -> float:
    """Mean over queries of the share of random orders in which one of the right candidates is among the first `cut`;
    num_true: (queries,) int >= 1."""
    values, times = np.unique(num_true, return_counts=True)
    chances = [1 - _all_behind(int(value), num_candidates, cut) for value in values]
    return float(np.average(chances, weights=times))


def median_rank_by_chance(num_true: np.ndarray, num_candidates: int) -> int:
    """First rank that at least half of all queries reach in random order; arguments as `recall_by_chance`."""
    low, high = 1, num_candidates
    while low < high:
        middle = (low + high) // 2
        # Sums of products are off by some 1e-16.
        if recall_by_chance(num_true, num_candidates, middle) >= 0.5 - 1e-12:
            high = middle
        else:
            low = middle + 1
    return low


def _all_behind(num_true: int, num_candidates: int, cut: int) -> float:
    """Probability that none of `num_true` is among the first `cut`: C(n - t, k) / C(n, k)."""
    if cut > num_candidates - num_true:
        return 0.0
    places = np.arange(num_true)
    return float(np.prod((num_candidates - cut - places) / (num_candidates - places)))


def _true_pairs(captioned: CaptionedImages) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Text and image of each different pair, sorted by text; and the pair of each caption."""
    joined = captioned.text_of_caption * captioned.num_images + captioned.image_of_caption
    pairs, of_caption = np.unique(joined, return_inverse=True)
    texts, images = np.divmod(pairs, captioned.num_images)
    return texts, images, of_caption


def _between(ordered: np.ndarray, start: int, stop: int) -> slice:
    first, end = np.searchsorted(ordered, [start, stop])
    return slice(int(first), int(end))
