"""Samples of ViLBERT, of its single-stream baseline and of InterBERT, each rule on small records."""

import dataclasses

import numpy as np
import pytest
import torch
from binomial import assert_share
from captioned_records import top_two
from paired_examples import (
    CAPTIONS,
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
from roibeam.model.common.regions import elements_with_whole_image
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.data.batches.sample import collate, in_float32
from roibeam.pipelines.pretraining.samples.sampling import MASKINGS

SYSTEMS = ["vilbert", "vilbert-single-stream"]
DRAWS = [20_000, many(1_000_000)]


@pytest.fixture(scope="module")
def tokenizer():
    return captions_tokenizer()


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(make_store())


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("pieces, kept", [(33, 35), (34, 36), (35, 36), (600, 36), (0, 2)])
def test_vilberts_text_is_cut_at_its_end_before_it_is_masked(system, pieces, kept, tmp_path):
    """vilbert_beta pops pieces until 34 are left, masks these, and adds [CLS] and [SEP]."""
    tokenizer = pieces_tokenizer(tmp_path)
    words = " ".join("abcdefghij"[n % 10] for n in range(pieces))
    corpus = make_corpus(make_store(2), captions=[words])
    sample = one(make_sampler(system, tokenizer, word_probability=0.0, mismatched_probability=0.0), corpus)
    whole = tokenizer.encode(words).ids
    assert sample.text_ids.tolist() == [*whole[: kept - 1], tokenizer.sep_id]
    everything = one(make_sampler(system, tokenizer, word_probability=1.0, mismatched_probability=0.0), corpus)
    labelled = everything.text_labels != IGNORE_INDEX
    assert labelled.tolist() == [False, *[True] * (kept - 2), False]
    assert everything.text_labels[labelled].tolist() == whole[1 : kept - 1].tolist()
    assert not everything.text_segments.any() and len(everything.text_segments) == kept


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("distribution", ["full", "top", "none"])
def test_predicted_regions_have_the_detectors_distribution_with_background_last(system, distribution, tokenizer):
    record = make_record("a", 3, num_regions=6)
    full = record.class_distribution
    if distribution != "full":
        other = top_two(full) if distribution == "top" else None
        record = dataclasses.replace(record, class_distribution=other)
    corpus = make_corpus({"a": record, "b": record})
    sample = one(make_sampler(system, tokenizer, region_probability=0.5, mismatched_probability=0.0), corpus, seed=1)
    assert 0 < sample.predicted.sum() < 6
    targets, predicted = sample.targets.numpy(), sample.predicted
    assert targets.shape == (6, NUM_CLASSES + 1) and not targets[~predicted].any()
    if distribution == "none":
        assert targets[predicted].argmax(1).tolist() == record.class_ids[predicted].tolist()
    elif distribution == "full":
        np.testing.assert_array_equal(targets[predicted], full[predicted].astype(np.float32))
    else:
        assert targets[predicted].argmax(1).tolist() == full[predicted].argmax(1).tolist()
        np.testing.assert_allclose(targets[predicted].sum(1), 1, atol=2e-3)


@pytest.mark.parametrize("region_loss", ["regression", "contrastive"])
def test_features_as_targets_are_those_of_all_regions(region_loss, tokenizer, corpus):
    """Contrastive negatives are drawn among all regions of the batch, predicted or not."""
    sizes = {"region_loss": region_loss, "region_target_size": WIDTH}
    sample = one(make_sampler("vilbert", tokenizer, sizes=sizes, mismatched_probability=0.0), corpus)
    assert torch.equal(sample.targets, sample.features)
    np.testing.assert_array_equal(sample.features.numpy(), corpus.record(0).features.astype(np.float32))


@pytest.mark.parametrize("count", ["all", "visible"])
def test_the_whole_image_is_made_by_the_model_of_what_is_visible(count, tokenizer, corpus):
    """First release: sum of what is left over the number of all regions; what hides groups divides by those left."""
    overlapping = "hidden" if count == "visible" else "kept"
    sampler = make_sampler("vilbert", tokenizer, region_probability=0.5, overlapping_regions=overlapping)
    rows = [sample for _, sample in samples(sampler, corpus, 8)]
    elements = elements_with_whole_image(collate(rows, pad_id=0), count=count)
    for row, sample in enumerate(rows):
        assert sample.whole_image is None and sample.masked.any()
        left = sample.features[torch.from_numpy(~sample.masked)]
        divisor = len(sample.boxes) if count == "all" else max(len(left), 1)
        torch.testing.assert_close(elements.features[row, 0], left.sum(0) / divisor)


def test_overlapping_regions_may_be_hidden_or_left_out_of_the_count(tokenizer, corpus):
    """arXiv:1912.02315: the text hides a group; the code only counts fewer regions for the whole image."""
    options = {"region_probability": 0.3, "mismatched_probability": 0.0}
    rows = {}
    for kind in ("kept", "hidden", "uncounted"):
        sampler = make_sampler("vilbert", tokenizer, overlapping_regions=kind, **options)
        rows[kind] = [sample for _, sample in samples(sampler, corpus, 40)]
    more = 0
    for kept, hidden, uncounted in zip(*rows.values(), strict=True):
        near = overlaps_with_inclusive_sides(kept.boxes) > 0.4
        np.testing.assert_array_equal(hidden.masked, kept.masked | near[kept.masked].any(0))
        more += int((hidden.masked & ~kept.masked).sum())
        np.testing.assert_array_equal(uncounted.masked, kept.masked)
        for other in (hidden, uncounted):
            np.testing.assert_array_equal(other.predicted, kept.predicted)
            assert torch.equal(other.targets, kept.targets)
        counted = max(int((~near[kept.predicted].any(0)).sum()), 1)
        left = kept.features.float()[torch.from_numpy(~kept.masked)].sum(0)
        torch.testing.assert_close(uncounted.whole_image, left / counted)
        assert hidden.whole_image is None
    assert more > 0
    batch = in_float32(collate(rows["uncounted"], pad_id=0))
    elements = elements_with_whole_image(batch, count="visible")
    assert torch.equal(elements.features[:, 0], batch.whole_image_features)


@pytest.mark.parametrize("overlapping_regions", ["kept", "hidden", "uncounted"])
def test_an_image_without_regions(overlapping_regions, tokenizer):
    corpus = make_corpus({name: make_record(name, 0, num_regions=0) for name in "ab"})
    task = make_task("vilbert", corpus, tokenizer, overlapping_regions=overlapping_regions)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    losses = task.losses(task.model, batch).losses
    assert batch.region_features.shape == (4, 0, WIDTH)
    assert losses["masked_regions"].count == 0 and losses["matching"].mean.isfinite()


def test_the_paper_replaces_the_image_too(tokenizer, corpus):
    sampler = make_sampler("vilbert", tokenizer, word_probability=0.0, negatives="caption_or_image")
    texts = [tokenizer.encode(caption).ids.tolist() for caption in CAPTIONS]
    kept = {"caption": 0, "image": 0, "both": 0}
    for row, sample in samples(sampler, corpus, 600):
        caption = texts.index(sample.text_ids.tolist()) == row
        image = sample.sample_id == f"image-{row}"
        np.testing.assert_array_equal(sample.boxes, corpus.record(int(sample.sample_id.split("-")[1])).boxes)
        assert sample.match == (caption and image) and (caption or image)
        kept["both" if caption and image else "caption" if caption else "image"] += 1
    assert_share(kept["both"], 600, 0.5)
    assert_share(kept["caption"], 600, 0.25)


@pytest.mark.parametrize("objective, pairs", [(0, "all"), (1, "matched")])
def test_masked_losses_of_mismatched_pairs(objective, pairs, tokenizer, corpus):
    """The multi-task release's --objective 0 and 1."""
    sizes = {"masked_loss_pairs": pairs}
    task = make_task("vilbert", corpus, tokenizer, sizes=sizes, batch_size=8, word_probability=0.5)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    assert 0 < batch.match_labels.sum() < 8
    labels = batch.text_labels != IGNORE_INDEX
    asked = labels if objective == 0 else labels & batch.match_labels.eq(1)[:, None]
    counts = task.counts(batch)
    assert counts["masked_words"] == int(asked.sum()) < labels.sum() + (objective == 0) and counts["matching"] == 8
    assert counts == {name: int(term.count) for name, term in task.losses(task.model, batch).losses.items()}


def test_no_match_task_has_no_mismatched_pairs(tokenizer, corpus):
    """--objective 2."""
    sizes = {"with_match_head": False}
    task = make_task("vilbert", corpus, tokenizer, sizes=sizes, mismatched_probability=0.0)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    assert batch.match_labels is None
    assert set(task.losses(task.model, batch).losses) == {"masked_words", "masked_regions"} == set(task.counts(batch))
    with pytest.raises(ValueError, match=r"no match head, but 50% .* set sampling.mismatched_probability to 0"):
        make_task("vilbert", corpus, tokenizer, sizes=sizes)


CONTRASTIVE = {"region_loss": "contrastive", "region_target_size": WIDTH, "num_negatives": 5, "negative_rows": 2}


def test_contrastive_negatives_follow_from_the_samples_alone(tokenizer, corpus):
    task = make_task("vilbert", corpus, tokenizer, sizes=CONTRASTIVE, region_probability=0.5)
    task.model.eval()

    def loss(batch):
        return float(task.losses(task.model, batch).losses["masked_regions"].total.detach())

    first, second = (next(task.batches(start, rank=0, num_ranks=1)) for start in (0, 4))
    before = torch.random.get_rng_state()
    once = loss(first)
    torch.rand(7)
    assert loss(first) == once == loss(next(task.batches(0, rank=0, num_ranks=1)))
    assert loss(dataclasses.replace(first, draw_seeds=first.draw_seeds[::-1])) != once
    assert len({*first.draw_seeds, *second.draw_seeds}) == 8
    torch.random.set_rng_state(before)
    with pytest.raises(ValueError, match="hand in a generator, or a batch with draw_seeds"):
        loss(dataclasses.replace(first, draw_seeds=()))
    given = [
        task.model(in_float32(first), torch.Generator().manual_seed(seed)).losses["masked_regions"].total.item()
        for seed in (1, 1, 2)
    ]
    assert given[0] == given[1] != given[2]


def test_contrastive_negatives_do_not_depend_on_the_size_of_batches(tokenizer, corpus):
    totals = []
    for batch_size in (2, 4, 8):
        task = make_task("vilbert", corpus, tokenizer, sizes=CONTRASTIVE, region_probability=0.5, batch_size=batch_size)
        task.model.eval()
        batches = task.batches(0, rank=0, num_ranks=1)
        found = [task.losses(task.model, next(batches)).losses["masked_regions"] for _ in range(8 // batch_size)]
        totals.append(sum(term.total.item() for term in found))
    assert totals == pytest.approx([totals[0]] * 3, rel=1e-6)


# --- InterBERT ---


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
def test_interberts_text_is_cut_at_its_end_before_it_is_masked(masking, pieces, kept, tmp_path):
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
    record = make_record("a", 0, num_regions=5, features=features, boxes=apart(5))
    corpus = make_corpus({"a": record, "b": make_record("b", 1)})
    options = {"region_probability": 0.0, "mismatched_probability": 0.0}
    sample = one(make_sampler("interbert", tokenizer, masking="groups_as_released", **options), corpus)
    assert sample.predicted.tolist() == [False, False, True, False, False] and not sample.masked.any()
    assert sample.targets[2].sum() > 0.9
    assert not one(make_sampler("interbert", tokenizer, **options), corpus).predicted.any()


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


def test_features_as_targets(tokenizer, corpus):
    sizes = {"region_loss": "regression", "region_target_size": WIDTH}
    task = make_task("interbert", corpus, tokenizer, sizes=sizes, region_probability=0.5)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    assert torch.equal(batch.region_targets, batch.region_features[batch.region_target_mask].float())
    assert task.losses(task.model, batch).losses["masked_regions"].mean.isfinite()
    assert NUM_CLASSES + 1 != WIDTH  # else the test says nothing


@pytest.mark.parametrize(
    "system, sizes, words",
    [
        ("vilbert", {"num_task_tokens": 20}, r"20 task tokens.* set num_task_tokens to 0"),
        ("vilbert", {"max_position_embeddings": 37, "first_position": 2}, "made for 35"),  # which leaves less room
        (
            "vilbert",
            CONTRASTIVE | {"negative_rows": 3},
            "of 3 rows, and batches of 4 would cut .* data.batch_size .* div",
        ),
        (
            "interbert",
            {"max_position_embeddings": 37, "with_region_positions": True, "with_image_sep": True},
            "to 38 el",
        ),
    ],
)
def test_a_model_that_does_not_fit(system, sizes, words, tokenizer, corpus):
    with pytest.raises(ValueError, match=words):
        make_task(system, corpus, tokenizer, sizes=sizes)
    if "negative_rows" in sizes:
        make_task(system, corpus, tokenizer, sizes=sizes | {"region_loss": "regression"})
