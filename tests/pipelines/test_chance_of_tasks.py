"""What guessing reaches in each metric of a task, against guesses that are made; and intervals of what is no mean."""

import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from roibeam.pipelines.common.statistics.retrieval_ranks import CaptionedImages, retrieval_ranks
from roibeam.pipelines.common.statistics.verdict import verdict_of
from roibeam.pipelines.finetuning.metrics.glue import label_measures, number_measures
from roibeam.pipelines.finetuning.metrics.grounding import GroundedPhrase, grounding_measures
from roibeam.pipelines.finetuning.metrics.measure import Measure, Whole, figures_of
from roibeam.pipelines.finetuning.metrics.nlvr2 import JudgedStatement, nlvr2_measures
from roibeam.pipelines.finetuning.metrics.own_labels import own_label_measures
from roibeam.pipelines.finetuning.metrics.retrieval import recall_measures
from roibeam.pipelines.finetuning.metrics.vcr import ChosenRow, vcr_measures
from roibeam.pipelines.finetuning.metrics.vqa import AnsweredQuestion, HumanAnswer, few_measures, vqa_measures
from roibeam.pipelines.finetuning.tasks.referring import ReferringOptions, referring_scores
from roibeam.pipelines.finetuning.tasks.retrieval import judge_choice

DRAW = np.random.default_rng(4)


def chances(measures: dict[str, Measure]) -> dict[str, float | None]:
    return {figure.name: figure.chance for figure in figures_of(measures)}


# The commonest answer


def people(*answers: str) -> list[HumanAnswer]:
    return [HumanAnswer(answer, "yes", number) for number, answer in enumerate(answers)]


ASKED = [
    (people(*["yes"] * 9, "no"), "yes/no"),
    (people(*["no"] * 10), "yes/no"),
    (people(*["no"] * 6, *["yes"] * 4), "yes/no"),
    (people(*["2"] * 7, *["two"] * 3), "number"),
    (people(*["3"] * 2, *["4"] * 8), "number"),
    (people(*["red"] * 2, "dark red", *["maroon"] * 7), "other"),
]


def vqa(predicted: str) -> dict[str, Measure]:
    return vqa_measures(
        AnsweredQuestion(predicted, told, "what", kind, f"image {place % 4}")
        for place, (told, kind) in enumerate(ASKED)
    )


def test_of_vqa_it_is_the_best_that_always_one_answer_reaches_also_of_each_type() -> None:
    answers = {each.answer for told, _ in ASKED for each in told}
    for name, chance in chances(vqa("cat")).items():
        assert chance == pytest.approx(max(vqa(answer)[name].mean for answer in answers)), name
    table = [("x", ["a", "b"], "1"), ("x", ["b"], "2"), ("x", ["b", "c", "c"], "2")]
    assert chances(few_measures(table)) == {"overall": pytest.approx((0.5 + 1 + 1 / 3) / 3)}


def test_of_labels_it_is_the_commonest_and_a_share_of_all_for_their_mean() -> None:
    right = ["b"] * 5 + ["a"] * 3 + ["c"] * 2
    found = chances(own_label_measures(["a"] * 10, right, [str(row) for row in range(10)]))
    by_label = {label: own_label_measures([label] * 10, right, ["x"] * 10) for label in "abc"}
    for name in ("accuracy", "balanced accuracy"):
        assert found[name] == pytest.approx(max(each[name].mean for each in by_label.values()))
    assert found["label b"] is None


@pytest.mark.parametrize("task", ["CoLA", "MRPC", "SST-2", "QQP"])
@pytest.mark.parametrize("ones", [7, 3])
def test_of_glue_it_is_the_best_of_both_labels(task: str, ones: int) -> None:
    right = [1] * ones + [0] * (10 - ones)
    found = chances(label_measures(task, [1, 0] * 5, right))
    always = [label_measures(task, [label] * 10, right) for label in (0, 1)]
    for name, chance in found.items():
        assert chance == pytest.approx(max(each[name].mean for each in always)), name


