"""What evaluations keep beside their numbers: sums of each image, and what chance reaches; a number beside chance, in
words; and what numbers are called."""

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from objectives import OBJECTIVES
from small_pretraining import make_task

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.analysis.evaluation.evaluation_results import Difference
from roibeam.pipelines.analysis.evaluation.measures import Chance
from roibeam.pipelines.common.statistics.measure_names import measure_name
from roibeam.pipelines.common.statistics.verdict import (
    AT_CHANCE,
    NOT_KNOWN,
    Bootstrap,
    Figure,
    Judged,
    judged_line,
    mean_figure,
    remark_on,
    sentence_of,
    share_interval,
    verdict_of,
    verdict_sentence,
)
from roibeam.pipelines.pretraining.task import evaluate

pytestmark = pytest.mark.usefixtures("one_thread")

_EVERY_LOSS_HAS_A_CHANCE = sorted(OBJECTIVES)


@pytest.mark.parametrize("objective", _EVERY_LOSS_HAS_A_CHANCE)
def test_rows_one_by_one_are_the_batch_and_each_loss_stands_beside_chance(objective: str) -> None:
    """Negatives that a row draws among others too; each number has an interval over images, or over texts."""
    task = make_task(objective, batch_size=4)
    judged = evaluate(task)
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    task.model.eval()
    with torch.no_grad():
        for batch in task.evaluation_batches(256):
            output = task.losses(task.model, batch)
            for name, term in {**output.losses, **output.metrics}.items():
                sums[name] += float(term.total)
                counts[name] += int(term.count)
    assert set(judged) == set(sums)
    for figure in judged.figures:
        if not counts[figure.name]:
            assert figure.value is None and figure.low is None
            continue
        assert figure.value == pytest.approx(sums[figure.name] / counts[figure.name], rel=1e-5, abs=1e-7)
        assert figure.items == counts[figure.name]
        assert figure.chance is not None, figure
        if figure.low is None or figure.high is None:
            assert figure.items < 4, figure  # all of one image, which tells none
        else:
            assert figure.low <= figure.value <= figure.high


def test_the_interval_is_that_of_images_and_not_of_answers() -> None:
    task = make_task("visualbert-one-caption", batch_size=3)
    figure = next(each for each in evaluate(task).figures if each.name == "masked_words")
    right: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    task.model.eval()
    with torch.no_grad():
        for batch in task.evaluation_batches(256):
            for row in range(batch.batch_size):
                term = task.losses(task.model, batch.row(row)).losses["masked_words"]
                of_image = right[batch.sample_ids[row]]
                of_image[0] += float(term.total)
                of_image[1] += int(term.count)
    sums, counts = np.array(list(right.values())).T
    assert (figure.low, figure.high) == pytest.approx(Bootstrap(len(right)).ratio(sums, counts))


def labelled(rows: list[list[int]], *, text_only: list[bool] | None = None, **fields: Any) -> VLBatch:
    """A batch whose words to predict are these, row by row; its regions are those of a small task."""
    batch = next(iter(make_task("vlbert", batch_size=len(rows)).evaluation_batches(len(rows))))
    labels = torch.full(batch.text_ids.shape, IGNORE_INDEX)
    for row, words in enumerate(rows):
        labels[row, : len(words)] = torch.tensor(words)
    alone = None if text_only is None else torch.tensor(text_only)
    return replace(batch, text_labels=labels, text_only=alone, **fields)


def entropy(*counts: float) -> float:
    return -sum(count / sum(counts) * math.log(count / sum(counts)) for count in counts)


def test_words_of_text_alone_have_a_chance_of_their_own() -> None:
    chance = Chance(make_task("vlbert-texts", batch_size=1).model.config)
    chance.see(labelled([[3, 3, 4], [7, 8, 8, 8]], text_only=[False, True]))
    levels = chance.levels()
    assert levels["masked_word_accuracy"] == pytest.approx(2 / 3) and levels["masked_words"] == entropy(2, 1)
    assert levels["text_only_word_accuracy"] == 3 / 4 and levels["text_only_words"] == pytest.approx(entropy(1, 3))


