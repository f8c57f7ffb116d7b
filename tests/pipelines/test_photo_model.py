"""A joint model that is asked about one photo."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from captioned_records import make_record
from end_to_end_examples import BOXES, CASES, FEATURES, joint_model, photos

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.analysis.probe import PhotoModel, pair_batch, probe
from roibeam.pipelines.data.batches.image_batch import photo_inputs
from roibeam.pipelines.data.vocabulary import Names
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

TEXT = "a cat in a hat"
SYSTEMS = ("vlbert", "vlbert-paper", "vilbert", "single-stream", "visualbert", "interbert", "imagebert")


def record() -> RegionRecord:
    """A record with features that must not be read."""
    made = make_record("a", 0, num_regions=4, width=FEATURES, distribution="none", image_feature=None)
    ids, scores = np.arange(4, dtype=np.uint16), np.linspace(0.9, 0.5, 4).astype(np.float32)
    return replace(made, height=48, width=64, boxes=BOXES[0], class_ids=ids, class_scores=scores)


@pytest.mark.parametrize("name", SYSTEMS)
def test_features_are_those_of_the_photo(name: str) -> None:
    joint = joint_model(name)
    batch = pair_batch(record(), torch.tensor([1, 5, 6, 2]))
    batch.masked_regions[0, 1] = True
    made = photo_inputs(photos()[:1], [BOXES[0]], [np.arange(4) == 1], joint.region_encoder, joint.choices)
    with torch.no_grad():
        ours = PhotoModel(joint, photos()[0]).encode(batch)
        rows: Any = {name: getattr(batch, name) for name in ("text_ids", "text_mask", "text_segments", "sample_ids")}
        theirs = joint.encode(type(batch)(**rows, region_features=torch.zeros(1, 4, 0), **made.regions), made.images)
    assert torch.equal(ours.text_states, theirs.text_states) and torch.equal(ours.region_states, theirs.region_states)
    assert joint.choices == CASES[name][1]


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_probed(name: str) -> None:
    tokenizer = load_tokenizer("captions", [TEXT, TEXT])
    joint = joint_model(name)
    said = probe(PhotoModel(joint, photos()[0]), record(), "a [MASK] in a hat", tokenizer, Names(()), top=2)
    assert len(said.words) == 1 and len(said.words[0].guesses) == 2
    if name == "visualbert":
        assert said.regions_remark == "this model predicts no classes of regions"
    else:
        assert [region.number for region in said.regions] == [0, 1, 2, 3]


def test_a_hidden_region_is_guessed_from_what_is_around_it() -> None:
    """What stands in the photo under the hidden box changes no answer about it."""
    tokenizer = load_tokenizer("captions", [TEXT, TEXT])
    joint = joint_model("vlbert")
    photo = photos()[0]
    other = photo.copy()
    other[3:31, 2:31] = 255 - other[3:31, 2:31]  # under box 0
    ours, theirs = (
        probe(PhotoModel(joint, each), record(), "a [MASK]", tokenizer, Names(()), hide=[0, 1])
        for each in (photo, other)
    )
    # 64 x 48 is the network's own size: nothing is resized, so nothing leaks.
    assert ours.regions[0] == theirs.regions[0] and ours.regions[1] != theirs.regions[1]
