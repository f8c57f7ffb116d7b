"""What holds for every system whose rows are a caption beside an image: streams, masks that tell nothing, learning."""

import math

import numpy as np
import pytest
import torch
from binomial import assert_share
from captioned_records import captioned, pretrain_with
from paired_examples import (
    CAPTIONS,
    TINY,
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
    no_dropout,
    one,
    pieces_tokenizer,
    samples,
)
from soak_share import many, some
from toy_training import assert_equal_checkpoints, log_of
from transformers import BertConfig, BertModel

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, InterBertSampling, ViLbertSampling
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.model_start import read_bert
from roibeam.pipelines.training.train_config import TrainConfig

# Name of a way to sample -> system, settings.
WAYS = {
    "vilbert": ("vilbert", {}),
    "vilbert, paper": ("vilbert", {"negatives": "caption_or_image"}),
    "vilbert, multi-task": ("vilbert", {"overlapping_regions": "uncounted"}),
    "vilbert, hidden groups": ("vilbert", {"overlapping_regions": "hidden"}),
    "single stream": ("vilbert-single-stream", {}),
    "interbert": ("interbert", {}),
    "interbert, released": ("interbert", {"masking": "groups_as_released"}),
    "interbert, single": ("interbert", {"masking": "single"}),
    "interbert, conditional": ("interbert", {"conditional_masking": True}),
}


@pytest.fixture(scope="module")
def tokenizer():
    return captions_tokenizer()


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(make_store())


pytestmark = pytest.mark.usefixtures("one_thread")


