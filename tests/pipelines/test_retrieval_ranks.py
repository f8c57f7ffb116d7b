"""Ranks against a count by hand, guessing against random orders, intervals against draws one by one."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from roibeam.pipelines.common.statistics import retrieval_ranks as module
from roibeam.pipelines.common.statistics.retrieval_ranks import (
    CaptionedImages,
    best_possible_ranks,
    median_rank_by_chance,
    recall_by_chance,
    retrieval_ranks,
)
from roibeam.pipelines.common.statistics.verdict import Bootstrap, floor_median


def random_captions(random: np.random.Generator, num_images: int, num_texts: int, num_captions: int) -> CaptionedImages:
    """Every image and every text has a caption; some texts have several images, some pairs occur twice."""
    images = np.concatenate([np.arange(num_images), random.integers(num_images, size=num_captions)])
    texts = random.integers(num_texts, size=len(images))
    texts[random.permutation(len(images))[:num_texts]] = np.arange(num_texts)
    return CaptionedImages(texts, images, num_texts, num_images)


def by_hand(scores_TI: np.ndarray, captioned: CaptionedImages) -> tuple[list[int], list[int]]:
    """Straight from the definition, a caption at a time."""
    captions = list(zip(captioned.text_of_caption, captioned.image_of_caption, strict=True))
    image_to_text = []
    for image in range(captioned.num_images):
        best = max(scores_TI[text, image] for text, of in captions if of == image)
        image_to_text.append(1 + sum(scores_TI[text, image] >= best for text, of in captions if of != image))
    text_to_image = []
    for text, image in captions:
        others = (other for other in range(captioned.num_images) if other != image)
        text_to_image.append(1 + sum(scores_TI[text, other] >= scores_TI[text, image] for other in others))
    return image_to_text, text_to_image


@pytest.mark.parametrize("levels", [2, 5, 10**6])  # few levels: many ties
@pytest.mark.parametrize("at_once", [1, 20, 2**22])
def test_ranks_are_as_defined(levels: int, at_once: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_NUMBERS_AT_ONCE", at_once)
    random = np.random.default_rng(levels)
    for number in range(8):
        captioned = random_captions(random, 7, 12, int(random.integers(6, 30)))
        scores = (random.integers(levels, size=(12, 7)) / 3).astype(np.float32)
        on_disk = np.memmap(tmp_path / f"{number}", np.float32, "w+", shape=scores.shape)
        on_disk[:] = scores
        for each in (scores, on_disk):
            found = retrieval_ranks(each, captioned)
            expected = by_hand(scores, captioned)
            assert (found.image_to_text.tolist(), found.text_to_image.tolist()) == expected


def test_ties_count_against_us() -> None:
    """Equal scores for all pairs rank last everywhere, not first."""
    captioned = CaptionedImages(np.arange(6), np.array([0, 0, 1, 1, 2, 2]), 6, 3)
    same = retrieval_ranks(np.zeros((6, 3), np.float32), captioned)
    assert same.image_to_text.tolist() == [5] * 3 and same.text_to_image.tolist() == [3] * 6


def test_several_captions_count_by_their_best() -> None:
    captioned = CaptionedImages(np.arange(4), np.array([0, 0, 1, 1]), 4, 2)
    scores = np.array([[9, 0], [1, 5], [2, 8], [3, 7]], np.float32)
    found = retrieval_ranks(scores, captioned)
    assert found.image_to_text.tolist() == [1, 1]  # image 0: caption 1 scores below both wrong ones, caption 0 above
    assert found.text_to_image.tolist() == [1, 2, 1, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_without_a_rank_is_refused(bad: float) -> None:
    scores = np.zeros((2, 2), np.float32)
    scores[1, 0] = bad
    with pytest.raises(ValueError, match="not finite"):
        retrieval_ranks(scores, CaptionedImages(np.arange(2), np.arange(2), 2, 2))


def test_no_model_beats_the_best_possible_and_one_reaches_it() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        captioned = random_captions(random, 6, 5, 6)
        ceiling = best_possible_ranks(captioned)
        true = np.full((5, 6), -1.0)
        times = np.zeros((5, 6))
        np.add.at(times, (captioned.text_of_caption, captioned.image_of_caption), 1)
        true[times > 0] = 1
        # Image to text: right texts above, equal among each other. Text to image: those with most captions first.
        assert ceiling.image_to_text.tolist() == best_over_choices(captioned)
        strict = true + times + np.linspace(0, 0.1, 6)
        assert sorted(retrieval_ranks(strict, captioned).text_to_image) == sorted(ceiling.text_to_image)
        for _ in range(5):
            drawn = retrieval_ranks(random.standard_normal((5, 6)), captioned)
            assert (drawn.image_to_text >= ceiling.image_to_text).all()
            for cut in (1, 2, 3):
                assert np.mean(drawn.text_to_image <= cut) <= np.mean(ceiling.text_to_image <= cut)


def best_over_choices(captioned: CaptionedImages) -> list[int]:
    """Each image's best rank when it may put any one text first: only those who share that text tie with it."""
    best = []
    for image in range(captioned.num_images):
        own = set(captioned.text_of_caption[captioned.image_of_caption == image])
        ranks = []
        for text in own:
            scores = np.zeros((captioned.num_texts, captioned.num_images))
            scores[text, image] = 1
            ranks.append(int(retrieval_ranks(scores, captioned).image_to_text[image]))
        best.append(min(ranks))
    return best


