"""What the evaluations of a run keep beside their numbers: sums of each image, and what chance reaches."""

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
from roibeam.pipelines.analysis.evaluation.measures import Chance
from roibeam.pipelines.common.statistics.verdict import Bootstrap
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
