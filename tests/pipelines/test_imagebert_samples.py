"""ImageBERT's rules: 44 pieces and 100 regions, masks, pairs of both kinds, and eight pairs learned by heart."""

import dataclasses

import numpy as np
import pytest
from binomial import assert_share
from captioned_records import (
    CAPTIONS,
    GLOBAL_WIDTH,
    LEARNER,
    NUM_CLASSES,
    WIDTH,
    make_corpus,
    make_record,
    make_store,
    run_pretrain,
)
from soak_share import many

from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.data.batches.sample import collate
from roibeam.pipelines.pretraining.samples.imagebert import ImageBertSampler
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, ImageBertSampling
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

SYSTEM = SYSTEMS["imagebert"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("captions", CAPTIONS * 2)


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(make_store(8), enumerate(CAPTIONS))


def make_sampler(tokenizer, *, config=None, **settings):
    sizes = {"vocab_size": tokenizer.vocab_size, "region_feature_size": WIDTH, "num_region_labels": NUM_CLASSES}
    config = ImageBertConfig(**(sizes | (config or {})))
    return ImageBertSampler(ImageBertSampling(**settings), tokenizer, config, num_classes=NUM_CLASSES)


def test_a_pair_is_told_by_its_caption_and_its_image(tokenizer, corpus):
    sampler, kinds = make_sampler(tokenizer), set()
    for seed in range(60):
        sample = sampler.sample(corpus, 3, np.random.default_rng(seed))
        ids = np.where(sample.text_labels == IGNORE_INDEX, sample.text_ids, sample.text_labels)
        own_caption, own_image = tokenizer.decode(ids[1:-1]) == CAPTIONS[3], sample.sample_id == "image-3"
        assert sample.match == int(own_caption and own_image)
        assert own_caption or own_image
        kinds.add((own_caption, own_image))
        record = corpus.record(int(sample.sample_id.removeprefix("image-")))
        np.testing.assert_array_equal(sample.features.numpy(), record.features)
        wanted = record.class_distribution.astype(np.float32) * sample.predicted[:, None]
        np.testing.assert_array_equal(sample.targets.numpy(), wanted)
        assert not (sample.masked & ~sample.predicted).any()
    assert kinds == {(True, True), (True, False), (False, True)}


def test_text_and_regions_are_144_at_most(tokenizer):
    corpus = make_corpus(make_store(2, num_regions=130), [(0, " ".join(["dogs"] * 600)), (1, CAPTIONS[0])])
    random = np.random.default_rng(0)
    sample = make_sampler(tokenizer, config={"with_match_head": False, "masked_loss_pairs": "all"})
    sample = sample.sample(corpus, 0, random)
    assert (len(sample.text_ids), len(sample.boxes), sample.match) == (44, 100, None)
    assert sample.text_ids[0] == tokenizer.cls_id and sample.text_ids[-1] == tokenizer.sep_id
    scores = corpus.record(0).class_scores
    kept = np.flatnonzero((corpus.record(0).boxes[:, None] == sample.boxes[None]).all(-1).any(1))
    assert scores[kept].min() > np.delete(scores, kept).max()
    # A last [SEP] of the model's own takes a piece of the text, and positions limit it as well.
    last = make_sampler(tokenizer, config={"final_separator": "next", "max_position_embeddings": 30})
    assert len(last.sample(corpus, 0, random).text_ids) in (29, 2 + len(CAPTIONS[0].split()))


@pytest.mark.parametrize("samples", [400, many(10_000)])
def test_masks_are_as_often_as_the_paper_says_and_alike_in_all_pairs(tokenizer, samples):
    """100 regions and 100 words a sample: 1,000,000 draws of each in the whole soak."""
    text = " ".join(" ".join(CAPTIONS).split()[:50] * 2)
    corpus = make_corpus(make_store(2, num_regions=100, width=4), [(0, text), (1, text)])
    sampler = make_sampler(tokenizer, max_pieces=102, config={"region_feature_size": 4})
    counts = {match: np.zeros(7, np.int64) for match in (0, 1)}
    patterns = []
    for seed in range(samples):
        sample = sampler.sample(corpus, 0, np.random.default_rng(seed))
        chosen = sample.text_labels != IGNORE_INDEX
        hidden = sample.text_ids == tokenizer.mask_id
        kept = chosen & (sample.text_ids == sample.text_labels)
        counts[sample.match] += [
            len(chosen) - 2, chosen.sum(), hidden.sum(), kept.sum(),
            len(sample.predicted), sample.predicted.sum(), sample.masked.sum(),
        ]  # fmt: skip
        assert not chosen[[0, -1]].any() and not (hidden & ~chosen).any()
        patterns.append((sample.match, int(sample.masked.sum()) + int(hidden.sum())))
    assert_share(sum(match for match, _ in patterns), samples, 0.5)
    for words, chosen, hidden, kept, regions, predicted, masked in counts.values():
        assert_share(chosen, words, 0.15)
        assert_share(hidden, chosen, 0.8)
        # A random piece may be the one that stood there, or [MASK].
        assert_share(kept, chosen, 0.1 + 0.1 / tokenizer.vocab_size)
        assert_share(predicted, regions, 0.15)
        assert_share(masked, predicted, 0.9)
    # A classifier that sees how much is hidden, and nothing else, is right half the time.
    learned, judged = patterns[::2], patterns[1::2]
    threshold = np.median([hidden for _, hidden in learned])
    more_if_matched = np.mean([m for m, h in learned if h > threshold]) > 0.5
    right = sum((hidden > threshold) == (match == more_if_matched) for match, hidden in judged)
    assert_share(right, len(judged), 0.5)


def test_only_matched_pairs_are_predicted_and_all_are_masked(tokenizer, corpus):
    sampler = make_sampler(tokenizer, word_probability=0.5, region_probability=0.5)
    batch = collate([sampler.sample(corpus, row, np.random.default_rng(row)) for row in range(8)], pad_id=0)
    wrong = batch.match_labels == 0
    assert wrong.any() and batch.masked_regions[wrong].any() and (batch.text_labels[wrong] >= 0).any()
    model = ImageBertForPreTraining(sampler._config).eval()
    output, counts = model(batch), model.loss_counts(batch)
    right = ~wrong
    assert counts["masked_words"] == int((batch.text_labels[right] >= 0).sum())
    assert counts["masked_region_features"] == int(batch.region_target_mask[right].sum())
    assert counts["matching"] == 8
    assert {name: int(term.count) for name, term in output.losses.items()} == counts


def test_models_without_a_task_are_not_asked_for_it(tokenizer, corpus):
    words = make_sampler(tokenizer, config={"with_region_class_head": False, "with_region_feature_head": False})
    sample = words.sample(corpus, 0, np.random.default_rng(0))
    assert sample.targets is None and not sample.masked.any()
    features = make_sampler(tokenizer, config={"with_region_class_head": False, "num_region_labels": 3})
    assert features.sample(corpus, 0, np.random.default_rng(0)).targets is not None
    whole = make_sampler(tokenizer, config={"global_feature_size": GLOBAL_WIDTH})
    samples = [whole.sample(corpus, row, np.random.default_rng(row)) for row in range(4)]
    shown = [corpus.record(int(sample.sample_id.removeprefix("image-"))).image_feature for sample in samples]
    np.testing.assert_array_equal(collate(samples, pad_id=0).global_features.numpy(), np.stack(shown))


def test_an_image_without_regions(tokenizer):
    corpus = make_corpus(make_store(2, num_regions=0), enumerate(CAPTIONS[:2]))
    sampler = make_sampler(tokenizer)
    batch = collate([sampler.sample(corpus, row, np.random.default_rng(row)) for row in (0, 1)], pad_id=0)
    assert batch.region_features.shape == (2, 0, WIDTH)
    assert ImageBertForPreTraining(sampler._config)(batch).losses["masked_regions"].mean == 0


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({"vocab_size": 20}, {}, "pieces, the model was made for 20; set vocab_size"),
        ({"num_region_labels": 5}, {}, "set num_region_labels to 20, or to 21 to count background"),
        ({}, {"negatives": "none"}, "negatives must be one of caption, image, caption_or_image"),
        ({}, {"max_regions": -1}, "max_regions must not be negative"),
        ({}, {"region_probability": -0.1}, "region_probability must be in 0..1"),
    ],
)
def test_settings_that_do_not_fit(tokenizer, config, settings, message):
    with pytest.raises(ValueError, match=message):
        make_sampler(tokenizer, config=config, **settings)


