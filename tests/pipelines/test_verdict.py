"""A number beside chance, in words; and what numbers are called."""

import numpy as np
import pytest

from roibeam.pipelines.analysis.evaluation.evaluation_results import Difference
from roibeam.pipelines.common.statistics.measure_names import measure_name
from roibeam.pipelines.common.statistics.verdict import (
    Bootstrap,
    Figure,
    Judged,
    judged_line,
    mean_figure,
    sentence_of,
    share_interval,
    verdict_of,
)


@pytest.mark.parametrize(
    ("name", "low", "high", "chance", "word"),
    [
        ("masked_word_accuracy", 0.2, 0.3, 0.12, "clearly above chance"),
        ("masked_word_accuracy", 0.09, 0.16, 0.12, "at chance"),
        ("masked_word_accuracy", 0.12, 0.16, 0.12, "at chance"),
        ("text_to_image_r1", 0.0, 0.01, 0.12, "below chance"),
        ("text_to_image_r10", 0.7, 1.0, 1.0, "at chance"),  # among ten pictures
        ("overall", 0.6, 0.7, 0.5, "clearly above chance"),  # of a task, whose names were taken for losses
        ("Q->AR", 0.01, 0.05, 0.0625, "below chance"),
        ("Matthews", -0.1, 0.1, 0.0, "at chance"),
        ("own_number", 0.6, 0.7, 0.5, "clearly above chance"),
        ("masked_words", 2.0, 2.5, 5.5, "better than chance"),
        ("matching", 0.6931471824, 0.6931471824, 0.6931471805, "at chance"),  # ln 2 in float32
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
    assert sentence_of(Figure("Q->AR", 0.5, 0.4, 0.6, 0.0625, None, 9)).startswith("Q->AR 50.0 % (clearly above")
    assert sentence_of(Figure("overall", 0.5, None, None, 0.4, None, 9)) == "overall 50.0 % (chance: 40.0 %)"


@pytest.mark.parametrize(
    ("name", "right", "counts", "chance", "word"),
    [
        # 281 words of 5 images, nearly all right in two of them: by words this is clearly above.
        ("masked_word_accuracy", [50, 45, 1, 0, 2], [57, 56, 56, 56, 56], 0.1, "at chance"),
        ("masked_word_accuracy", [300], [400], 0.1, "clearly above chance"),
        ("masked_word_accuracy", [300], [400], 0.3, "at chance"),  # one image is one answer
        ("text_to_image_r1", [0] * 10, [1] * 10, 0.12, "at chance"),  # none of ten says little
        ("text_to_image_r1", [0] * 10, [50] * 10, 0.12, "at chance"),  # nor fifty captions of each
        ("text_to_image_r1", [1] * 10, [1] * 10, 0.12, "clearly above chance"),
        ("masked_words", [300.0], [100], 5.5, ""),  # one image tells no interval of a loss
        ("masked_words", [300.0, 200.0], [100, 100], 5.5, "better than chance"),
    ],
)
def test_images_are_drawn_and_not_answers(
    name: str, right: list[float], counts: list[int], chance: float, word: str
) -> None:
    sums = np.array(right, np.float64)
    figure = mean_figure(name, sums, np.array(counts), Bootstrap(len(right)), chance=chance)
    assert verdict_of(figure) == word and figure.items == sum(counts)
    assert figure.value == pytest.approx(sums.sum() / sum(counts))


def test_an_evaluation_s_line_keeps_what_it_stands_beside() -> None:
    """Whole numbers of 0 and what is not known too; lines of earlier versions, and tasks of one's own, have nothing."""
    figures = [
        Figure("Matthews", 0.0, -0.1, 0.0, 0.0, None, 40),
        Figure("own", 0.5, None, None, None, None, 0),
        Figure("masked_words", float("nan"), float("nan"), float("nan"), 2.0, None, 3),
    ]
    judged = Judged(figures)
    assert list(judged) == ["Matthews", "own", "masked_words"] and Judged.of(judged) is judged
    line = {"step": 3, **judged, "beside": judged.beside()}
    assert judged_line(line, ["Matthews", "own"]).figures == tuple(figures[:2])
    assert line["beside"]["masked_words"] == {"chance": 2.0, "items": 3}
    assert judged_line({"step": 3, "own": 0.5}, ["own"]).figures == Judged.of({"own": 0.5}).figures


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
    assert Difference(name, 0.0, 0.0, low, high).verdict == said


def test_the_interval_of_a_share_is_the_published_one() -> None:
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263 and 0 of 20, score method.
    assert share_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert share_interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_unknown_numbers_keep_their_name() -> None:
    assert measure_name("own_number").title == "Own number" and measure_name("own_number").unit == ""
    assert measure_name("proposal_recall").formatted(0.5) == "50.0 %"