def test_of_similarities_it_is_no_correlation_and_the_number_that_most_are_near_to() -> None:
    right = [0.0, 0.4, 1.0, 3.0, 3.2, 3.9, 4.4]
    found = chances(number_measures([1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0], right))
    assert found["Pearson"] == found["Spearman"] == found["Pearson and Spearman"] == 0.0
    tried = (number_measures([number] * 7, right)["within 0.5"].mean for number in np.arange(0, 5, 0.05))
    assert found["within 0.5"] == pytest.approx(max(tried)) == pytest.approx(3 / 7)


def test_of_nlvr2_it_is_the_commonest_label_and_groups_of_one_label() -> None:
    labels = {"d-1-0-0": True, "d-1-1-0": False, "d-1-0-1": True, "d-2-0-0": True, "d-3-0-0": False, "d-3-1-0": False}

    def judged(label: bool) -> dict[str, Measure]:
        return nlvr2_measures(JudgedStatement(name, label == true, true) for name, true in labels.items())

    for name, chance in chances(judged(True)).items():
        assert chance == pytest.approx(max(judged(label)[name].mean for label in (True, False))), name
    # Of groups with both labels no label is always right, and a coin is right in all four of one group in sixteen.
    mixed = nlvr2_measures(JudgedStatement(f"d-1-{row}-0", True, row % 2 == 0) for row in range(4))
    assert chances(mixed) == {"accuracy": 0.5, "consistency": 1 / 16}
    assert chances(nlvr2_measures([JudgedStatement("d-1-0-0", True)])) == {"accuracy": None, "consistency": None}


# A choice by lot


def test_of_vcr_it_is_one_of_four_and_one_of_sixteen() -> None:
    pairs = enumerate(itertools.product(range(4), repeat=2))
    measures = vcr_measures([ChosenRow(*pair, 2, 1, f"image {number}") for number, pair in pairs])
    assert chances(measures) == {name: measure.mean for name, measure in measures.items()}


def test_of_phrases_it_is_regions_in_random_order() -> None:
    shown = [(True, *[False] * 5), (True, True, *[False] * 4), (False, False, False), ()]
    expected = [np.mean([any(order[:5]) for order in itertools.permutations(each)]) for each in shown]
    phrases = [GroundedPhrase("image", ("people",), np.array(each, bool)) for each in shown]
    found = chances(grounding_measures(phrases))
    assert found["R@5"] == found["R@5 people"] == pytest.approx(float(np.mean(expected)))
    assert found["R@1"] == pytest.approx((1 / 6 + 2 / 6) / 4) and found["upper bound"] is None


def test_of_expressions_it_is_a_candidate_and_none_without_candidates() -> None:
    own = (0.0, 0.0, 10.0, 10.0)
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60], [70, 0, 90, 20]], np.float32)
    shown = [boxes, boxes[2:], boxes[:0], boxes[:1]]
    target, facts = np.array(own), [{"right": own, "sent_id": number, "ref_id": number} for number in range(4)]
    groups = [SimpleNamespace(images=(f"image {each['ref_id']}",), target=target, facts=each) for each in facts]
    said = [SimpleNamespace(scores=np.arange(len(each)), boxes=each) for each in shown]
    measures: Any = referring_scores(groups, said, ReferringOptions(boxes="annotated"))  # type: ignore[arg-type]
    right, same = pytest.approx((2 / 4 + 0 + 0 + 1) / 4), pytest.approx((1 / 4 + 0 + 0 + 1) / 4)
    assert chances(measures) == {"accuracy": right, "upper bound": None, "same object": same}


