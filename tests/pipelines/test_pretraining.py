"""Captions and records to batches, and eight pairs over-fitted through the one loop."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from captioned_records import pretrain_with
from objectives import small_model
from safetensors.torch import load_file
from transformers import PretrainedConfig

from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.vlbert.config import VLBertConfig, vlbert_small
from roibeam.model.vlbert.embeddings import average_visible_regions
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.inputs.captioned.captioned_store import CaptionedStore
from roibeam.pipelines.inputs.captioned.corpus import Corpus
from roibeam.pipelines.model_files.model_checkpoint import load_model
from roibeam.pipelines.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler, VLBertSampling, make_sample
from roibeam.pipelines.pretraining.task import DataConfig, PretrainTask, evaluate
from roibeam.pipelines.sources.captions.caption_files import Caption
from roibeam.pipelines.sources.captions.caption_table import CaptionTable
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.train_config import TrainConfig

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "vlbert"
NUM_CLASSES, WIDTH = 20, 48
OF_DATA = ("batch_size", "fixed_masks")
CAPTIONS = [
    "two dogs run after a red ball on the beach",
    "an old man reads the newspaper under a tree",
    "a kitchen with white cupboards and a wooden table",
    "three children build a castle of sand",
    "the train stands in the station at night",
    "a plate of pasta with tomatoes and basil",
    "a woman in a blue coat rides her bicycle to work",
    "snow covers the roofs of a small mountain village",
]


def make_record(image_id, seed, *, num_regions=None, distribution="full", dtype=np.float16):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(6, 12)) if num_regions is None else num_regions
    corner, extent = generator.uniform(0, 200, (count, 2)), generator.uniform(20, 200, (count, 2))
    # Peaked as a detector's are; background takes part.
    probabilities = generator.dirichlet(np.full(NUM_CLASSES + 1, 0.05), count).astype(np.float16)
    stored = {"full": probabilities, "none": None, "top": top_two(probabilities)}[distribution]
    return RegionRecord(
        image_id=image_id,
        height=400,
        width=450,
        boxes=np.concatenate([corner, corner + extent], axis=1).astype(np.float32),
        features=generator.standard_normal((count, WIDTH)).astype(dtype),
        class_ids=probabilities[:, :-1].argmax(1).astype(np.uint16),
        class_scores=generator.random(count).astype(np.float32),
        class_distribution=stored,
    )


def top_two(probabilities):
    order = np.argsort(-probabilities.astype(np.float32), axis=1)[:, :2]
    top = np.take_along_axis(probabilities, order, axis=1)
    rest = np.clip(1 - top.astype(np.float32).sum(1), 0, 1).astype(np.float16)
    return TopKDistribution(order.astype(np.uint16), top, rest, NUM_CLASSES)


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


def first_batches(task, count, *, start=0, rank=0, num_ranks=1):
    stream = task.batches(start, rank=rank, num_ranks=num_ranks)
    return [next(stream) for _ in range(count)]


def rows_of(batches):
    """Each row of some batches without its padding, with its name."""
    rows = []
    for batch in batches:
        for row in range(batch.batch_size):
            text, regions = batch.text_mask[row], batch.region_mask[row]
            rows.append(
                (
                    batch.sample_ids[row],
                    batch.text_ids[row, text].tolist(),
                    batch.text_labels[row, text].tolist(),
                    batch.region_features[row, regions].tolist(),
                    batch.masked_regions[row, regions].tolist(),
                    batch.row(row).region_targets.tolist(),
                )
            )
    return rows


# --- the sample stream ---


def test_samples_do_not_depend_on_batch_size_or_processes(store, tokenizer):
    alone = rows_of(first_batches(make_task(store, tokenizer, batch_size=1), 24))
    together = rows_of(first_batches(make_task(store, tokenizer, batch_size=6), 4))
    assert alone == together
    task = make_task(store, tokenizer, batch_size=3)
    ranks = [first_batches(task, 4, rank=rank, num_ranks=2) for rank in range(2)]
    interleaved = rows_of([batch for pair in zip(*ranks, strict=True) for batch in pair])
    assert interleaved == alone


def test_stream_starts_anywhere(store, tokenizer):
    task = make_task(store, tokenizer, batch_size=1)
    assert rows_of(first_batches(task, 5, start=13)) == rows_of(first_batches(task, 18))[13:]


def test_every_epoch_shows_each_caption_once_in_another_order_with_other_masks(store, tokenizer):
    rows = rows_of(first_batches(make_task(store, tokenizer, batch_size=8), 2))
    first, second = rows[:8], rows[8:]
    assert sorted(row[0] for row in first) == sorted(row[0] for row in second) == sorted(store)
    assert [row[0] for row in first] != [row[0] for row in second]
    labels = [{row[0]: row[2] for row in epoch} for epoch in (first, second)]
    assert labels[0] != labels[1]
    other_seed = rows_of(first_batches(make_task(store, tokenizer, batch_size=8, seed=1), 1))
    assert {row[0]: row[2] for row in other_seed} != labels[0]


def test_fixed_masks_stay(store, tokenizer):
    task = make_task(store, tokenizer, batch_size=8, fixed_masks=True)
    rows = [sorted(rows_of([batch])) for batch in [*first_batches(task, 2), *task.evaluation_batches(8)]]
    assert rows[0] == rows[1] == rows[2]


# --- one sample ---


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
        record,
        text,
        labels,
        masked,
        predicted,
        num_classes=num_classes,
        max_elements=max_elements,
        max_text=max_text,
    )


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
    sample = sample_of(
        record, masked=nothing, predicted=nothing, max_elements=max_elements, pieces=pieces, max_text=max_text
    )
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


@pytest.mark.parametrize("case, seq_len", [("long", 64), ("trunc", 16)])
def test_samples_are_those_of_the_release(case, seq_len):
    with np.load(GOLDENS / "dataset_item.npz") as golden:
        scores, count = golden["in/class_scores"], len(golden["in/boxes"])
        wanted = {name: golden[f"out/{case}_{name}"] for name in ("boxes_and_features", "mvrc_ops", "mvrc_labels")}
        width, height = golden["in/image_wh"]
        record = RegionRecord(
            image_id="golden",
            height=int(height),
            width=int(width),
            boxes=golden["in/boxes"],
            features=golden["in/features"],
            class_ids=np.zeros(count, np.uint16),
            class_scores=scores.max(1),  # the release orders by the highest probability, background included
            class_distribution=scores.astype(np.float16),  # exact but for the smallest
        )
        words, labels = golden[f"out/{case}_text"], golden[f"out/{case}_mlm_labels"]
    kept = len(wanted["mvrc_ops"]) - 1
    masked, predicted = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    masked[:kept] = wanted["mvrc_ops"][1:] == 1
    predicted[:kept] = wanted["mvrc_labels"][1:].sum(1) > 0.9
    # Which cut-off regions were masked shows in the whole-image feature only: find the choice that explains it.
    ordered = record.features[np.argsort(-record.class_scores, kind="stable")].astype(np.float64)
    whole = wanted["boxes_and_features"][0, 4:]
    masked[kept:] = explain_masks(ordered, masked, kept, whole)
    text = np.append(np.arange(20) + 1000, 102)[-12:] if case == "trunc" else words
    sample = make_sample(
        record,
        text,
        np.full(len(text), IGNORE_INDEX),
        masked,
        predicted,
        num_classes=scores.shape[1] - 1,
        max_elements=seq_len,
        max_text=100,
    )
    assert len(sample.text_ids) == len(words) == len(labels) and sample.text_ids[-1] == words[-1]
    assert len(sample.boxes) == kept
    scale = 1.6  # the release resizes to 600 first, and clips boxes to width - 1 there
    scaled = np.minimum(sample.boxes * scale, [width * scale - 1, height * scale - 1] * 2)
    np.testing.assert_allclose(scaled, wanted["boxes_and_features"][1:, :4], rtol=0, atol=1e-3)
    np.testing.assert_array_equal(sample.features.numpy(), wanted["boxes_and_features"][1:, 4:])
    np.testing.assert_allclose(sample.whole_image.numpy(), whole, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(sample.predicted, predicted[:kept])
    np.testing.assert_allclose(sample.targets.numpy(), wanted["mvrc_labels"][1:], rtol=0, atol=1e-6)


def explain_masks(features, masked, kept, whole):
    hidden = len(features) - kept
    for number in range(2**hidden):
        tail = np.array([number >> bit & 1 for bit in range(hidden)], dtype=bool)
        every = np.append(masked[:kept], tail)
        if np.abs(features[~every].sum(0) / ((~every).sum() + 1e-5) - whole).max() < 1e-5:
            return tail
    raise AssertionError("no choice of masked regions gives the golden's whole-image feature")


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


# --- a run ---


class FakeStore(dict):
    """Records by id with what else a store tells about itself."""

    path = Path("fake-store")
    manifest = SimpleNamespace(content_digest="fake content")
    fingerprint = Fingerprint("imported:fake", numerics={"torch": "any"})
    vocabulary: ClassVar[dict] = {"classes": [f"class {index}" for index in range(NUM_CLASSES)], "attributes": None}

    def ids(self):
        return iter(self)


def run_pretrain(store, folder, **changes):
    settings = {
        "train_config": TrainConfig(steps=6, learning_rate=1e-3, device="cpu", checkpoint_every=2),
        "data": DataConfig(batch_size=4),
        "model_overrides": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64},
    }
    rows = [Caption(CAPTIONS[index], f"photos/{image_id}.jpg") for index, image_id in enumerate(store)]
    return pretrain_with(
        [CaptionedStore(store, [*rows, Caption("nothing to see", "gone")])], folder, **(settings | changes)
    )


def test_pretrain_writes_a_run_that_goes_on_in_the_same_bits(store, tmp_path):
    store = FakeStore(store)
    whole = run_pretrain(store, tmp_path / "whole")
    join = whole.sources[0].join
    assert (join.joined, join.by_rule["path"], join.without_image) == (8, 8, 1)
    assert whole.num_classes == NUM_CLASSES and whole.training.step == 6
    assert set(whole.evaluation) >= {"masked_words", "masked_regions"}
    resolved = json.loads((whole.training.checkpoint / "config.json").read_text())
    assert resolved["task"]["feature_space"] == "imported:fake"
    assert resolved["task"]["model"]["hidden_size"] == 32 and resolved["recorded"]["sources"][0]["join"]["joined"] == 8

    run_pretrain(store, tmp_path / "parts", stop_at_step=3)
    parts = run_pretrain(store, tmp_path / "parts", resume=True)
    left, right = (load_file(run.training.checkpoint / "model" / "model.safetensors") for run in (whole, parts))
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert parts.evaluation == whole.evaluation

    with pytest.raises(ValueError, match="already holds a run"):
        run_pretrain(store, tmp_path / "parts")
    other = FakeStore(store)
    other.fingerprint = Fingerprint("imported:other")
    with pytest.raises(ValueError, match=r"task.feature_space: 'imported:fake' -> 'imported:other'"):
        run_pretrain(other, tmp_path / "parts", resume=True)
    # Of imported features the format is no proof: another file of it may be of another detector.
    other = FakeStore(store)
    other.manifest = SimpleNamespace(content_digest="other content")
    with pytest.raises(ValueError, match=r"task.imported_features: \['fake content'\] -> \['other content'\]"):
        run_pretrain(other, tmp_path / "parts", resume=True)
    other = FakeStore(store)
    other.vocabulary = {**store.vocabulary, "classes": store.vocabulary["classes"][::-1]}
    with pytest.raises(ValueError, match=r"other class names than that which .* was trained on: class 7 of one may"):
        run_pretrain(other, tmp_path / "next", start=load_model(str(tmp_path / "parts")))


def test_number_of_classes_comes_from_names_then_distributions(tmp_path):
    store = FakeStore({"image-0": make_record("image-0", 0, distribution="top")})
    store.vocabulary = {"classes": None, "attributes": None}
    settings = {"train_config": TrainConfig(steps=1, device="cpu")}
    assert run_pretrain(store, tmp_path / "a", **settings).num_classes == NUM_CLASSES
    store["image-0"] = make_record("image-0", 0, distribution="none")
    with pytest.raises(ValueError, match="say how many foreground classes its detector has"):
        run_pretrain(store, tmp_path / "b", **settings)
    assert run_pretrain(store, tmp_path / "b", num_classes=33, **settings).num_classes == 33


# --- stages and shares ---


def test_a_second_stage_starts_where_the_first_ended(store, tmp_path):
    store = FakeStore(store)
    first = run_pretrain(store, tmp_path / "first")
    start = load_model(str(tmp_path / "first"))
    second = run_pretrain(
        store,
        tmp_path / "second",
        start=start,
        tokenizer_spec=str(start.tokenizer),
        model_overrides={"with_pooler": True, "with_relationship_head": False, "with_region_head": False},
        train_config=TrainConfig(steps=1, learning_rate=1e-12, device="cpu"),
    )
    left, right = (load_file(run.training.checkpoint / "model" / "model.safetensors") for run in (first, second))
    new = {name for name in right if name not in left}
    assert new == {"vlbert.pooler.dense.weight", "vlbert.pooler.dense.bias"}
    assert left.keys() - right.keys() == {name for name in left if name.startswith("masked_region_head.")}
    for name in right.keys() - new:
        torch.testing.assert_close(right[name], left[name], rtol=0, atol=1e-9)
    assert second.training.last["step"] == 1 and "masked_regions" not in second.training.last

    with pytest.raises(ValueError, match=r" is \(\d+, 32\), these settings make it \(\d+, 64\)"):
        run_pretrain(store, tmp_path / "third", start=start, model_overrides={"hidden_size": 64})


@pytest.mark.parametrize("other", ["vilbert", "visualbert", "imagebert", "interbert"])
def test_a_second_stage_is_of_the_system_of_the_first(store, tmp_path, other):
    model = small_model(other, dropout=0.0)
    model.save_pretrained(tmp_path / "first")
    words = (
        f"{tmp_path / 'first'} holds a {type(model).__name__}; VL-BERT starts from a VLBertForPreTraining: choose its "
        f"--system"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        run_pretrain(FakeStore(store), tmp_path / "second", start=load_model(str(tmp_path / "first")))


@pytest.mark.parametrize(
    ("trained", "now"),
    [
        (feature_space_of({"detector": "a"}), feature_space_of({"detector": "b"})),
        ("imported:butd-tsv", "imported:uniter-lmdb"),
        ("imported:butd-tsv", feature_space_of({"detector": "a"})),
    ],
    ids=("extracted", "imported", "extracted-after-imported"),
)
def test_a_second_stage_reads_features_of_the_space_of_the_first(store, tmp_path, trained, now):
    def store_of(space):
        made = FakeStore(store)
        made.fingerprint = Fingerprint(space)
        return made

    first = run_pretrain(store_of(trained), tmp_path / "first")
    start = load_model(str(tmp_path / "first"))
    words = (
        f"store fake-store has features of the space {now[:24]}, "
        f"{first.training.checkpoint / 'model'} was trained on {trained[:24]}; extract these images with the detector "
        f"and options of its training store"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        run_pretrain(store_of(now), tmp_path / "second", start=start)
    assert not (tmp_path / "second").exists()
    # A model's folder by itself, as an official file, does not say what it was trained on.
    alone = tmp_path / "model"
    shutil.copytree(start.source, alone)
    told = {"tokenizer_spec": str(start.tokenizer), "background_first": False}
    for number, (space, begun, more) in enumerate([(now, load_model(str(alone)), told), (trained, start, {})]):
        run = run_pretrain(store_of(space), tmp_path / f"run-{number}", start=begun, **more)
        assert run.training.last["step"] == 6


def test_smaller_shares_of_the_images_lie_inside_larger_ones():
    ids = [f"image-{index}" for index in range(40)]
    rows = CaptionTable(ids, [(index // 3, f"caption {index}") for index in range(120)])
    shares = {share: rows.share_of_images(share, seed=7) for share in (0.25, 0.5, 1.0)}
    images = {share: set(table.captioned_ids()) for share, table in shares.items()}
    assert [len(images[share]) for share in shares] == [10, 20, 40]
    assert images[0.25] < images[0.5] < images[1.0]
    assert list(shares[1.0]) == list(rows)
    assert list(shares[0.25]) == [row for row in rows if row[0] in images[0.25]]  # with all of their captions, in order
    assert set(rows.share_of_images(0.25, seed=8).captioned_ids()) != images[0.25]
    assert len(rows.share_of_images(1e-6, seed=7)) == 3


# --- learning ---


def test_eight_pairs_can_be_learned_by_heart(store, tokenizer, tmp_path):
    task = make_task(store, tokenizer, batch_size=8, fixed_masks=True, word_probability=0.3, region_probability=0.3)
    settings = TrainConfig(steps=120, learning_rate=2e-3, warmup_steps=10, device="cpu")
    train(task, settings, tmp_path / "run", description={})
    first = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[0])
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
