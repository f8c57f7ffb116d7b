"""Captions and records to batches of VL-BERT, and eight pairs over-fitted through the one loop."""

import dataclasses
import functools
import math

import captioned_records
import numpy as np
import pytest
import torch
from captioned_records import CAPTIONS, NUM_CLASSES, WIDTH
from small_pretraining import digest
from toy_training import log_of
from transformers import PretrainedConfig

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.vlbert.config import VLBertConfig, vlbert_small
from roibeam.model.vlbert.embeddings import average_visible_regions
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, VLBertSampling
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler, make_sample
from roibeam.pipelines.pretraining.task import PretrainTask, evaluate
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.train_config import TrainConfig

OF_DATA = ("batch_size", "fixed_masks")
make_record = functools.partial(captioned_records.make_record, dtype=np.float16, image_feature=None)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def store():
    return {f"image-{index}": make_record(f"image-{index}", index) for index in range(8)}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("captions", CAPTIONS * 2)  # twice: every word is common enough to stay whole


def make_task(store, tokenizer, *, seed=0, num_classes=NUM_CLASSES, sizes=None, **settings):
    torch.manual_seed(0)
    defaults = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    defaults |= {"vocab_size": tokenizer.vocab_size, "region_feature_size": WIDTH, "coordinate_embedding_size": 64}
    defaults |= {"num_region_labels": num_classes + 1}
    defaults |= {"hidden_dropout": 0.0, "attention_dropout": 0.0, "region_dropout": 0.0}
    model = VLBertForPreTraining(vlbert_small(**(defaults | (sizes or {}))))
    rows = CaptionTable(list(store), ((index, CAPTIONS[index % 8]) for index in range(len(store))))
    data = DataConfig(**({"batch_size": 4} | {name: settings.pop(name) for name in list(settings) if name in OF_DATA}))
    sampler = VLBertSampler(VLBertSampling(**settings), tokenizer, model.config, num_classes=num_classes)
    return PretrainTask(model, Corpus(store, rows), sampler, data, pad_id=tokenizer.pad_id, seed=seed)


def first_batches(task, count):
    stream = task.batches(0, rank=0, num_ranks=1)
    return [next(stream) for _ in range(count)]


def test_another_seed_draws_other_masks(store, tokenizer):
    drawn = []
    for seed in (0, 1):
        (batch,) = first_batches(make_task(store, tokenizer, batch_size=8, seed=seed), 1)
        drawn.append({name: digest(batch.row(row)) for row, name in enumerate(batch.sample_ids)})
    assert drawn[0].keys() == drawn[1].keys() and not set(drawn[0].values()) & set(drawn[1].values())


