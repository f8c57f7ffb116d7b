"""What is hidden from a model in pre-training. numpy only, so that a loader can call it anywhere.

The caller seeds the generator by (seed, epoch, sample): then masks depend neither on batch size nor on worker count.
"""

from __future__ import annotations

import numpy as np

from model.inputs import IGNORE_INDEX


def mask_words(
    text_ids: np.ndarray,
    word_ids: np.ndarray,
    generator: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
    probability: float = 0.15,
) -> tuple[np.ndarray, np.ndarray]:
    """BERT's 80/10/10 masking by whole words (jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py).

    Each word is chosen with `probability`. Of a chosen word all pieces become `mask_id` (80 %), or each becomes a
    random vocabulary entry (10 %), or all stay (10 %); all its pieces are labelled. No word has to be chosen.

    Args:
        text_ids: (T,) int64.
        word_ids: (T,) int64, pieces of one word share a number; -1 for special tokens, which are never chosen.
    Returns:
        New text ids (T,) int64 and labels (T,) int64, `IGNORE_INDEX` where nothing is predicted.
    """
    masked_ids = text_ids.copy()
    labels = np.full_like(text_ids, IGNORE_INDEX)
    for word in np.unique(word_ids[word_ids >= 0]):
        draw = generator.random() / probability if probability > 0 else 1.0
        if draw >= 1.0:
            continue
        pieces = np.flatnonzero(word_ids == word)
        labels[pieces] = text_ids[pieces]
        if draw < 0.8:
            masked_ids[pieces] = mask_id
        elif draw < 0.9:
            masked_ids[pieces] = generator.integers(vocab_size, size=len(pieces))
    return masked_ids, labels


def mask_regions(
    num_regions: int, generator: np.random.Generator, *, probability: float = 0.15, masked_share: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses regions to predict, each with `probability`, and hides `masked_share` of those (VL-BERT, same file).

    Returns:
        `masked` (num_regions,) bool, hidden from the model, and `predicted` (num_regions,) bool, which includes it.
    """
    draws = generator.random(num_regions)
    return draws < probability * masked_share, draws < probability