def test_in_a_mean_of_rows_a_word_counts_as_much_as_its_row_lets_it() -> None:
    model = make_task("vlbert-rows", batch_size=1).model
    chance = Chance(model.config)
    chance.see(labelled([[3], [4, 4, 4]]))
    assert chance.levels()["masked_words"] == pytest.approx(math.log(2))  # in a mean of words 1 against 3
    assert chance.levels()["masked_word_accuracy"] == 3 / 4


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        ("imagebert", "masked_region_features"),
        ("imagebert-all-pairs", "masked_region_features"),  # summed over the width
        ("vilbert-regression", "masked_regions"),
        ("interbert-regression", "masked_regions"),
    ],
)
def test_a_model_that_always_says_the_mean_feature_is_at_chance(objective: str, name: str) -> None:
    """For a loss of features; whatever else it says is worse."""
    task = make_task(objective, batch_size=4)
    model = task.model
    head: Any = getattr(model, "region_feature_head", None) or model.masked_region_head
    parameters = list(head.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.zero_()
    told = {each.name: each for each in evaluate(task).figures}[name]
    features = _predicted_features(task, name)
    bias = next(each for each in reversed(parameters) if each.shape == features.mean(dim=0).shape)
    with torch.no_grad():
        bias.copy_(features.mean(dim=0))
    best = {each.name: each for each in evaluate(task).figures}[name]
    assert best.value == pytest.approx(best.chance, rel=1e-4) and told.chance == pytest.approx(best.chance)
    assert told.value is not None and best.value is not None and told.value > 1.01 * best.value


def _predicted_features(task: Any, name: str) -> torch.Tensor:
    from roibeam.pipelines.pretraining.task import _predicted

    found = []
    for batch in task.evaluation_batches(256):
        rows = _predicted(task.model.config, batch)
        targets = rows.region_features[rows.region_target_mask]
        found.append(targets if name == "masked_region_features" else rows.targets_of(rows.region_target_mask))
    return torch.cat(found).float()


def test_one_of_several_candidates_is_drawn() -> None:
    judged = evaluate(make_task("vilbert-contrastive", batch_size=4))
    (loss,) = (each for each in judged.figures if each.name == "masked_regions")
    assert loss.chance == pytest.approx(math.log(7))  # the right one among six others


# --- in words ---


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
def test_the_interval_decides(name: str, low: Any, high: Any, chance: float | None, word: str) -> None:
    assert verdict_of(Figure(name, 0.5, low, high, chance, None, 10)) == word


@pytest.mark.parametrize(
    ("accuracy", "loss", "remark"),
    [((0.1, 0.3), (1.9, 2.1), AT_CHANCE), ((0.1, 0.2), (2.1, 2.3), AT_CHANCE), ((0.3, 0.4), (2.1, 2.3), ""),
     ((0.1, 0.3), (1.0, 1.9), ""), ((None, None), (None, None), NOT_KNOWN)],
)  # fmt: skip
def test_where_no_figure_is_better_than_chance_a_sentence_says_what_helps(
    accuracy: Any, loss: Any, remark: str
) -> None:
    right = Figure("masked_word_accuracy", 0.2, *accuracy, 0.25, None, 9)
    wrong = Figure("masked_words", 2.0, *loss, 2.0, None, 9)
    assert remark_on([right, wrong]) == remark
    useless = Figure("masked_region_accuracy", 1.0, 0.9, 1.0, 1.0, None, 9)  # of a detector that knows one class
    assert remark_on([right, wrong, useless]).startswith("masked regions: all right answers are one and the same")


def test_the_verdict_on_all_measures_is_a_sentence() -> None:
    """A reader of the page of an evaluation reads it first."""
    poor = Figure("masked_word_accuracy", 0.1, 0.09, 0.16, 0.122, None, 10)
    good = Figure("matching_accuracy", 0.9, 0.8, 0.95, 0.5, None, 10)
    assert verdict_sentence([replace(poor, low=None)]) == ""
    assert verdict_sentence([poor]) == AT_CHANCE
    said = verdict_sentence([poor, good, replace(good, name="image_to_text_r1")])
    assert said.endswith("better than chance in 2 of 3 measures: matching right and image to text R@1.")
    words = replace(poor, value=0.188, low=0.15, high=0.22, words_alone=0.236)
    assert "Words alone, without the photo, may reach as much" in verdict_sentence([words])
    assert "Words alone" not in verdict_sentence([replace(words, words_alone=0.13)])


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
def test_images_are_what_is_drawn(name: str, right: list[float], counts: list[int], chance: float, word: str) -> None:
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


def test_the_better_of_two_is_named() -> None:
    for name, low, high, said in (
        ("matching_accuracy", 0.1, 0.2, "the first is better"),
        ("matching", 0.1, 0.2, "the second is better"),
        ("matching", -0.2, -0.1, "the first is better"),
        ("matching_accuracy", -0.1, 0.2, "no clear difference"),
    ):
        assert Difference(name, 0.0, 0.0, low, high).verdict == said


def test_the_interval_of_a_share_is_the_published_one_and_a_number_has_its_name() -> None:
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263 and 0 of 20, score method.
    assert share_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert share_interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    # Unknown numbers keep their name.
    assert measure_name("own_number").title == "Own number" and measure_name("own_number").unit == ""
    assert measure_name("proposal_recall").formatted(0.5) == "50.0 %"
