"""Which captions and images are put together, and how often."""

import numpy as np
import pytest
from binomial import assert_share
from captioned_records import CAPTIONS, make_corpus, make_store
from soak_share import many

from roibeam.pipelines.pretraining.samples.sampling import draw_pair, draw_second_caption

# image of each row: one image has four captions, one has two, two have one
IMAGES = [0, 1, 0, 2, 0, 3, 1, 0]


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(make_store(4), zip(IMAGES, CAPTIONS, strict=True))


DRAWS = pytest.mark.parametrize("draws", [20_000, many(1_000_000)])


@DRAWS
@pytest.mark.parametrize(
    ("negatives", "captions", "images"), [("caption", 1, 0), ("image", 0, 1), ("caption_or_image", 0.5, 0.5)]
)
def test_pairs_match_half_the_time_and_no_negative_is_of_the_same_image(corpus, draws, negatives, captions, images):
    random, row = np.random.default_rng(0), 2
    pairs = [draw_pair(corpus, row, random, mismatched_probability=0.5, negatives=negatives) for _ in range(draws)]
    wrong = [pair for pair in pairs if not pair.matched]
    assert_share(len(wrong), draws, 0.5)
    assert all((pair.caption_row, pair.image_row) == (row, row) for pair in pairs if pair.matched)
    assert all((pair.caption_row == row) != (pair.image_row == row) for pair in wrong)
    assert_share(sum(pair.caption_row != row for pair in wrong), len(wrong), captions)
    assert_share(sum(pair.image_row != row for pair in wrong), len(wrong), images)
    others = np.array([pair.caption_row if pair.caption_row != row else pair.image_row for pair in wrong])
    for place, image in enumerate(IMAGES):
        assert_share(int((others == place).sum()), len(wrong), 0 if image == 0 else 1 / 4)


@DRAWS
def test_second_captions_are_the_others_of_the_image_or_those_of_all_other_images(corpus, draws):
    random, row = np.random.default_rng(0), 2
    pairs = [draw_second_caption(corpus, row, random, mismatched_probability=0.5) for _ in range(draws)]
    assert all(pair.image_row == row and pair.caption_row != row for pair in pairs)
    matched = sum(pair.matched for pair in pairs)
    assert_share(matched, draws, 0.5)
    captions = np.array([pair.caption_row for pair in pairs])
    for place, image in enumerate(IMAGES):
        hits = int((captions == place).sum())
        if image == 0:
            assert_share(hits, matched, 0 if place == row else 1 / 3)
        else:
            assert_share(hits, draws - matched, 1 / 4)


def test_the_only_caption_of_an_image_stands_with_one_of_another(corpus):
    random = np.random.default_rng(0)
    pairs = [draw_second_caption(corpus, 3, random, mismatched_probability=0.5) for _ in range(200)]
    assert not any(pair.matched for pair in pairs)
    assert {IMAGES[pair.caption_row] for pair in pairs} == {0, 1, 3}


@pytest.mark.parametrize("draw", [draw_pair, draw_second_caption])
@pytest.mark.parametrize(("probability", "matched"), [(0.0, True), (1.0, False)])
def test_the_ends_of_the_probability(corpus, draw, probability, matched):
    random = np.random.default_rng(0)
    assert {draw(corpus, 0, random, mismatched_probability=probability).matched for _ in range(50)} == {matched}


def test_captions_of_one_image_have_no_mismatches():
    corpus = make_corpus(make_store(1), [(0, CAPTIONS[0]), (0, CAPTIONS[1])])
    with pytest.raises(ValueError, match=r"all captions are of the image 'image-0'.*, or a larger data\.share"):
        draw_pair(corpus, 0, np.random.default_rng(0), mismatched_probability=1.0)
