"""Which caption meets which image, and how often."""

import numpy as np
import pytest
from paired_examples import assert_share, make_corpus, make_store

from pipelines.pretraining.pairs import NEGATIVES, draw_pair

DRAWS = [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def corpus():
    """Five images with three captions each."""
    return make_corpus(make_store(5), per_image=3)


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_the_ends_of_the_probability(corpus, negatives):
    random = np.random.default_rng(0)
    for row in range(len(corpus)):
        assert draw_pair(corpus, row, random, mismatched_probability=0.0, negatives=negatives) == (row, row, True)
        assert not draw_pair(corpus, row, random, mismatched_probability=1.0, negatives=negatives).matched


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("probability", [0.5, 0.2])
def test_every_caption_of_another_image_is_as_likely(corpus, draws, probability):
    random, row = np.random.default_rng(1), 7
    met = np.zeros(len(corpus), int)
    for _ in range(draws):
        pair = draw_pair(corpus, row, random, mismatched_probability=probability)
        assert pair.image_row == row and pair.matched == (pair.caption_row == row)
        met[pair.caption_row] += 1
    assert_share(met[row], draws, 1 - probability)
    assert met[6] == met[8] == 0  # the other captions of the same image
    others = np.delete(met, [6, 7, 8])
    for hits in others:
        assert_share(hits, draws, probability / len(others))


@pytest.mark.parametrize("draws", DRAWS)
def test_caption_or_image_is_replaced_equally_often(corpus, draws):
    random, row, counts = np.random.default_rng(2), 4, {"caption": 0, "image": 0, "none": 0}
    for _ in range(draws):
        pair = draw_pair(corpus, row, random, mismatched_probability=0.5, negatives="caption_or_image")
        kind = "none" if pair.matched else "caption" if pair.image_row == row else "image"
        counts[kind] += 1
        same_image = corpus.record_id(pair.caption_row) == corpus.record_id(pair.image_row)
        assert same_image == pair.matched
    assert_share(counts["none"], draws, 0.5)
    assert_share(counts["image"], draws, 0.25)
    assert_share(counts["caption"], draws, 0.25)


def test_all_captions_of_one_image():
    lonely = make_corpus(make_store(1), per_image=3)
    with pytest.raises(ValueError, match="all captions are of the image 'image-0'; mismatched pairs need a second"):
        draw_pair(lonely, 0, np.random.default_rng(0), mismatched_probability=1.0)
