"""InterBERT's samples, each rule on small records."""

import numpy as np
import pytest
import torch
from binomial import assert_share
from paired_examples import (
    NUM_CLASSES,
    WIDTH,
    apart,
    assert_replaced,
    caption_of_halves,
    captions_tokenizer,
    make_corpus,
    make_record,
    make_sampler,
    make_store,
    make_task,
    one,
    pieces_tokenizer,
    samples,
)
from soak_share import many

from roibeam.model.common.masking import overlaps_with_inclusive_sides
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.pretraining.samples.sampling import MASKINGS

DRAWS = [20_000, many(1_000_000)]


@pytest.fixture(scope="module")
def tokenizer():
    return captions_tokenizer()


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(make_store())


# --- text ---


@pytest.mark.parametrize("draws", DRAWS)
def test_segments_of_whole_words_as_often_as_the_paper_says(draws, tmp_path):
    tokenizer, words = pieces_tokenizer(tmp_path), 255
    corpus = make_corpus(make_store(2), captions=[caption_of_halves(words)])
    sampler = make_sampler("interbert", tokenizer, max_pieces=512)
    rows = [sample for _, sample in samples(sampler, corpus, 3 * draws // words + 1)]
    labelled = np.stack([sample.text_labels for sample in rows])[:, 1:-1].reshape(len(rows), words, 2) != IGNORE_INDEX
    assert (labelled[..., 0] == labelled[..., 1]).all()
    chosen = labelled[..., 0]
    # An anchor itself, or the word before is one that takes 1 or 2 along, or the one before that takes 2. Words three
    # apart depend on different anchors.
    share = 1 - (1 - 0.1) * (1 - 0.1 * 2 / 3) * (1 - 0.1 / 3)
    assert_share(chosen[:, 2::3].sum(), chosen[:, 2::3].size, share)
    assert_share(chosen[:, 0].sum(), len(rows), 0.1)
    starts = ~chosen[:, :-3] & chosen[:, 1:-2]  # a segment starts here with an anchor
    second, third = chosen[:, 2:-1][starts], chosen[:, 3:][starts]
    assert_share(second.sum(), len(second), 1 - (1 - 2 / 3) * 0.9)
    assert_share((second & third).sum(), len(second), share_of_three())
    # Pieces of a word share a draw: its first one speaks for it.
    ids = np.stack([sample.text_ids for sample in rows])[:, 1:-1:2]
    assert_replaced(ids, tokenizer.encode(caption_of_halves(words)).ids[1:-1:2], chosen, tokenizer)


def share_of_three():
    """Three words in a row, the first an anchor behind an unmasked word: by all ways of drawing the three."""
    total = 0.0
    lengths = (0, 1, 2)
    for own in lengths:
        for second in (None, *lengths):
            for third in (False, True):
                chance = 1 / 3 * (0.9 if second is None else 0.1 / 3) * (0.1 if third else 0.9)
                two = own >= 1 or second is not None
                three = own >= 2 or (second is not None and second >= 1) or third
                total += chance * (two and three)
    return total


@pytest.mark.parametrize("draws", [3_000, many(150_000)])
def test_the_released_span(draws, tmp_path):
    """One run of pieces: start of 0..n, length of 1..n; piece j is in it with the sum over s <= j of (n - j + s)/n.

    Each draw has n = 8 pieces, so the slow one sees more than a million.
    """
    tokenizer, count = pieces_tokenizer(tmp_path), 8
    corpus = make_corpus(make_store(2), captions=[caption_of_halves(4)])
    sampler = make_sampler("interbert", tokenizer, masking="groups_as_released")
    rows = [sample for _, sample in samples(sampler, corpus, draws)]
    found = np.stack([sample.text_labels for sample in rows])[:, 1:-1] != IGNORE_INDEX
    assert ((np.diff(found.astype(int), axis=1, prepend=0) == 1).sum(axis=1) <= 1).all()
    for j in range(count):
        probability = sum((count - (j - start)) / count for start in range(j + 1)) / (count + 1)
        assert_share(found[:, j].sum(), draws, probability)
    ids = np.stack([sample.text_ids for sample in rows])[:, 1:-1]
    assert_replaced(ids, tokenizer.encode(caption_of_halves(4)).ids[1:-1], found, tokenizer)


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("pieces, kept", [(34, 36), (200, 36), (0, 2)])
def test_text_is_cut_at_its_end_before_it_is_masked(masking, pieces, kept, tmp_path):
    tokenizer = pieces_tokenizer(tmp_path)
    words = " ".join("abcdefghij"[n % 10] for n in range(pieces))
    corpus = make_corpus(make_store(2), captions=[words])
    whole = tokenizer.encode(words).ids
    seen = np.zeros(kept, bool)
    for _, sample in samples(make_sampler("interbert", tokenizer, masking=masking), corpus, 300):
        assert len(sample.text_ids) == kept and sample.text_ids[-1] == tokenizer.sep_id
        labelled = sample.text_labels != IGNORE_INDEX
        np.testing.assert_array_equal(sample.text_labels[labelled], whole[:kept][labelled])
        np.testing.assert_array_equal(sample.text_ids[:-1][~labelled[:-1]], whole[: kept - 1][~labelled[:-1]])
        seen |= labelled
    assert seen.tolist() == [False, *[True] * (kept - 2), False]


# --- regions ---


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("masking", ["groups", "groups_as_released"])
def test_one_region_in_ten_is_an_anchor(masking, draws, tokenizer):
    count = 100
    store = {name: make_record(name, n, num_regions=count, boxes=apart(count)) for n, name in enumerate("ab")}
    sampler = make_sampler("interbert", tokenizer, masking=masking, max_regions=count)
    rows = [sample for _, sample in samples(sampler, make_corpus(store), draws // count + 1)]
    masked = np.concatenate([sample.masked for sample in rows])
    assert_share(masked.sum(), len(masked), 0.1)
    np.testing.assert_array_equal(masked, np.concatenate([sample.predicted for sample in rows]))


@pytest.mark.parametrize("masking", ["groups", "groups_as_released"])
def test_what_overlaps_an_anchor_is_hidden_and_predicted_with_it(masking, tokenizer, corpus):
    grown = 0
    sampler = make_sampler("interbert", tokenizer, masking=masking, region_probability=0.2)
    for row, sample in samples(sampler, corpus, 100):
        near = overlaps_with_inclusive_sides(corpus.record(row).boxes) > 0.4
        np.testing.assert_array_equal(sample.masked, sample.predicted)
        # Every hidden region has an anchor in its neighbourhood, and what is near to a lone one is hidden too.
        for region in np.flatnonzero(sample.masked):
            neighbours = np.flatnonzero(near[region] & sample.masked)
            assert any(sample.masked[near[anchor]].all() for anchor in neighbours)
            grown += len(neighbours) > 1
        assert (sample.targets.numpy().sum(1) > 0.9).tolist() == sample.predicted.tolist()
    assert grown > 0


def test_a_released_region_that_was_zero_is_predicted_but_not_hidden(tokenizer):
    features = make_record("a", 0, num_regions=5).features.copy()
    features[2] = 0
    corpus = make_corpus(
        {"a": make_record("a", 0, num_regions=5, features=features, boxes=apart(5)), "b": make_record("b", 1)}
    )
    options = {"region_probability": 0.0, "mismatched_probability": 0.0}
    sample = one(make_sampler("interbert", tokenizer, masking="groups_as_released", **options), corpus)
    assert sample.predicted.tolist() == [False, False, True, False, False] and not sample.masked.any()
    assert sample.targets[2].sum() > 0.9
    assert not one(make_sampler("interbert", tokenizer, **options), corpus).predicted.any()


# --- conditional masking ---


@pytest.mark.parametrize("masking", MASKINGS)
def test_conditional_masking_makes_two_rows_that_hide_one_side_each(masking, tokenizer, corpus):
    together = make_sampler("interbert", tokenizer, masking=masking)
    apart_ = make_sampler("interbert", tokenizer, masking=masking, conditional_masking=True)
    for row in range(8):
        both, regions_hidden = (one(sampler, corpus, row, seed=5) for sampler in (together, apart_))
        words_hidden = regions_hidden.twin
        for sample in (regions_hidden, words_hidden):
            assert (sample.match, sample.sample_id) == (both.match, both.sample_id)
            assert torch.equal(sample.features, both.features)  # hidden by the model, not in the data
        assert (regions_hidden.text_labels == IGNORE_INDEX).all()
        np.testing.assert_array_equal(regions_hidden.masked, both.masked)
        np.testing.assert_array_equal(regions_hidden.predicted, both.predicted)
        assert torch.equal(regions_hidden.targets, both.targets)
        assert not words_hidden.masked.any() and not words_hidden.predicted.any()
        np.testing.assert_array_equal(words_hidden.text_ids, both.text_ids)
        np.testing.assert_array_equal(words_hidden.text_labels, both.text_labels)
        whole = np.where(both.text_labels == IGNORE_INDEX, both.text_ids, both.text_labels)
        np.testing.assert_array_equal(regions_hidden.text_ids, whole)


def test_rows_of_a_conditional_pair_stand_together_in_a_batch_and_train(tokenizer, corpus):
    options = {"word_probability": 0.3, "region_probability": 0.3}
    plain, task = (make_task("interbert", corpus, tokenizer, conditional_masking=on, **options) for on in (False, True))
    before, batch = (next(each.batches(0, rank=0, num_ranks=1)) for each in (plain, task))
    assert batch.batch_size == 2 * task.batch_size
    assert batch.sample_ids[::2] == batch.sample_ids[1::2] == before.sample_ids
    assert torch.equal(batch.match_labels[::2], batch.match_labels[1::2])
    assert not batch.masked_regions[1::2].any() and (batch.text_labels[::2] == IGNORE_INDEX).all()
    counts, single = task.counts(batch), plain.counts(before)
    assert (counts["masked_words"], counts["masked_regions"]) == (single["masked_words"], single["masked_regions"])
    assert counts["matching"] == 2 * single["matching"]
    losses = task.losses(task.model, batch).losses
    assert counts == {name: int(term.count) for name, term in losses.items()}
    assert all(term.mean.isfinite() and term.count > 0 for term in losses.values())


# --- what does not fit ---


def test_features_as_targets(tokenizer, corpus):
    sizes = {"region_loss": "regression", "region_target_size": WIDTH}
    task = make_task("interbert", corpus, tokenizer, sizes=sizes, region_probability=0.5)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    assert torch.equal(batch.region_targets, batch.region_features[batch.region_target_mask].float())
    assert task.losses(task.model, batch).losses["masked_regions"].mean.isfinite()
    assert NUM_CLASSES + 1 != WIDTH  # else the test says nothing


def test_more_elements_than_positions(tokenizer, corpus):
    sizes = {"max_position_embeddings": 37, "with_region_positions": True, "with_image_sep": True}
    with pytest.raises(ValueError, match="up to 38 elements"):
        make_task("interbert", corpus, tokenizer, sizes=sizes)
