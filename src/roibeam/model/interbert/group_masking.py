"""Masked group modelling (arXiv:2003.13198, section 2.3): runs of words and heaps of overlapping regions are hidden.

Two sets of rules: the paper's, and those of the release (black4321/InterBERT concept_cap_dataset.py, `--span_mask`;
without that flag it masks like ViLBERT). numpy only; the caller seeds the generator, as in `model/common/masking.py`.
"""

from __future__ import annotations

import numpy as np

from roibeam.model.common.masking import overlaps_with_inclusive_sides
from roibeam.model.inputs import IGNORE_INDEX

LONGEST_SEGMENT = 3  # words: an anchor and up to two after it
SHORTEST_TEXT_WITH_SPAN = 4  # pieces: the release masks a text of n only where int(0.3 n) is not 0


def mask_segments(
    text_ids: np.ndarray,
    word_ids: np.ndarray,
    generator: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
    probability: float = 0.1,
) -> tuple[np.ndarray, np.ndarray]:
    """The paper's masked segments: each word is an anchor with `probability` and takes 0 to 2 words after it along.

    Each word of a segment, anchor or not, then becomes `mask_id` (80 %), random (10 %) or stays (10 %), all its pieces
    alike, as in `mask_words`. Segments may touch and overlap; they end with the text.

    Args:
        text_ids: (T,) int64.
        word_ids: (T,) int64, pieces of one word share a number, in rising order; -1 for special tokens, which are never
            chosen.
    Returns:
        New text ids (T,) int64 and labels (T,) int64, `IGNORE_INDEX` where nothing is predicted.
    """
    words = np.unique(word_ids[word_ids >= 0])
    anchors = np.flatnonzero(generator.random(len(words)) < probability)
    lengths = 1 + generator.integers(LONGEST_SEGMENT, size=len(anchors))
    chosen = np.zeros(len(words), bool)
    for anchor, length in zip(anchors, lengths, strict=True):
        chosen[anchor : anchor + length] = True
    groups = [np.flatnonzero(word_ids == word) for word in words[chosen]]
    return _replace(text_ids, groups, generator, mask_id=mask_id, vocab_size=vocab_size)


def mask_one_span(
    text_ids: np.ndarray,
    word_ids: np.ndarray,
    generator: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The release's masked span: one run of pieces in a text of at least four, none in a shorter one.

    It starts before any of the n pieces or after the last, uniformly, and takes 1 to n of them, uniformly; the end of
    the text cuts it. So it may be empty, or the whole text. Each piece by itself becomes `mask_id` (80 %), random
    (10 %) or stays (10 %).

    Args:
        text_ids: (T,) int64.
        word_ids: (T,) int64, -1 for special tokens, which are not counted; the release cuts words into pieces here.
    Returns:
        As `mask_segments`.
    """
    places = np.flatnonzero(word_ids >= 0)
    count, span = len(places), places[:0]
    if count >= SHORTEST_TEXT_WITH_SPAN:
        start = int(generator.integers(count + 1))
        span = places[start : start + int(generator.integers(1, count + 1))]
    return _replace(text_ids, list(span[:, None]), generator, mask_id=mask_id, vocab_size=vocab_size)


def _replace(
    text_ids: np.ndarray,
    groups: list[np.ndarray],
    generator: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """80/10/10 for each group of places, which share one draw; all of them are labelled."""
    masked_ids, labels = text_ids.copy(), np.full_like(text_ids, IGNORE_INDEX)
    for places, draw in zip(groups, generator.random(len(groups)), strict=True):
        labels[places] = text_ids[places]
        if draw < 0.8:
            masked_ids[places] = mask_id
        elif draw < 0.9:
            masked_ids[places] = generator.integers(vocab_size, size=len(places))
    return masked_ids, labels


def regions_around(
    boxes_xyxy_px: np.ndarray, anchors: np.ndarray, *, threshold: float = 0.4, at_threshold: bool
) -> np.ndarray:
    """Regions whose overlap with an anchor is large; each anchor is one of them.

    Sides are counted as x2 - x1 + 1 pixels, which is the release's 1/W and 1/H on normalised boxes. (The paper does not
    say how it counts.)

    Args:
        boxes_xyxy_px: (R, 4), pixels of the original image.
        anchors: (R,) bool.
        at_threshold: whether an overlap equal to `threshold` is large; the paper says "larger than 0.4", the release
            >= 0.4.
    Returns:
        (R,) bool.
    """
    overlaps = overlaps_with_inclusive_sides(boxes_xyxy_px)
    near = overlaps >= threshold if at_threshold else overlaps > threshold
    return np.asarray(near[anchors].any(axis=0))


def mask_region_groups(
    boxes_xyxy_px: np.ndarray, generator: np.random.Generator, *, probability: float = 0.1, threshold: float = 0.4
) -> np.ndarray:
    """The paper's masked regions: every region is an anchor with `probability` and takes those with larger IoU along.

    Args:
        boxes_xyxy_px: (R, 4), pixels of the original image.
    Returns:
        (R,) bool: hidden from the model and predicted. None is kept visible: "it masks selected objects with zero
        vectors".
    """
    anchors = generator.random(len(boxes_xyxy_px)) < probability
    return regions_around(boxes_xyxy_px, anchors, threshold=threshold, at_threshold=False)


def mask_region_groups_as_released(
    boxes_xyxy_px: np.ndarray,
    features: np.ndarray,
    generator: np.random.Generator,
    *,
    probability: float = 0.1,
    threshold: float = 0.4,
) -> tuple[np.ndarray, np.ndarray]:
    """The release's masked regions: as the paper's, but an IoU equal to the threshold counts.

    The release finds out what it has masked by looking for features that are zero, so a region whose feature was zero
    before is predicted too.

    Args:
        boxes_xyxy_px: (R, 4), pixels of the original image; features: (R, D), as measured.
    Returns:
        `masked` (R,) bool, hidden from the model now, and `predicted` (R,) bool, which includes it.
    """
    anchors = generator.random(len(boxes_xyxy_px)) < probability
    masked = regions_around(boxes_xyxy_px, anchors, threshold=threshold, at_threshold=True)
    return masked, masked | ~features.any(axis=1)
