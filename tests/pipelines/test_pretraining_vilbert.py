"""ViLBERT's samples and those of its single-stream baseline, each rule on small records."""

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

SYSTEMS = ["vilbert", "vilbert-single-stream"]
DRAWS = [20_000, many(1_000_000)]


@pytest.fixture(scope="module")
def tokenizer():
    return captions_tokenizer()


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(make_store())


def image_elements(batch, count):
    return elements_with_whole_image(batch, count=count)


# --- text ---


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("pieces, kept", [(33, 35), (34, 36), (35, 36), (600, 36), (0, 2)])
def test_text_is_cut_at_its_end_before_it_is_masked(system, pieces, kept, tmp_path):
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


# --- regions ---


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


# --- the whole image ---


@pytest.mark.parametrize("count", ["all", "visible"])
def test_the_whole_image_is_made_by_the_model_of_what_is_visible(count, tokenizer, corpus):
    """First release: sum of what is left over the number of all regions; what hides groups divides by those left."""
    sampler = make_sampler(
        "vilbert", tokenizer, region_probability=0.5, overlapping_regions="hidden" if count == "visible" else "kept"
    )
    rows = [sample for _, sample in samples(sampler, corpus, 8)]
    elements = image_elements(collate(rows, pad_id=0), count)
    for row, sample in enumerate(rows):
        assert sample.whole_image is None and sample.masked.any()
        left = sample.features[torch.from_numpy(~sample.masked)]
        divisor = len(sample.boxes) if count == "all" else max(len(left), 1)
        torch.testing.assert_close(elements.features[row, 0], left.sum(0) / divisor)


def test_overlapping_regions_may_be_hidden_or_left_out_of_the_count(tokenizer, corpus):
    """arXiv:1912.02315: the text hides a group; the code only counts fewer regions for the whole image."""
    options = {"region_probability": 0.3, "mismatched_probability": 0.0}
    rows = {
        kind: [
            s for _, s in samples(make_sampler("vilbert", tokenizer, overlapping_regions=kind, **options), corpus, 40)
        ]
        for kind in ("kept", "hidden", "uncounted")
    }
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
    elements = image_elements(batch, "visible")
    assert torch.equal(elements.features[:, 0], batch.whole_image_features)


@pytest.mark.parametrize("overlapping_regions", ["kept", "hidden", "uncounted"])
def test_an_image_without_regions(overlapping_regions, tokenizer):
    corpus = make_corpus({name: make_record(name, 0, num_regions=0) for name in "ab"})
    task = make_task("vilbert", corpus, tokenizer, overlapping_regions=overlapping_regions)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    losses = task.losses(task.model, batch).losses
    assert batch.region_features.shape == (4, 0, WIDTH)
    assert losses["masked_regions"].count == 0 and losses["matching"].mean.isfinite()


# --- pairs ---


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
    task = make_task(
        "vilbert", corpus, tokenizer, sizes={"masked_loss_pairs": pairs}, batch_size=8, word_probability=0.5
    )
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


# --- contrastive negatives ---


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


def test_batches_hold_whole_groups_of_negatives(tokenizer, corpus):
    sizes = CONTRASTIVE | {"negative_rows": 3}
    with pytest.raises(ValueError, match=r"groups of 3 rows, and batches of 4 would cut .* data.batch_size .* divisor"):
        make_task("vilbert", corpus, tokenizer, sizes=sizes)
    make_task("vilbert", corpus, tokenizer, sizes=sizes | {"region_loss": "regression"})


# --- what does not fit ---


def test_task_tokens_are_not_for_pre_training(tokenizer, corpus):
    with pytest.raises(ValueError, match=r"20 task tokens.* set num_task_tokens to 0"):
        make_task("vilbert", corpus, tokenizer, sizes={"num_task_tokens": 20})


def test_positions_that_start_late_leave_less_room(tokenizer, corpus):
    with pytest.raises(ValueError, match="made for 35"):
        make_task("vilbert", corpus, tokenizer, sizes={"max_position_embeddings": 37, "first_position": 2})
