"""Small made records with two captions each, in memory, as pre-training reads them."""

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
from tiny_commands import TINY

from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.pipelines.data.captions.caption_files import Caption
from roibeam.pipelines.data.captions.captioned_store import CaptionedStore
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.pretraining.pretrain_run import pretrain
from roibeam.pipelines.pretraining.run_setup import RunSettings
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import ModelChoice
from roibeam.pipelines.training.train_config import TrainConfig

NUM_CLASSES, WIDTH, GLOBAL_WIDTH = 20, 48, 7
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


def make_record(image_id, seed, *, num_regions=None, width=WIDTH, dtype=np.float32, distribution="full", **changes):
    """`width` of the features; `distribution`: "full", "top" or "none"; `changes` of the record's fields."""
    random = np.random.default_rng(seed)
    count = int(random.integers(6, 12)) if num_regions is None else num_regions
    corner, extent = random.uniform(0, 200, (count, 2)), random.uniform(20, 200, (count, 2))
    # Peaked as a detector's are; background takes part.
    probabilities = random.dirichlet(np.full(NUM_CLASSES + 1, 0.05), count).astype(np.float16)
    record = RegionRecord(
        image_id=image_id, height=400, width=450,
        boxes=np.concatenate([corner, corner + extent], axis=1).astype(np.float32),
        features=random.standard_normal((count, width)).astype(dtype),
        class_ids=probabilities[:, :-1].argmax(1).astype(np.uint16),
        class_scores=random.random(count).astype(np.float32),
        class_distribution={"full": probabilities, "none": None, "top": top_two(probabilities)}[distribution],
        image_feature=random.standard_normal(GLOBAL_WIDTH).astype(dtype),
    )  # fmt: skip
    return replace(record, **changes)


def top_two(probabilities):
    order = np.argsort(-probabilities.astype(np.float32), axis=1)[:, :2]
    top = np.take_along_axis(probabilities, order, axis=1)
    rest = np.clip(1 - top.astype(np.float32).sum(1), 0, 1).astype(np.float16)
    return TopKDistribution(order.astype(np.uint16), top, rest, NUM_CLASSES)


class FakeStore(dict):
    """Records by id with what else a store tells about itself."""

    path = Path("fake-store")
    folder = LocalFolder(path)
    manifest = SimpleNamespace(content_digest="fake content", config={}, classes=None)
    fingerprint = Fingerprint("imported:fake", numerics={"torch": "any"})
    vocabulary: ClassVar[dict] = {"classes": [f"class {index}" for index in range(NUM_CLASSES)], "attributes": None}

    feature_dim = WIDTH

    def ids(self):
        return iter(self)

    def num_regions_of(self, image_ids):
        return np.array([self[image_id].num_regions for image_id in image_ids], np.int32)


def make_store(count=8, **options):
    return FakeStore({f"image-{index}": make_record(f"image-{index}", index, **options) for index in range(count)})


def make_corpus(store, captions):
    """`captions`: (place of the image, caption)."""
    return Corpus(store, CaptionTable(list(store), captions))


def run_pretrain(store, folder, captions=None, **changes):
    """`pretrain` with a tiny model on eight images with one caption each, or the captions given as (id, text)."""
    settings = {
        "train_config": TrainConfig(steps=2, learning_rate=1e-3, device="cpu"),
        "data": DataConfig(batch_size=4),
        "model_overrides": {},
    }
    rows = [(image_id, CAPTIONS[index % 8]) for index, image_id in enumerate(store)] if captions is None else captions
    settings |= changes
    settings["model_overrides"] = TINY | settings["model_overrides"]
    return pretrain_with([captioned(store, rows)], folder, **settings)


def pretrain_with(sources, folder, **settings):
    """`pretrain` with fields of `RunSettings`, of `ModelChoice` (as `model_overrides` its overrides), and what is read
    beside the sources, by their names."""
    if "model_overrides" in settings:
        settings["overrides"] = settings.pop("model_overrides")
    run, choice = (
        kind(**{each.name: settings.pop(each.name) for each in fields(kind) if each.name in settings})
        for kind in (RunSettings, ModelChoice)
    )
    return pretrain(sources, folder, run, choice, **settings)


def captioned(store, rows, **options):
    """`rows`: (id, text)."""
    return CaptionedStore(store, [Caption(text, image_id) for image_id, text in rows], **options)


# A model that is to learn by heart; a dropout would keep it from it.
LEARNER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
LEARNER |= {"hidden_dropout": 0.0, "attention_dropout": 0.0}