def test_of_retrieval_it_is_candidates_in_random_order() -> None:
    """Drawn a thousand times: of a fold of three images with five captions, and of one of two with two."""
    folds = [
        CaptionedImages(np.arange(5), np.array([0, 0, 0, 1, 2]), 5, 3),
        CaptionedImages(np.arange(2), np.array([0, 1]), 2, 2),
    ]

    def measured(draw: Callable[[tuple[int, int]], np.ndarray]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for fold in folds:
            ranks = retrieval_ranks(draw((fold.num_texts, fold.num_images)), fold)
            images = [str(image) for image in range(fold.num_images)]
            of_caption = [str(image) for image in fold.image_of_caption]
            both = {"image": (ranks.text_to_image, of_caption), "sentence": (ranks.image_to_text, images)}
            for name, measure in recall_measures(both, [fold]).items():
                found.setdefault(name, []).append(measure.mean)
        return found

    drawn: dict[str, list[float]] = {}
    for _ in range(1000):
        for name, of_folds in measured(lambda shape: DRAW.random(shape)).items():
            drawn.setdefault(name, []).append(float(np.mean(of_folds)))
    ranks = {"image": (np.ones(7, np.int64), ["x"] * 7), "sentence": (np.ones(5, np.int64), ["x"] * 5)}
    for name, chance in chances(recall_measures(ranks, folds)).items():
        assert chance == pytest.approx(np.mean(drawn[name]), abs=0.05), name


def test_of_a_group_of_pairs_it_is_one_of_them() -> None:
    groups = [SimpleNamespace(images=("a",), rows=[None] * 4), SimpleNamespace(images=("b",), rows=[None] * 4)]
    said = [SimpleNamespace(scores=np.array([0.0, 1, 2, 3])) for _ in groups]
    assert chances(dict(judge_choice(groups, said))) == {"R@1 of 4": 0.25}  # type: ignore[arg-type]


# What is no mean


def repeated(values: Sequence[Any], times: np.ndarray) -> list[Any]:
    return [value for value, count in zip(values, times, strict=True) for _ in range(count)]


@pytest.mark.parametrize("task", ["CoLA", "MRPC", "STS-B", "own"])
def test_drawn_rows_have_the_figure_of_these_rows(task: str) -> None:
    said: list[Any] = DRAW.integers(0, 2, 12).tolist()
    right: list[Any] = DRAW.integers(0, 2, 12).tolist()
    if task == "STS-B":
        said, right = (DRAW.integers(0, 6, 12) / 2).tolist(), DRAW.integers(0, 5, 12).astype(float).tolist()

    def measured(said: list[Any], right: list[Any]) -> dict[str, Measure]:
        if task == "own":
            return own_label_measures(list(map(str, said)), list(map(str, right)), ["x"] * len(said))
        return number_measures(said, right) if task == "STS-B" else label_measures(task, said, right)

    weights = np.stack([np.bincount(DRAW.integers(0, 12, 12), minlength=12) for _ in range(40)])
    for name, measure in measured(said, right).items():
        if not isinstance(measure, Whole):
            continue
        assert measure.drawn is not None, name
        for row, value in zip(weights, measure.drawn(weights), strict=True):
            of_rows = measured(repeated(said, row), repeated(right, row))
            if name in of_rows:  # draws of one label alone have no mean over labels
                expected = of_rows[name].mean
                assert (math.isnan(value) and math.isnan(expected)) or value == pytest.approx(expected), name


def test_a_model_that_says_one_label_is_at_chance_and_one_that_knows_is_above() -> None:
    right = [int(each) for each in DRAW.random(80) < 0.7]
    for task in ("CoLA", "MRPC", "SST-2"):
        for figure in figures_of(label_measures(task, [1] * 80, right)):
            assert verdict_of(figure) == "at chance", figure
        wrong = {3, 40, 60}
        known = [1 - each if row in wrong else each for row, each in enumerate(right)]
        for figure in figures_of(label_measures(task, known, right)):
            assert verdict_of(figure) == "clearly above chance", figure


def test_chance_is_asked_for_once_and_a_measure_without_guess_has_none() -> None:
    guess = Mock(return_value=0.5)
    measures = {"a": Measure("a", [1.0, 0.0], ["x", "y"], guess=guess), "b": Measure("b", [1.0, 1.0], ["x", "y"])}
    kept: dict[str, float | None] = {}
    first, second = figures_of(measures, kept), figures_of(measures, kept)
    assert first == second and guess.call_count == 1 and kept == {"a": 0.5, "b": None}
    assert [verdict_of(figure) for figure in first] == ["at chance", ""]