def test_records_that_do_not_fit(tokenizer):
    record = make_record("a", 0)
    make_sampler(tokenizer, config={"num_region_labels": NUM_CLASSES + 1}).check(record)
    with pytest.raises(ValueError, match="'a': features have width 48, the model was made for 64"):
        make_sampler(tokenizer, config={"region_feature_size": 64}).check(record)
    whole = make_sampler(tokenizer, config={"global_feature_size": 5})
    with pytest.raises(ValueError, match=f"whole image of width 5, the record has one of width {GLOBAL_WIDTH}"):
        whole.check(record)
    with pytest.raises(ValueError, match="the record has none; set global_feature_size"):
        whole.check(dataclasses.replace(record, image_feature=None))


@pytest.mark.slow
def test_eight_pairs_can_be_learned_by_heart(tmp_path):
    done = run_pretrain(
        make_store(8),
        tmp_path / "run",
        system=SYSTEM,
        train_config=TrainConfig(steps=120, learning_rate=3e-3, warmup_steps=10, device="cpu"),
        data=DataConfig(batch_size=8, fixed_masks=True),
        sampling=ImageBertSampling(word_probability=0.3, region_probability=0.3),
        model_overrides=LEARNER,
    )
    assert set(done.evaluation) >= {"masked_words", "masked_regions", "masked_region_features", "matching"}
    assert done.evaluation["masked_words"] < 0.1 and done.evaluation["matching"] < 0.1
    assert done.evaluation["masked_region_accuracy"] > 0.95
    assert done.evaluation["masked_region_features"] < 0.9  # 1 without having learned: features are standard normal