def test_chance_is_what_random_orders_give() -> None:
    num_true, num_candidates = np.array([1, 2, 2, 4]), 7
    for cut in (1, 3, 5, 7, 10):
        shares = []
        for true in num_true:
            orders = itertools.combinations(range(num_candidates), int(true))
            shares.append(np.mean([min(places) < cut for places in orders]))
        assert recall_by_chance(num_true, num_candidates, cut) == pytest.approx(np.mean(shares), abs=1e-12)
    assert recall_by_chance(np.ones(3, int), 1000, 10) == pytest.approx(0.01)
    assert median_rank_by_chance(np.ones(3, int), 1000) == 500
    ranks = [min(places) + 1 for places in itertools.combinations(range(30), 5)]
    assert median_rank_by_chance(np.full(9, 5), 30) == np.sort(ranks)[(len(ranks) - 1) // 2]


# --- intervals ---


def test_intervals_are_those_of_draws_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    counts = random.integers(0, 5, 40)
    sums, other = random.binomial(counts, 0.4).astype(float), random.binomial(counts, 0.7).astype(float)
    ranks, of = random.integers(1, 30, 90), random.integers(40, size=90)
    bootstrap = Bootstrap(40, seed=5, resamples=300)
    generator = np.random.default_rng(5)
    ratios, differences, medians = [], [], []
    for _ in range(300):
        drawn = generator.integers(40, size=40)
        weights = np.bincount(drawn, minlength=40)
        ratios.append(sums[drawn].sum() / counts[drawn].sum())
        differences.append((sums[drawn] - other[drawn]).sum() / counts[drawn].sum())
        medians.append(floor_median(np.repeat(ranks, weights[of])))
    for found, values in (
        (bootstrap.ratio(sums, counts), ratios),
        (bootstrap.difference(sums, counts, other, counts), differences),
        (bootstrap.median(ranks, of), medians),
    ):
        assert found == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=1e-9)
    monkeypatch.setattr("roibeam.pipelines.common.statistics.verdict._NUMBERS_AT_ONCE", 1)
    assert bootstrap.ratio(sums, counts) == pytest.approx(np.quantile(ratios, [0.025, 0.975]), abs=1e-9)
    assert bootstrap.median(ranks, of) == pytest.approx(np.quantile(medians, [0.025, 0.975]), abs=1e-9)


def test_an_interval_covers_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        share = random.beta(2, 3, 60)  # images differ, so captions of one are not independent
        low, high = Bootstrap(60, resamples=400).ratio(random.binomial(5, share).astype(float), np.full(60, 5))
        covered += low <= 0.4 <= high
    assert 0.90 <= covered / 200 <= 0.99
    assert np.isnan(Bootstrap(3).ratio(np.zeros(3), np.zeros(3))).all()  # nothing is counted


def test_pairing_narrows_the_difference() -> None:
    random = np.random.default_rng(1)
    hard = random.random(200)
    left, ones = (hard < 0.5).astype(float), np.ones(200)
    right = (hard < 0.45).astype(float)
    paired = Bootstrap(200).difference(left, ones, right, ones)
    apart = Bootstrap(200).difference(left, ones, right[random.permutation(200)], ones)
    assert paired[0] >= 0 and paired[1] - paired[0] < 0.6 * (apart[1] - apart[0])
