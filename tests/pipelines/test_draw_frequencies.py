"""How often chance takes what, where every sample has a generator of its own as in training."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from objectives import NUM_CLASSES, WORDS, record, small_model, tokenizer
from paired_examples import assert_share
from soak_share import many

from model.inputs import IGNORE_INDEX
from pipelines.pretraining.end_to_end_task import PhotoRules
from pipelines.pretraining.task_corpus import TaskCorpus, TaskTable
from pipelines.pretraining.visualbert_samples import VisualBertSampler, VisualBertSampling
from pipelines.task_texts import TaskText

DRAWS = pytest.mark.parametrize("draws", [20_000, many(1_000_000)])
ROWS = 1_000  # of an epoch


def generators(draws: int):
    """Those of the rows of one epoch after the other."""
    for number in range(draws):
        yield np.random.default_rng([6, 0, *divmod(number, ROWS)])


@DRAWS
def test_half_of_the_photos_are_mirrored_and_short_edges_come_alike(draws: int) -> None:
    edges = (480, 512, 544, 576, 600)
    drawn = [PhotoRules(short_edges=edges).draw(random, 600) for random in generators(draws)]
    found = Counter(drawn)
    assert found.keys() == set(itertools.product(edges, (False, True)))
    for hits in found.values():  # so neither says anything of the other
        assert_share(hits, draws, 1 / 10)
    assert_share(sum(flip for _, flip in drawn), draws, 1 / 2)
    for edge in edges:
        assert_share(sum(each == edge for each, _ in drawn), draws, 1 / 5)
    # Nor does a row of the next one, or an epoch of the next one.
    for apart in (1, ROWS):
        pairs = Counter(zip(drawn[: draws // 2], drawn[apart:], strict=False))
        for first, second in itertools.product(((480, True), (600, False)), repeat=2):
            assert_share(pairs[first, second], draws // 2, 1 / 100)


def test_rules_without_a_choice_draw_none() -> None:
    drawn = {PhotoRules(flip=False).draw(random, 600) for random in generators(200)}
    assert drawn == {(600, False)}


@DRAWS
def test_each_of_a_question_s_ten_answers_comes_alike(draws: int) -> None:
    words = tokenizer()
    answers = WORDS[-10:]
    text = TaskText("\n".join([" ".join(WORDS[:3]), *answers]), ("image-0",), None)
    corpus = TaskCorpus({"image-0": record(0)}, TaskTable(["image-0"], [((0,), text)], as_pair=False))
    config = small_model("visualbert", dropout=0.0).config
    sampler = VisualBertSampler(
        VisualBertSampling(text_form="task_text", with_regions=False), words, config, num_classes=NUM_CLASSES
    )
    found: Counter[int] = Counter()
    for random in generators(draws):
        sample = sampler.sample(corpus, 0, random)
        piece, label = int(sample.text_ids[-2]), int(sample.text_labels[-2])
        found[piece if label == IGNORE_INDEX else label] += 1
    assert found.keys() == {int(words.encode(answer).ids[1]) for answer in answers}
    for hits in found.values():
        assert_share(hits, draws, 1 / 10)
