"""How often chance takes what, where every sample has a generator of its own as in training."""

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from binomial import assert_share
from labelled_examples import labelled
from labelled_world import COMPUTES, DETECTOR
from objectives import NUM_CLASSES, WORDS, record, small_model, tokenizer
from small_pretraining import make_task
from soak_share import many

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.pretraining import draw_negatives
from roibeam.pipelines.data.captions.task_texts import TaskCorpus, TaskCorpusText, TaskTable
from roibeam.pipelines.data.labelled_photos import LabelledPhotos
from roibeam.pipelines.pretraining.requested_settings import PhotoRules
from roibeam.pipelines.pretraining.samples.sampling import VisualBertSampling
from roibeam.pipelines.pretraining.samples.visualbert import VisualBertSampler
from roibeam.pipelines.pretraining.task import RowsTask
from roibeam.pipelines.training.detector.task import LabelledBatches

DRAWS = pytest.mark.parametrize("draws", [20_000, many(1_000_000)])
ROWS = 1_000  # of an epoch


def generators(draws: int):
    """Those of the rows of one epoch after the other."""
    for number in range(draws):
        yield np.random.default_rng([6, 0, *divmod(number, ROWS)])


def assert_alike(drawn: list[tuple[int, bool]], edges: tuple[int, ...]) -> None:
    """Five edges and both ways come alike, and neither says anything of the other."""
    draws = len(drawn)
    found = Counter(drawn)
    assert found.keys() == set(itertools.product(edges, (False, True)))
    for hits in found.values():
        assert_share(hits, draws, 1 / 10)
    assert_share(sum(flip for _, flip in drawn), draws, 1 / 2)
    for edge in edges:
        assert_share(sum(each == edge for each, _ in drawn), draws, 1 / 5)
    # Nor does a row of the next one, or an epoch of the next one.
    for apart in (1, ROWS):
        pairs = Counter(zip(drawn[: draws // 2], drawn[apart:], strict=False))
        for first, second in itertools.product(((edges[0], True), (edges[-1], False)), repeat=2):
            assert_share(pairs[first, second], draws // 2, 1 / 100)


@DRAWS
def test_half_of_the_photos_are_mirrored_and_short_edges_come_alike(draws: int) -> None:
    edges = (480, 512, 544, 576, 600)
    assert_alike([PhotoRules(short_edges=edges).draw(random, 600) for random in generators(draws)], edges)


def test_rules_without_a_choice_draw_none() -> None:
    assert {PhotoRules(flip=False).draw(random, 600) for random in generators(200)} == {(600, False)}


def drawn_of_labelled(draws: int, **rules: Any) -> tuple[list[tuple[int, bool]], list[int]]:
    """Short edge, mirrored or not, and the seed of the sampled regions of a detector's photos, epoch by epoch."""
    images = tuple(labelled([[0, 0, 9, 9]], [0], file_name=f"{n}.png", image_hw=(50, 60)) for n in range(ROWS))
    photos = LabelledPhotos(images, "", ("ball",), (), {})
    batches, drawn = LabelledBatches(photos, DETECTOR, COMPUTES, seed=3, **rules), list[tuple[int, int, bool]]()
    pool: Any = SimpleNamespace(submit=lambda prepare, *shown: drawn.append(shown))  # in the place of threads
    seeds = [batches.coming(pool, *divmod(number, ROWS)).seed for number in range(draws)]
    assert [place for place, *_ in drawn] == [number % ROWS for number in range(draws)]
    return [(edge, flip) for _, edge, flip in drawn], seeds


@DRAWS
def test_half_of_the_labelled_photos_are_mirrored_and_short_edges_come_alike(draws: int) -> None:
    edges = (32, 40, 48, 56, 60)
    drawn, seeds = drawn_of_labelled(draws, flip=True, short_edges=edges)
    assert_alike(drawn, edges)
    # What is sampled of a photo is each time another draw, and says nothing of how it is shown.
    assert len(set(seeds)) == draws
    for bit in (0, 61):
        assert_share(sum(seed >> bit & 1 for seed in seeds), draws, 1 / 2)
        assert_share(sum(flip and seed >> bit & 1 for (_, flip), seed in zip(drawn, seeds, strict=True)), draws, 1 / 4)


def test_without_mirroring_labelled_photos_keep_their_draws_but_none_is_mirrored() -> None:
    edges = (32, 48)
    (mirrored, seeds), (plain, same) = (drawn_of_labelled(400, flip=flip, short_edges=edges) for flip in (True, False))
    assert [edge for edge, _ in plain] == [edge for edge, _ in mirrored] and seeds == same
    assert not any(flip for _, flip in plain)
    assert {edge for edge, _ in drawn_of_labelled(50, flip=True, short_edges=())[0]} == {DETECTOR.short_edge}


@pytest.mark.parametrize("rows", [4_000, many(100_000)])
def test_negatives_of_a_run_s_rows_come_alike(rows: int) -> None:
    """With the seeds that samples bring along, of which the loss of a row draws ten: a million of 100,000 rows.

    Three rows of a group have 3, 4 and 2 regions; in each the second is predicted.
    """
    task = make_task("vilbert-contrastive", batch_size=50)
    seeds: list[int] = []
    for batch in RowsTask.batches(task, 0, rank=0, num_ranks=1):  # without notes of what it sees
        seeds += batch.draw_seeds
        if len(seeds) >= rows:
            break
    assert len(set(seeds)) == len(seeds)
    real, predicted = torch.zeros(3, 5, dtype=torch.bool), torch.zeros(3, 5, dtype=torch.bool)
    for row, count in enumerate((3, 4, 2)):
        real[row, :count], predicted[row, 1] = True, True
    groups = rows // 3
    options = {"from_other_images": 0.6, "group_rows": 3}
    drawn = [draw_negatives(real, predicted, 10, seeds[3 * n : 3 * n + 3], **options) for n in range(groups)]
    found = torch.stack(drawn)
    for row, negatives in enumerate(found.transpose(0, 1)):
        own = negatives // 5 == row
        assert (own.sum(dim=1) == 4).all()
        places = real.flatten().nonzero()[:, 0].tolist()
        for kind, trials in ((True, 4 * groups), (False, 6 * groups)):
            among = [place for place in places if (place // 5 == row) == kind and place != 5 * row + 1]
            counts = Counter(negatives[own == kind].tolist())
            assert counts.keys() == set(among)
            for hits in counts.values():
                assert_share(hits, trials, 1 / len(among))


@pytest.mark.parametrize("draws", [5_000, many(1_000_000)])
def test_each_of_a_question_s_ten_answers_comes_alike(draws: int) -> None:
    words = tokenizer()
    answers = WORDS[-10:]
    text = TaskCorpusText("\n".join([" ".join(WORDS[:3]), *answers]), ("image-0",), None)
    corpus = TaskCorpus({"image-0": record(0)}, TaskTable(["image-0"], [((0,), text)], as_pair=False))
    config = small_model("visualbert", dropout=0.0).config
    sampling = VisualBertSampling(text_form="task_text", with_regions=False)
    sampler = VisualBertSampler(sampling, words, config, num_classes=NUM_CLASSES)
    found: Counter[int] = Counter()
    for random in generators(draws):
        sample = sampler.sample(corpus, 0, random)
        piece, label = int(sample.text_ids[-2]), int(sample.text_labels[-2])
        found[piece if label == IGNORE_INDEX else label] += 1
    assert found.keys() == {int(words.encode(answer).ids[1]) for answer in answers}
    for hits in found.values():
        assert_share(hits, draws, 1 / 10)
