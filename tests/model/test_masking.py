"""How often words and regions are masked, and that words stay whole."""

import math

import numpy as np
import pytest

from model.inputs import IGNORE_INDEX
from model.masking import mask_regions, mask_words

MASK_ID, VOCAB_SIZE = 103, 30_000


def assert_share(hits, trials, probability):
    """Within five standard deviations of the binomial."""
    spread = math.sqrt(trials * probability * (1 - probability))
    assert abs(hits - trials * probability) < 5 * spread, (hits, trials, probability)


def test_words_are_masked_whole_and_as_often_as_bert_does():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 4, size=20_000)  # pieces of each word
    word_ids = np.concatenate([[-1], np.repeat(np.arange(len(lengths)), lengths), [-1]])
    text_ids = generator.integers(1000, VOCAB_SIZE, size=len(word_ids))
    masked_ids, labels = mask_words(text_ids, word_ids, generator, mask_id=MASK_ID, vocab_size=VOCAB_SIZE)

    labelled = labels != IGNORE_INDEX
    assert (labels[labelled] == text_ids[labelled]).all()
    assert (masked_ids[~labelled] == text_ids[~labelled]).all()
    assert not labelled[[0, -1]].any()
    kinds = {"mask": 0, "random": 0, "kept": 0}
    for word in range(len(lengths)):
        pieces = np.flatnonzero(word_ids == word) if word < 2000 else None
        if pieces is not None:
            assert labelled[pieces].all() or not labelled[pieces].any()
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]]) + 1
    for start in first[labelled[first]]:
        if masked_ids[start] == MASK_ID:
            kinds["mask"] += 1
        elif masked_ids[start] == text_ids[start]:
            kinds["kept"] += 1
        else:
            kinds["random"] += 1
    chosen = int(labelled[first].sum())
    assert_share(chosen, len(lengths), 0.15)
    assert_share(kinds["mask"], chosen, 0.8)
    assert_share(kinds["random"], chosen, 0.1)
    assert_share(kinds["kept"], chosen, 0.1)


def test_the_share_of_mask_pieces_can_be_another():
    """1: VL-BERT's paper replaces every chosen word by [MASK]."""
    text_ids, word_ids = np.full(20_002, 5000), np.concatenate([[-1], np.arange(20_000), [-1]])

    def chosen(share):
        generator, sizes = np.random.default_rng(0), {"mask_id": MASK_ID, "vocab_size": VOCAB_SIZE}
        masked_ids, labels = mask_words(text_ids, word_ids, generator, **sizes, masked_share=share)
        return masked_ids[labels != IGNORE_INDEX]

    assert (chosen(1.0) == MASK_ID).all()
    half = chosen(0.5)
    assert_share(int((half == MASK_ID).sum()), len(half), 0.5)
    assert_share(int((half == 5000).sum()), len(half), 0.25)


@pytest.mark.parametrize("probability, labelled", [(0.0, 0), (1.0, 4)])
def test_word_probability_at_its_ends(probability, labelled):
    _, labels = mask_words(
        np.arange(6),
        np.array([-1, 0, 1, 1, 2, -1]),
        np.random.default_rng(0),
        mask_id=MASK_ID,
        vocab_size=200,
        probability=probability,
    )
    assert (labels != IGNORE_INDEX).sum() == labelled


def test_nine_of_ten_predicted_regions_are_hidden():
    masked, predicted = mask_regions(50_000, np.random.default_rng(0))
    assert not (masked & ~predicted).any()
    assert_share(int(predicted.sum()), 50_000, 0.15)
    assert_share(int(masked.sum()), int(predicted.sum()), 0.9)


def test_no_region():
    masked, predicted = mask_regions(0, np.random.default_rng(0))
    assert masked.shape == predicted.shape == (0,)