SINGLE = {"vilbert": {}, "vilbert-single-stream": {}, "interbert": {"masking": "single"}}
DRAWS = [20_000, many(1_000_000)]


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("system", ["vilbert", "interbert"])
def test_each_piece_is_masked_by_itself_as_often_as_published(system, draws, tmp_path):
    """15 %, of these 80/10/10: the two pieces of a word do not know of each other, unlike in VL-BERT."""
    tokenizer, words = pieces_tokenizer(tmp_path), 255
    corpus = make_corpus(make_store(2), captions=[caption_of_halves(words)])
    sampler = make_sampler(system, tokenizer, max_pieces=512, mismatched_probability=0.0, **SINGLE[system])
    rows = [sample for _, sample in samples(sampler, corpus, draws // (2 * words) + 1)]
    ids, labels = (np.stack(part)[:, 1:-1] for part in zip(*((s.text_ids, s.text_labels) for s in rows), strict=True))
    before, labelled = tokenizer.encode(caption_of_halves(words)).ids[1:-1], labels != IGNORE_INDEX
    assert (ids[~labelled] == np.broadcast_to(before, ids.shape)[~labelled]).all()
    assert_share(labelled.sum(), labelled.size, 0.15)
    both = labelled.reshape(-1, 2).all(axis=1)
    assert_share(both.sum(), len(both), 0.15**2)
    assert_replaced(ids, before, labelled, tokenizer)


@pytest.mark.parametrize("system", ["vilbert", "interbert"])
def test_more_regions_than_fit_leave_the_strongest_in_the_order_of_the_record(system, tokenizer):
    scores = np.linspace(0.1, 0.9, 40).astype(np.float32)
    scores[[3, 5]] = 0.95
    scores[[0, 1, 2, 4, 6]] = 0.05  # the first of equal ones stays
    record = make_record("a", 0, num_regions=40, class_scores=scores)
    corpus = make_corpus({"a": record, "b": make_record("b", 1)})
    sample = one(make_sampler(system, tokenizer, mismatched_probability=0.0), corpus)
    kept = [0, 3, 5, *range(7, 40)]
    assert len(kept) == 36
    np.testing.assert_array_equal(sample.boxes, record.boxes[kept])
    np.testing.assert_array_equal(sample.features.numpy(), record.features[kept].astype(np.float32))
    few = one(make_sampler(system, tokenizer, max_regions=100, mismatched_probability=0.0), corpus)
    np.testing.assert_array_equal(few.boxes, record.boxes)


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("system", SINGLE)
def test_regions_are_predicted_and_hidden_as_often_as_published(system, draws, tokenizer):
    count = 400
    store = {name: make_record(name, n, num_regions=count, boxes=apart(count)) for n, name in enumerate("ab")}
    sampler = make_sampler(system, tokenizer, max_regions=count, **SINGLE[system])
    rows = [sample for _, sample in samples(sampler, make_corpus(store), draws // count + 1)]
    predicted = np.concatenate([sample.predicted for sample in rows])
    masked = np.concatenate([sample.masked for sample in rows])
    assert not (masked & ~predicted).any()
    assert_share(predicted.sum(), len(predicted), 0.15)
    assert_share(masked.sum(), predicted.sum(), 0.9)


@pytest.mark.parametrize("system", SINGLE)
def test_a_mismatched_pair_has_a_caption_of_another_image_and_says_so(system, tokenizer):
    corpus = make_corpus(make_store(4), per_image=2)
    sampler = make_sampler(system, tokenizer, word_probability=0.0)
    texts = [tokenizer.encode(caption).ids.tolist() for caption in CAPTIONS]
    matches = []
    for row, sample in samples(sampler, corpus, 400):
        caption = texts.index(sample.text_ids.tolist())
        assert sample.sample_id == f"image-{row // 2}"
        np.testing.assert_array_equal(sample.boxes, corpus.record(row).boxes)
        assert sample.match == (caption == row) and (caption == row or caption // 2 != row // 2)
        matches.append(sample.match)
    assert_share(sum(matches), len(matches), 0.5)


@pytest.mark.parametrize("system", SINGLE)
@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"region_feature_size": 2048}, "features have width 12, the model was made for 2048"),
        ({"vocab_size": 20}, "pieces, the model was made for 20"),
        ({"region_target_size": 5}, "the model has 5 region labels, this store has 20 classes and background; set"),
        ({"max_position_embeddings": 20}, r"up to 36 pieces, the model was made for 20; set sampling.max_pieces"),
    ],
)
def test_a_model_that_does_not_fit(system, sizes, message, tokenizer, corpus):
    with pytest.raises(ValueError, match=message):
        make_task(system, corpus, tokenizer, sizes=sizes)


@pytest.mark.parametrize(
    "settings, fields, message",
    [
        (ViLbertSampling, {"max_pieces": 2}, "max_pieces must be at least 3, got 2"),
        (ViLbertSampling, {"max_regions": 0}, "max_regions must be at least 1, got 0"),
        (ViLbertSampling, {"word_probability": 1.5}, r"word_probability must be in 0\.\.1, got 1.5"),
        (ViLbertSampling, {"mismatched_probability": -1}, "mismatched_probability"),
        (ViLbertSampling, {"negatives": "text"}, "negatives must be one of caption, image, caption_or_image"),
        (ViLbertSampling, {"overlapping_regions": "gone"}, "must be one of kept, hidden, uncounted"),
        (InterBertSampling, {"masking": "spans"}, "masking must be one of groups, groups_as_released, single"),
        (InterBertSampling, {"word_probability": 7}, r"word_probability must be in 0\.\.1, got 7"),
        (InterBertSampling, {"masking": "groups_as_released", "word_probability": 0.1}, "no effect on the one span"),
    ],
)
def test_settings_that_are_none(settings, fields, message):
    with pytest.raises(ValueError, match=f"{settings.__name__}: .*{message}"):
        settings(**fields)


def mask_pattern(sample):
    """(n,) what of a sample is left when neither words nor features are seen: which places are hidden or predicted."""
    words, regions = np.zeros((2, 16)), np.zeros((2, 16))
    words[0, : len(sample.text_labels)] = sample.text_labels != IGNORE_INDEX
    words[1, : len(sample.text_labels)] = sample.text_ids == 4  # [MASK]
    regions[0, : len(sample.masked)], regions[1, : len(sample.masked)] = sample.masked, sample.predicted
    counts = np.concatenate([words.sum(1), regions.sum(1)])
    return np.concatenate([words.ravel(), regions.ravel(), counts, counts > 0, counts**2, [1.0]])


def held_out_accuracy(patterns, matched):
    """Of a linear classifier on the second half, fitted on the first."""
    half = len(patterns) // 2
    penalty = 1e-3 * half * np.eye(patterns.shape[1])
    first = patterns[:half]
    weights = np.linalg.solve(first.T @ first + penalty, first.T @ (matched[:half] * 2.0 - 1.0))
    return float(((patterns[half:] @ weights > 0) == matched[half:]).mean()), len(patterns) - half


@pytest.mark.parametrize("count", [1600, pytest.param(6000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_a_classifier_that_sees_the_masks_alone_is_right_half_of_the_time(way, count, corpus, tokenizer):
    system, settings = WAYS[way]
    sampler = make_sampler(system, tokenizer, **settings)
    found = [sample for _, sample in samples(sampler, corpus, count)]
    matched = np.array([sample.match for sample in found], bool)
    for view in (lambda sample: sample, lambda sample: sample.twin):
        if view(found[0]) is None:
            continue
        patterns = np.stack([mask_pattern(view(sample)) for sample in found])
        accuracy, tested = held_out_accuracy(patterns, matched)
        assert_share(round(accuracy * tested), tested, 0.5)
        # The same classifier sees it at once when mismatched pairs are left unmasked, as a careless rule would do.
        seen = matched[:, None] | (np.arange(patterns.shape[1]) == patterns.shape[1] - 1)
        accuracy, _ = held_out_accuracy(patterns * seen, matched)
        assert accuracy > 0.6


def test_the_layers_of_a_bert_go_to_interberts_joint_layers_and_then_to_those_of_its_text(tmp_path):
    """As the release has it: BERT-base's 12 are 6 and 6 there. The preset's numbers stay: here 2 and 2 of 4."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 40}
    pieces = captions_tokenizer()
    pieces.save(tmp_path / "bert")
    theirs = BertModel(BertConfig(**sizes, vocab_size=pieces.vocab_size))
    theirs.save_pretrained(tmp_path / "bert")
    store = make_store()
    result = pretrain_with(
        [captioned(store, zip(store, CAPTIONS, strict=True))], tmp_path / "run",
        train_config=TrainConfig(steps=1, learning_rate=1e-9, device="cpu"), system=SYSTEMS["interbert"],
        bert=read_bert(str(tmp_path / "bert")), tokenizer_spec=str(tmp_path / "bert"),
    )  # fmt: skip
    model = InterBertForPreTraining.from_pretrained(result.training.checkpoint / "model")
    assert (len(model.interbert.joint.layers), len(model.interbert.text.layers)) == (2, 2)
    ours = [*model.interbert.joint.layers, *model.interbert.text.layers]
    for layer, bert_layer in zip(ours, theirs.encoder.layer, strict=True):
        wanted = bert_layer.output.dense.weight.detach()
        alike = [weight for weight in layer.parameters() if weight.shape == wanted.shape]
        assert any(torch.allclose(weight, wanted, atol=1e-7) for weight in alike)


def run_of(system, folder, config, data, sampling, sizes, **options):
    store, chosen = make_store(), SYSTEMS[system]
    return pretrain_with(
        [captioned(store, zip(store, CAPTIONS, strict=True))], folder, train_config=config, system=chosen, data=data,
        sampling=chosen.sampling(**sampling), model_overrides=sizes, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "system, sizes, sampling",
    [
        (
            "vilbert",
            {"region_loss": "contrastive", "region_target_size": WIDTH, "negative_rows": 3},
            {"overlapping_regions": "hidden"},
        ),
        ("interbert", {}, {"conditional_masking": True}),
    ],
)
def test_a_run_goes_on_in_the_same_bits(system, sizes, sampling, tmp_path):
    """With dropout, and with negatives that a loss draws itself."""
    config = TrainConfig(steps=4, learning_rate=1e-3, device="cpu", checkpoint_every=2)

    def run(folder, **options):
        return run_of(system, folder, config, DataConfig(batch_size=3), sampling, TINY[system] | sizes, **options)

    whole = run(tmp_path / "whole")
    run(tmp_path / "parts", stop_at_step=2)
    parts = run(tmp_path / "parts", resume=True)
    assert_equal_checkpoints(whole.training.checkpoint, parts.training.checkpoint)
    assert parts.evaluation == whole.evaluation


# That learning works at all: test_pretraining has it for VL-BERT; that each system's losses and gradients are right:
# test_trajectories and test_end_to_end of the models.
@pytest.mark.slow
@pytest.mark.parametrize(
    "way", some(["vilbert", "single stream", "interbert", "interbert, conditional"], ["single stream"])
)
def test_eight_pairs_can_be_learned_by_heart(way, tmp_path):
    system, settings = WAYS[way]
    config = TrainConfig(steps=150, learning_rate=3e-3, warmup_steps=10, device="cpu", checkpoint_every=0)
    data = DataConfig(batch_size=8, fixed_masks=True)
    result = run_of(system, tmp_path / "run", config, data, settings, TINY[system] | no_dropout(system))
    first = log_of(tmp_path / "run")[0]
    assert first["masked_words"] == pytest.approx(math.log(result.vocab_size), rel=0.1)
    assert first["matching"] == pytest.approx(math.log(2), rel=0.2)
    assert result.evaluation["masked_words"] < 0.1
    assert result.evaluation["masked_regions"] < 0.1 and result.evaluation["masked_region_accuracy"] > 0.95
    assert result.evaluation["matching_accuracy"] == 1
