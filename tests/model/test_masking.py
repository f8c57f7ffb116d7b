"""How often words, segments, spans, regions and groups of regions are masked, and which; that words stay whole."""

import numpy as np
import pytest
from binomial import assert_share
from soak_share import many

from roibeam.model.common.masking import (
    mask_one_span,
    mask_overlapping_regions,
    mask_pieces,
    mask_region_groups,
    mask_region_groups_as_released,
    mask_regions,
    mask_segments,
    mask_words,
    overlaps_with_inclusive_sides,
    regions_around,
)
from roibeam.model.inputs import IGNORE_INDEX

MASK_ID, VOCAB_SIZE = 103, 30_000


def test_words_are_masked_whole_and_as_often_as_bert_does():
    """What becomes of them: test_every_share_of_word_masking."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 4, size=20_000)  # pieces of each word
    word_ids = np.concatenate([[-1], np.repeat(np.arange(len(lengths)), lengths), [-1]])
    text_ids = generator.integers(1000, VOCAB_SIZE, size=len(word_ids))
    masked_ids, labels = mask_words(text_ids, word_ids, generator, mask_id=MASK_ID, vocab_size=VOCAB_SIZE)

    labelled = labels != IGNORE_INDEX
    assert (labels[labelled] == text_ids[labelled]).all()
    assert (masked_ids[~labelled] == text_ids[~labelled]).all()
    assert not labelled[[0, -1]].any()
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) + 1
    second = starts[lengths > 1] + 1
    assert (labelled[second] == labelled[second - 1]).all()
    third = starts[lengths > 2] + 2
    assert (labelled[third] == labelled[third - 1]).all()
    assert_share(int(labelled[starts].sum()), len(lengths), 0.15)


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
    assert not (masked & ~predicted).any()
    assert_share(predicted.sum(), draws, 0.15)
    assert_share(masked.sum(), predicted.sum(), 0.9)


def test_pieces_of_one_word_are_masked_by_themselves():
    generator, differ = np.random.default_rng(0), 0
    text_ids, maskable = np.array([1, 7, 8, 2]), np.array([False, True, True, False])
    for _ in range(300):
        _, labels = mask_pieces(text_ids, maskable, generator, mask_id=9, vocab_size=9, probability=0.5)
        differ += (labels[1] == IGNORE_INDEX) != (labels[2] == IGNORE_INDEX)
    assert_share(differ, 300, 0.5)


@pytest.mark.parametrize("mask", [mask_words, mask_pieces, mask_segments])
@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_probability_at_its_ends(mask, probability):
    word_ids = np.array([-1, 0, 1, 1, 2, -1])
    options = {"mask_id": MASK_ID, "vocab_size": 200, "probability": probability}
    units = word_ids >= 0 if mask is mask_pieces else word_ids
    _, labels = mask(np.arange(6), units, np.random.default_rng(0), **options)
    assert (labels != IGNORE_INDEX).tolist() == [False, *[bool(probability)] * 4, False]


def long_text(generator, words):
    """Words of one or two pieces, with a special token at both ends; and where each word starts."""
    lengths = generator.integers(1, 3, size=words)
    word_ids = np.concatenate([[-1], np.repeat(np.arange(words), lengths), [-1]])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) + 1
    return generator.integers(1000, VOCAB_SIZE, size=len(word_ids)), word_ids, starts


def test_segments_are_anchors_with_up_to_two_words_after_them():
    generator = np.random.default_rng(0)
    words = 15_000
    text_ids, word_ids, starts = long_text(generator, words)
    masked_ids, labels = mask_segments(text_ids, word_ids, generator, mask_id=MASK_ID, vocab_size=VOCAB_SIZE)
    labelled = labels != IGNORE_INDEX
    assert (labels[labelled] == text_ids[labelled]).all() and (masked_ids[~labelled] == text_ids[~labelled]).all()
    assert not labelled[[0, -1]].any()
    second = starts[np.append(np.diff(starts) == 2, False)] + 1
    assert (labelled[second] == labelled[second - 1]).all()  # words stay whole
    assert ((masked_ids[second] == MASK_ID) == (masked_ids[second - 1] == MASK_ID)).all()

    # A word is masked when it is an anchor, when the word before is one that takes 1 or 2 along, or the one before
    # that takes 2. Words three apart depend on different anchors.
    chosen = labelled[starts]
    any_anchor = 1 - (1 - 0.1) * (1 - 0.1 * 2 / 3) * (1 - 0.1 / 3)
    assert_share(int(chosen[2::3].sum()), len(chosen[2::3]), any_anchor)
    # A segment that starts after an unmasked word starts with an anchor: how it goes on tells the lengths. The word
    # after goes along with probability 2/3, or is an anchor itself.
    first = np.flatnonzero(~chosen[:-3] & chosen[1:-2]) + 1
    assert_share(int(chosen[first + 1].sum()), len(first), 1 - (1 - 2 / 3) * 0.9)


def test_a_text_without_words():
    ids, word_ids = np.array([101, 102]), np.array([-1, -1])
    for mask in (mask_segments, mask_one_span):
        masked_ids, labels = mask(ids, word_ids, np.random.default_rng(0), mask_id=MASK_ID, vocab_size=200)
        assert masked_ids.tolist() == [101, 102] and (labels == IGNORE_INDEX).all()


def test_the_span_is_as_often_where_the_release_puts_it():
    """Start s is one of 0..n, length one of 1..n: piece j is in it with the sum over s <= j of (n - j + s) / n."""
    generator = np.random.default_rng(1)
    count, trials = 6, 6_000
    text_ids = np.concatenate([[101], generator.integers(1000, VOCAB_SIZE, size=count), [102]])
    word_ids = np.array([-1, 0, 0, 1, 2, 3, 3, -1])
    found = np.zeros((trials, count), bool)
    for trial in range(trials):
        _, labels = mask_one_span(text_ids, word_ids, generator, mask_id=MASK_ID, vocab_size=VOCAB_SIZE)
        assert labels[0] == labels[-1] == IGNORE_INDEX
        found[trial] = labels[1:-1] != IGNORE_INDEX
    runs = np.diff(found.astype(int), axis=1, prepend=0)
    assert ((runs == 1).sum(axis=1) <= 1).all()  # one run
    for j in range(count):
        probability = sum((count - (j - start)) / count for start in range(j + 1)) / (count + 1)
        assert_share(int(found[:, j].sum()), trials, probability)
    assert_share(int((~found.any(axis=1)).sum()), trials, 1 / (count + 1))  # started after the last
    assert_share(int(found.all(axis=1).sum()), trials, 1 / (count + 1) / count)


@DRAWS
@pytest.mark.parametrize("mask", [mask_segments, mask_one_span])
def test_every_share_of_segments_and_spans(draws, mask):
    """Texts of 20 words of two pieces: [MASK], any of the vocabulary, or itself; of segments by words, else by pieces.

    `draws` counts those 80/10/10 of a word or a piece.
    """
    generator, vocabulary, hidden = np.random.default_rng(7), 50, 51
    word_ids = np.concatenate([[-1], np.repeat(np.arange(20), 2), [-1]])
    text_ids = np.full(len(word_ids), vocabulary)  # no piece of the vocabulary, so that a random one is seen
    kinds, drawn = np.zeros(3, np.int64), np.zeros(vocabulary, np.int64)  # hidden, kept, random
    of_words, neighbours = np.zeros(2, np.int64), np.zeros(2, np.int64)
    while kinds.sum() < draws:
        masked_ids, labels = mask(text_ids, word_ids, generator, mask_id=hidden, vocab_size=vocabulary)
        chosen = labels != IGNORE_INDEX
        assert (labels[chosen] == vocabulary).all() and (masked_ids[~chosen] == vocabulary).all()
        drawn += np.bincount(masked_ids[masked_ids < vocabulary], minlength=vocabulary)
        first, second = masked_ids[1:-1].reshape(20, 2).T
        if mask is mask_segments:
            np.testing.assert_array_equal(np.maximum(first, vocabulary - 1), np.maximum(second, vocabulary - 1))
        random = (first < vocabulary) & (second < vocabulary)
        of_words += [random.sum(), (first == second)[random].sum()]
        step = 2 if mask is mask_segments else 1
        unit, is_chosen = masked_ids[1:-1:step], chosen[1:-1:step]
        kinds += [(unit == hidden).sum(), (unit[is_chosen] == vocabulary).sum(), (unit < vocabulary).sum()]
        both = is_chosen[::2] & is_chosen[1::2]
        neighbours += [both.sum(), ((unit == hidden)[::2] & (unit == hidden)[1::2]).sum()]
    for hits, probability in zip(kinds, (0.8, 0.1, 0.1), strict=True):
        assert_share(hits, kinds.sum(), probability)
    for hits in drawn:
        assert_share(hits, drawn.sum(), 1 / vocabulary)
    assert_share(of_words[1], of_words[0], 1 / vocabulary)  # each piece of a word is another
    assert_share(neighbours[1], neighbours[0], 0.8**2)  # and each unit has a draw of its own


@pytest.mark.parametrize("count, may_mask", [(3, False), (4, True)])
def test_short_texts_have_no_span(count, may_mask):
    word_ids = np.array([-1, *range(count), -1])
    generator = np.random.default_rng(2)
    options = {"mask_id": MASK_ID, "vocab_size": 200}
    labels = [mask_one_span(np.arange(count + 2), word_ids, generator, **options)[1] for _ in range(50)]
    assert any((row != IGNORE_INDEX).any() for row in labels) == may_mask


# With a pixel more on each side: 40 of the 100 pixels of the first two are shared.
EQUAL_TO_THRESHOLD = np.array([[0, 0, 9, 9], [0, 0, 9, 3], [50, 50, 59, 59]], np.float32)


def test_an_overlap_equal_to_the_threshold():
    assert overlaps_with_inclusive_sides(EQUAL_TO_THRESHOLD)[0, 1] == 0.4
    anchors = np.array([True, False, False])
    assert regions_around(EQUAL_TO_THRESHOLD, anchors, at_threshold=False).tolist() == [True, False, False]
    assert regions_around(EQUAL_TO_THRESHOLD, anchors, at_threshold=True).tolist() == [True, True, False]


def test_what_the_multi_task_release_does_not_count_can_be_hidden():
    """It leaves the pixels of regions that overlap an anchor visible, unless told to hide them."""
    anchors = np.array([True, False, False])
    for hide, hidden in ((False, [True, False, False]), (True, [True, True, False])):
        masked, counted = mask_overlapping_regions(
            EQUAL_TO_THRESHOLD, anchors, anchors, threshold=0.39, hide_overlapping=hide
        )
        assert (masked.tolist(), counted.tolist()) == (hidden, [False, False, True])


def test_anchors_of_regions_are_one_in_ten_and_take_their_neighbours():
    generator = np.random.default_rng(3)
    pairs, trials = 20, 200
    corner = np.arange(pairs)[:, None] * np.array([[100.0, 0.0]])
    boxes = np.repeat(np.concatenate([corner, corner + 40], axis=1), 2, axis=0)
    boxes[1::2] += 5  # each pair overlaps by 36^2 / (2 * 41^2 - 36^2) = 0.63
    found = np.array([mask_region_groups(boxes, generator) for _ in range(trials)])
    assert (found[:, ::2] == found[:, 1::2]).all()
    assert_share(int(found[:, ::2].sum()), trials * pairs, 1 - 0.9**2)
    apart = np.array([mask_region_groups(boxes[::2], generator) for _ in range(trials)])
    assert_share(int(apart.sum()), trials * pairs, 0.1)


def test_released_regions_that_were_zero_count_as_masked():
    generator = np.random.default_rng(4)
    features = np.ones((3, 5), np.float32)
    features[2] = 0
    trials = 2000
    found = [mask_region_groups_as_released(EQUAL_TO_THRESHOLD, features, generator) for _ in range(trials)]
    masked, predicted = (np.array(part) for part in zip(*found, strict=True))
    assert predicted[:, 2].all() and (predicted[:, :2] == masked[:, :2]).all()
    assert (masked[:, 0] == masked[:, 1]).all()
    assert_share(int(masked[:, 0].sum()), trials, 1 - 0.9**2)
    assert_share(int(masked[:, 2].sum()), trials, 0.1)


def test_no_region_in_a_group():
    boxes = np.zeros((0, 4), np.float32)
    assert mask_region_groups(boxes, np.random.default_rng(0)).shape == (0,)
    masked, predicted = mask_region_groups_as_released(boxes, np.zeros((0, 5)), np.random.default_rng(0))
    assert masked.shape == predicted.shape == (0,)
