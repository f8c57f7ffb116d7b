"""How often words and regions are masked, and that words stay whole."""

import numpy as np
import pytest
from binomial import assert_share
from soak_share import many

from roibeam.model.common.masking import mask_pieces, mask_regions, mask_words
from roibeam.model.inputs import IGNORE_INDEX

MASK_ID, VOCAB_SIZE = 103, 30_000


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


# --- every share, and by piece ---

DRAWS = pytest.mark.parametrize("draws", [20_000, many(1_000_000)])


@DRAWS
@pytest.mark.parametrize("by", ["word", "piece"])
def test_every_share_of_word_masking(draws, by):
    """Texts of 50 words: what is chosen, what becomes of it, and that random pieces are any of the vocabulary."""
    generator, vocabulary = np.random.default_rng(7), 50
    word_ids = np.concatenate([[-1], np.arange(50), [-1]])
    units, mask = (word_ids, mask_words) if by == "word" else (word_ids >= 0, mask_pieces)
    counts, drawn = np.zeros(3, np.int64), np.zeros(vocabulary, np.int64)
    for _ in range(draws // 50):
        text_ids = np.full(52, vocabulary)  # no piece of the vocabulary, so that a random one is seen
        masked_ids, labels = mask(text_ids, units, generator, mask_id=vocabulary + 1, vocab_size=vocabulary)
        chosen = labels != IGNORE_INDEX
        assert (labels[chosen] == vocabulary).all() and (masked_ids[~chosen] == vocabulary).all()
        assert not chosen[[0, -1]].any()
        counts += [chosen.sum(), (masked_ids == vocabulary + 1).sum(), (masked_ids[chosen] == vocabulary).sum()]
        drawn += np.bincount(masked_ids[masked_ids < vocabulary], minlength=vocabulary)
    assert_share(counts[0], draws, 0.15)
    assert_share(counts[1], counts[0], 0.8)
    assert_share(counts[2], counts[0], 0.1)
    for hits in drawn:
        assert_share(hits, drawn.sum(), 1 / vocabulary)


@DRAWS
def test_every_share_of_region_masking(draws):
    masked, predicted = mask_regions(draws, np.random.default_rng(7))
    assert_share(predicted.sum(), draws, 0.15)
    assert_share(masked.sum(), predicted.sum(), 0.9)


def test_pieces_of_one_word_are_masked_by_themselves():
    generator, differ = np.random.default_rng(0), 0
    text_ids, maskable = np.array([1, 7, 8, 2]), np.array([False, True, True, False])
    for _ in range(300):
        _, labels = mask_pieces(text_ids, maskable, generator, mask_id=9, vocab_size=9, probability=0.5)
        differ += (labels[1] == IGNORE_INDEX) != (labels[2] == IGNORE_INDEX)
    assert_share(differ, 300, 0.5)


@pytest.mark.parametrize("probability, labelled", [(0.0, 0), (1.0, 4)])
def test_piece_probability_at_its_ends(probability, labelled):
    maskable = np.array([False, True, True, True, True, False])
    sizes = {"mask_id": 103, "vocab_size": 200}
    _, labels = mask_pieces(np.arange(6), maskable, np.random.default_rng(0), probability=probability, **sizes)
    assert (labels != IGNORE_INDEX).sum() == labelled
