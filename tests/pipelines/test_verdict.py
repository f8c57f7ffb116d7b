"""A number beside chance, in words; and what numbers are called."""

from __future__ import annotations

import pytest

from roibeam.pipelines.analysis.evaluation.evaluation_results import Difference, Figure
from roibeam.pipelines.analysis.evaluation.figure_verdicts import sentence_of, verdict_of, verdict_of_difference
from roibeam.pipelines.foundation.statistics.measure_names import measure_name
from roibeam.pipelines.foundation.statistics.verdict import share_interval


@pytest.mark.parametrize(
    ("name", "low", "high", "chance", "word"),
    [
        ("masked_word_accuracy", 0.2, 0.3, 0.12, "clearly above chance"),
        ("masked_word_accuracy", 0.09, 0.16, 0.12, "at chance"),
        ("masked_word_accuracy", 0.12, 0.16, 0.12, "at chance"),
        ("text_to_image_r1", 0.0, 0.01, 0.12, "below chance"),
        ("text_to_image_r1", 0.0, 0.0, 0.12, "at chance"),  # none of ten says little
        ("text_to_image_r1", 1.0, 1.0, 0.12, "clearly above chance"),
        ("text_to_image_r10", 1.0, 1.0, 1.0, "at chance"),  # among ten pictures
        ("masked_words", 2.0, 2.5, 5.5, "better than chance"),
        ("matching", 0.7, 0.8, 0.693, "worse than chance"),
        ("text_to_image_median_rank", 3, 4, 50, "better than chance"),
        ("masked_word_accuracy", None, None, 0.12, ""),
        ("masked_region_features", 0.1, 0.2, None, ""),
    ],
)
def test_the_interval_decides(
    name: str, low: float | None, high: float | None, chance: float | None, word: str
) -> None:
    assert verdict_of(Figure(name, 0.5, low, high, chance, None, 10)) == word


def test_a_figure_is_a_sentence() -> None:
    said = sentence_of(Figure("masked_word_accuracy", 0.122, 0.09, 0.16, 0.122, None, 10))
    assert said == "masked words 12.2 % right (at chance, which is 12.2 %)"
    assert sentence_of(Figure("image_to_text_r5", 0.5, None, None, None, None, 10)) == "image to text R@5 50.0 %"


@pytest.mark.parametrize(
    ("name", "low", "high", "said"),
    [
        ("matching_accuracy", 0.1, 0.2, "the first is better"),
        ("matching", 0.1, 0.2, "the second is better"),
        ("matching", -0.2, -0.1, "the first is better"),
        ("matching_accuracy", -0.1, 0.2, "no clear difference"),
    ],
)
def test_the_better_of_two_is_named(name: str, low: float, high: float, said: str) -> None:
    assert verdict_of_difference(Difference(name, 0.0, 0.0, low, high)) == said


def test_the_interval_of_a_share_is_the_published_one() -> None:
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263 and 0 of 20, score method.
    assert share_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert share_interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_unknown_numbers_keep_their_name() -> None:
    assert measure_name("own_number").title == "Own number" and measure_name("own_number").unit == ""
    assert measure_name("proposal_recall").shown(0.5) == "50.0 %"