def test_fixed_masks_stay(store, tokenizer):
    task = make_task(store, tokenizer, batch_size=8, fixed_masks=True)
    batches = [*first_batches(task, 2), *task.evaluation_batches(8)]
    rows = [sorted(digest(batch.row(row)) for row in range(8)) for batch in batches]
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize("distribution", ["full", "top", "none"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_regions_come_by_score_with_their_targets(distribution, dtype):
    record = make_record("a", 3, num_regions=6, distribution=distribution, dtype=dtype)
    everything = np.ones(6, dtype=bool)
    sample = sample_of(record, masked=~everything, predicted=everything)
    order = np.argsort(-record.class_scores)
    np.testing.assert_array_equal(sample.boxes, record.boxes[order])
    np.testing.assert_array_equal(sample.features.numpy(), record.features[order].astype(np.float32))
    sums = sample.targets.sum(1)
    torch.testing.assert_close(sums, torch.ones(6), rtol=0, atol=2e-3)  # half precision
    if distribution == "none":
        assert sample.targets.argmax(1).tolist() == record.class_ids[order].tolist()
    else:
        whole = make_record("a", 3, num_regions=6).class_distribution[order].astype(np.float32)
        assert sample.targets.argmax(1).tolist() == whole.argmax(1).tolist()


def sample_of(record, *, masked, predicted, max_elements=0, pieces=8, max_text=100, num_classes=NUM_CLASSES):
    text = np.arange(100, 100 + pieces)
    labels = np.full(pieces, IGNORE_INDEX)
    return make_sample(
        record, text, labels, masked, predicted, num_classes=num_classes, max_elements=max_elements,
        max_text=max_text,
    )  # fmt: skip


@pytest.mark.parametrize(
    "pieces, num_regions, max_elements, max_text, kept",
    [
        (8, 9, 0, 100, (8, 9)),  # no limit
        (8, 9, 18, 100, (8, 9)),  # 8 + whole image + 9 fits
        (8, 9, 17, 100, (8, 8)),
        (12, 12, 16, 100, (8, 7)),  # the golden's case: 8 pieces, whole image, 7 regions
        (40, 3, 16, 100, (12, 3)),  # only text is long
        (3, 40, 16, 100, (3, 12)),
        (40, 0, 16, 100, (15, 0)),  # an image without regions
        (40, 3, 0, 10, (10, 3)),  # what the model takes
    ],
)
def test_cut(pieces, num_regions, max_elements, max_text, kept):
    nothing = np.zeros(num_regions, dtype=bool)
    record = make_record("a", 0, num_regions=num_regions)
    limits = {"max_elements": max_elements, "pieces": pieces, "max_text": max_text}
    sample = sample_of(record, masked=nothing, predicted=nothing, **limits)
    assert (len(sample.text_ids), len(sample.boxes)) == kept
    assert len(sample.text_labels) == kept[0] and len(sample.targets) == len(sample.features) == kept[1]
    assert sample.text_ids[-1] == 100 + pieces - 1 and sample.text_ids[0] == 100
    # The whole image is the mean of all regions, not only of those kept.
    if num_regions:
        mean = torch.from_numpy(record.features).float().mean(0)
        torch.testing.assert_close(sample.whole_image, mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_whole_image_is_what_the_model_would_make_of_the_same_regions(dtype):
    record = make_record("a", 5, num_regions=90, dtype=dtype)
    before, masked = record.features.copy(), np.arange(90) % 4 == 1
    sample = sample_of(record, masked=masked, predicted=masked)
    shown = torch.from_numpy(record.features[np.argsort(-record.class_scores)]).float()
    wanted = average_visible_regions(shown, torch.ones(90, dtype=torch.bool), torch.from_numpy(masked))
    assert torch.equal(sample.whole_image, wanted)
    np.testing.assert_array_equal(record.features, before)


@pytest.mark.parametrize(
    "change, num_classes, message",
    [
        ({}, 30, "class distribution has 21 columns, the model was made for 30 classes"),
        ({"class_distribution": None, "class_ids": np.full(4, 25, np.uint16)}, 20, "has class 25"),
        ({"class_distribution": np.full((4, 21), 0.01, np.float16)}, 20, "sums to 0.210, not 1"),
    ],
)
def test_targets_that_do_not_fit(change, num_classes, message):
    record = dataclasses.replace(make_record("a", 0, num_regions=4), **change)
    everything = np.ones(4, dtype=bool)
    with pytest.raises(ValueError, match=f"'a': .*{message}"):
        sample_of(record, masked=everything, predicted=everything, num_classes=num_classes)


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"region_feature_size": 2048}, "features have width 48, the model was made for 2048"),
        ({"vocab_size": 20}, "pieces, the model was made for 20"),
        ({"num_region_labels": 5}, "set num_region_labels to 21"),
    ],
)
def test_a_model_that_does_not_fit_the_store(store, tokenizer, sizes, message):
    with pytest.raises(ValueError, match=message):
        make_task(store, tokenizer, sizes=sizes)


def test_images_without_regions_train(tokenizer):
    empty = {"a": make_record("a", 0, num_regions=0), "b": make_record("b", 1, num_regions=0)}
    task = make_task(empty, tokenizer)
    batch = first_batches(task, 1)[0]
    output = task.losses(task.model, batch)
    assert batch.region_features.shape == (4, 0, WIDTH)
    assert output.losses["masked_regions"].mean == 0 and output.losses["masked_words"].mean.isfinite()


@pytest.mark.slow
def test_eight_pairs_can_be_learned_by_heart(store, tokenizer, tmp_path):
    task = make_task(store, tokenizer, batch_size=8, fixed_masks=True, word_probability=0.3, region_probability=0.3)
    settings = TrainConfig(steps=120, learning_rate=2e-3, warmup_steps=10, device="cpu")
    train(task, settings, tmp_path / "run", description={})
    first = log_of(tmp_path / "run")[0]
    assert first["masked_words"] == pytest.approx(math.log(tokenizer.vocab_size), rel=0.1)
    assert first["masked_regions"] == pytest.approx(math.log(NUM_CLASSES + 1), rel=0.1)
    result = evaluate(task)
    assert result["masked_words"] < 0.1
    assert result["masked_region_accuracy"] > 0.95


def test_a_checkpoint_is_a_model_folder(store, tokenizer, tmp_path):
    task = make_task(store, tokenizer)
    result = train(task, TrainConfig(steps=2, device="cpu"), tmp_path / "run", description={})
    loaded = VLBertForPreTraining.from_pretrained(result.checkpoint / "model")
    # Hugging Face's own fields (dtype, its version) are not the same in a file.
    fields = {field.name for field in dataclasses.fields(VLBertConfig)}
    fields -= {field.name for field in dataclasses.fields(PretrainedConfig)}
    assert {"vocab_size", "masked_appearance"} <= fields
    assert all(getattr(loaded.config, name) == getattr(task.model.config, name) for name in fields)
    for name, value in task.model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
