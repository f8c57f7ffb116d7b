"""VisualBERT's rules: two captions in a row, the cuts, words alone, and eight images learned by heart."""

import numpy as np
import pytest
import torch
from captioned_records import CAPTIONS, LEARNER, WIDTH, make_corpus, make_record, make_store, run_pretrain

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.visualbert.model import VisualBertConfig
from roibeam.pipelines.data.batches.sample import collate, with_box_numbers
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, VisualBertSampling
from roibeam.pipelines.pretraining.samples.visualbert import VisualBertSampler, cut_from_the_front, cut_the_longer
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

SYSTEM = SYSTEMS["visualbert"]
TWO_EACH = [(index % 4, caption) for index, caption in enumerate(CAPTIONS)]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("captions", CAPTIONS * 2)


def make_sampler(tokenizer, *, config=None, **settings):
    sizes = {"vocab_size": tokenizer.vocab_size, "region_feature_size": WIDTH} | (config or {})
    return VisualBertSampler(VisualBertSampling(**settings), tokenizer, VisualBertConfig(**sizes), num_classes=0)


def original(sample):
    return np.where(sample.text_labels == IGNORE_INDEX, sample.text_ids, sample.text_labels)


def test_two_captions_stand_in_one_row(tokenizer):
    corpus, sampler = make_corpus(make_store(4), TWO_EACH), make_sampler(tokenizer)
    seen = set()
    for seed in range(40):
        sample = sampler.sample(corpus, 1, np.random.default_rng(seed))
        ids, (first, last) = original(sample), np.flatnonzero(original(sample) == tokenizer.sep_id)
        assert ids[0] == tokenizer.cls_id and last == len(ids) - 1
        assert sample.text_segments.tolist() == [0] * (first + 1) + [1] * (last - first)
        assert tokenizer.decode(ids[1:first]) == CAPTIONS[1]
        other = CAPTIONS.index(tokenizer.decode(ids[first + 1 : last]))
        assert sample.match == int(other == 5) and other != 1
        assert not {0, first, last} & set(np.flatnonzero(sample.text_labels != IGNORE_INDEX))
        seen.add(sample.match)
        record = corpus.record(1)
        np.testing.assert_array_equal(sample.features.numpy(), record.features)
        np.testing.assert_array_equal(sample.boxes, record.boxes)
        assert not sample.masked.any() and not sample.predicted.any() and sample.targets is None
    assert seen == {0, 1}


@pytest.mark.parametrize("form", ["one_caption", "words_only"])
def test_one_text(tokenizer, form):
    corpus, sampler = make_corpus(make_store(4), TWO_EACH), make_sampler(tokenizer, text_form=form)
    samples = [sampler.sample(corpus, 1, np.random.default_rng(seed)) for seed in range(40)]
    for sample in samples:
        assert not sample.text_segments.any()
        text = tokenizer.decode(original(sample)[1:-1])
        if form == "words_only":
            assert (text, sample.match) == (CAPTIONS[1], None)
        else:
            assert sample.match == int(text == CAPTIONS[1]) and text != CAPTIONS[5]
    assert collate(samples, pad_id=0).match_labels is None or form == "one_caption"


def test_words_are_masked_by_piece_and_alike_in_both_kinds_of_pairs(tokenizer):
    corpus, sampler = make_corpus(make_store(4), TWO_EACH), make_sampler(tokenizer)
    rates = {0: [], 1: []}
    for seed in range(3000):
        sample = sampler.sample(corpus, seed % 8, np.random.default_rng(seed))
        words = len(sample.text_ids) - 3
        rates[sample.match].append((int((sample.text_labels != IGNORE_INDEX).sum()), words))
    for match in (0, 1):
        chosen, words = np.sum(rates[match], axis=0)
        assert abs(chosen - 0.15 * words) < 5 * np.sqrt(words * 0.15 * 0.85)


def test_regions_can_be_fewer_none_or_with_their_boxes(tokenizer):
    corpus = make_corpus(make_store(4), TWO_EACH)
    record, random = corpus.record(0), np.random.default_rng(0)
    few = make_sampler(tokenizer, max_regions=3).sample(corpus, 0, random)
    best = np.sort(np.argsort(-record.class_scores)[:3])
    np.testing.assert_array_equal(few.boxes, record.boxes[best])
    none = make_sampler(tokenizer, with_regions=False).sample(corpus, 0, random)
    assert none.features.shape == (0, WIDTH) and none.boxes.shape == (0, 4) and none.match is not None
    boxed = make_sampler(tokenizer, box_numbers=True).sample(corpus, 0, random)
    assert boxed.features.shape[1] == WIDTH + 6
    x1, y1, x2, y2 = record.boxes.T
    width, height = record.width, record.height
    wanted = np.stack([x1 / width, y1 / height, x2 / width, y2 / height, (x2 - x1) / width, (y2 - y1) / height], 1)
    numbers = with_box_numbers(torch.zeros(record.num_regions, 0), record.boxes, record.width, record.height)
    np.testing.assert_allclose(numbers, wanted, rtol=0, atol=1e-6)


