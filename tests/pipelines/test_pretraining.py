"""A run of pre-training: its folder, how it goes on, second stages, shares of the images."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from captioned_records import CAPTIONS, NUM_CLASSES, FakeStore, make_record, make_store, pretrain_with
from objectives import small_model
from safetensors.torch import load_file
from toy_training import assert_equal_checkpoints

from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.pipelines.data.captions.caption_files import Caption
from roibeam.pipelines.data.captions.captioned_store import CaptionedStore
from roibeam.pipelines.data.captions.corpus import CaptionTable
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def store():
    return make_store(dtype=np.float16, image_feature=None)


def run_pretrain(store, folder, **changes):
    settings = {
        "train_config": TrainConfig(steps=6, learning_rate=1e-3, device="cpu", checkpoint_every=2),
        "data": DataConfig(batch_size=4),
        "model_overrides": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64},
    }
    rows = [Caption(CAPTIONS[index], f"photos/{image_id}.jpg") for index, image_id in enumerate(store)]
    given = CaptionedStore(store, [*rows, Caption("nothing to see", "gone")])
    return pretrain_with([given], folder, **(settings | changes))


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
    assert_equal_checkpoints(whole.training.checkpoint, parts.training.checkpoint)
    assert parts.evaluation == whole.evaluation

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
    assert run_pretrain(store, tmp_path / "b", num_classes=33, **settings).num_classes == 33
    # An extraction that kept neither: its manifest still tells.
    details = {"detector": {"num_classes": 44}}
    store.fingerprint = Fingerprint(feature_space_of(details), {}, details)
    assert run_pretrain(store, tmp_path / "c", **settings).num_classes == 44


# --- stages and shares ---


def test_a_second_stage_starts_where_the_first_ended(store, tmp_path):
    store = FakeStore(store)
    first = run_pretrain(store, tmp_path / "first")
    start = load_model(str(tmp_path / "first"))
    second = run_pretrain(
        store, tmp_path / "second", start=start, tokenizer_spec=str(start.tokenizer),
        model_overrides={"with_pooler": True, "with_relationship_head": False, "with_region_head": False},
        train_config=TrainConfig(steps=1, learning_rate=1e-12, device="cpu"),
    )  # fmt: skip
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
    article = "an" if other.startswith("i") else "a"
    model = small_model(other, dropout=0.0)
    model.save_pretrained(tmp_path / "first")
    words = (
        f"{tmp_path / 'first'} holds {article} {type(model).__name__}; VL-BERT starts from a "
        f"VLBertForPreTraining: choose its --system"
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

    one_step = {"train_config": TrainConfig(steps=1, device="cpu")}
    first = run_pretrain(store_of(trained), tmp_path / "first", **one_step)
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
    told = {"tokenizer_spec": str(start.tokenizer), "background": "last"}
    for number, (space, begun, more) in enumerate([(now, load_model(str(alone)), told), (trained, start, {})]):
        run = run_pretrain(store_of(space), tmp_path / f"run-{number}", start=begun, **one_step, **more)
        assert run.training.last["step"] == 1


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