def bert_cut(first, second, limit):
    """google-research/bert, truncate_seq_pair, as its paper's code describes it: one by one from the longer."""
    first, second = list(first), list(second)
    while len(first) + len(second) > limit - 3:
        (first if len(first) > len(second) else second).pop()
    return first, second


def test_the_longer_caption_loses_its_end_one_by_one():
    for first in range(0, 14):
        for second in range(0, 14):
            for limit in range(5, 20):
                cut = cut_the_longer(np.arange(first), np.arange(second), limit=limit)
                assert [part.tolist() for part in cut] == [*bert_cut(range(first), range(second), limit)]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (60, 65, (60, 65)),  # fits
        (60, 66, (59, 64)),  # one too many: 1 from A, 2 from B
        (100, 60, (82, 7)),  # 35 too many: 18 from A, and 53 from B where 17 would do
        (32, 100, (32, 93)),  # A of 32 loses nothing
        (200, 10, (157, None)),  # B is gone, and the rest is still more than 128
    ],
)
def test_the_cut_of_the_release(first, second, kept):
    cut = cut_from_the_front(np.arange(first), np.arange(1000, 1000 + second), limit=128)
    lengths = [len(part) for part in cut]
    assert lengths == [length for length in kept if length is not None]
    assert cut[0].tolist() == list(range(first - kept[0], first))  # from the front
    if kept[1] is not None:
        assert cut[1].tolist() == list(range(1000 + second - kept[1], 1000 + second))


@pytest.mark.parametrize("cut", ["longer_end", "release_front"])
def test_texts_of_600_words_fit_the_model(tokenizer, cut):
    long = " ".join(["dogs"] * 600)
    corpus = make_corpus(make_store(2), [(0, long), (0, long), (1, CAPTIONS[0])])
    sampler = make_sampler(tokenizer, cut=cut, config={"max_position_embeddings": 140})
    for seed in range(10):
        sample = sampler.sample(corpus, 0, np.random.default_rng(seed))
        assert len(sample.text_ids) == len(sample.text_labels) == len(sample.text_segments) <= 140
        assert sample.text_ids[-1] == tokenizer.sep_id and sample.text_labels[-1] == IGNORE_INDEX
        assert cut == "release_front" or len(sample.text_ids) <= 128


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({"vocab_size": 20}, {}, "pieces, the model was made for 20; set vocab_size"),
        ({"with_match_head": False}, {}, "set sampling.text_form=words_only"),
        ({}, {"text_form": "three"}, "text_form must be one of two_captions, one_caption, words_only"),
        ({}, {"cut": "both"}, "cut must be one of longer_end, release_front"),
        ({}, {"max_pieces": 4}, "max_pieces must be at least 5"),
        ({}, {"mismatched_probability": 2}, "mismatched_probability must be in 0..1"),
    ],
)
def test_settings_that_do_not_fit(tokenizer, config, settings, message):
    with pytest.raises(ValueError, match=message):
        make_sampler(tokenizer, config=config, **settings)


def test_features_of_another_width(tokenizer):
    record = make_record("a", 0)
    make_sampler(tokenizer).check(record)
    with pytest.raises(ValueError, match="features have width 48, the model was made for 2048"):
        make_sampler(tokenizer, config={"region_feature_size": 2048}).check(record)
    with pytest.raises(ValueError, match="with six numbers of each box 54, the model was made for 48, without them"):
        make_sampler(tokenizer, box_numbers=True).check(record)
    make_sampler(tokenizer, box_numbers=True, config={"region_feature_size": 54}).check(record)


def test_single_captions_are_counted_or_refused(tmp_path):
    store = make_store(8)
    some = [(image_id, CAPTIONS[index]) for index, image_id in enumerate(store)]
    with pytest.raises(ValueError, match=r"no image has two captions.*--set sampling.text_form=one_caption"):
        run_pretrain(store, tmp_path / "single", some, system=SYSTEM)
    assert not (tmp_path / "single").exists()
    done = run_pretrain(store, tmp_path / "some", [*some, ("image-0", CAPTIONS[5]), ("image-1", " ")], system=SYSTEM)
    single = "7 captions of 9 without a second one of the image: B is always another image's"
    assert done.notes == ["1 empty caption left out (the first is of image-1)", single]
    one = VisualBertSampling(text_form="one_caption")
    store.vocabulary = {"classes": None, "attributes": None}  # a store without classes will do
    alone = run_pretrain(store, tmp_path / "one", some, system=SYSTEM, sampling=one)
    assert alone.notes == [] and alone.num_classes == 0


@pytest.mark.slow
def test_eight_images_can_be_learned_by_heart(tmp_path):
    store = make_store(8)
    rows = [(f"image-{index}", caption) for index, caption in enumerate(CAPTIONS)]
    rows += [(f"image-{index}", caption.replace("a ", "the ")) for index, caption in enumerate(CAPTIONS)]
    done = run_pretrain(
        store, tmp_path / "run", rows, system=SYSTEM,
        train_config=TrainConfig(steps=150, learning_rate=4e-3, warmup_steps=10, device="cpu"),
        data=DataConfig(batch_size=16, fixed_masks=True), model_overrides=LEARNER,
    )  # fmt: skip
    assert done.evaluation["masked_words"] < 0.2 and done.evaluation["matching_accuracy"] == 1.0
