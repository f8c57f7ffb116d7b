"""A run that goes on from a model: words and classes of regions stay what they were."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from captioned_records import CAPTIONS, NUM_CLASSES, TINY, WIDTH, make_store, run_pretrain

from roibeam.model.visualbert.model import VisualBertForPreTraining, visualbert_small
from roibeam.model.vlbert.config import vlbert_small
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.pretraining.systems import SYSTEMS, continued_model
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint, load_model
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

ONE_STEP = {"train_config": TrainConfig(steps=1, device="cpu")}


def a_model(folder: Path) -> ModelCheckpoint:
    """As published ones are: no run, no tokenizer beside it."""
    tokenizer = load_tokenizer("captions", CAPTIONS)
    sizes = {"vocab_size": tokenizer.vocab_size, "region_feature_size": WIDTH, "num_region_labels": NUM_CLASSES + 1}
    VLBertForPreTraining(vlbert_small(**{**TINY, **sizes})).save_pretrained(folder)
    tokenizer.save(folder.parent / "tokenizer")
    return load_model(str(folder))


def test_the_words_of_a_model_are_not_made_anew(tmp_path: Path) -> None:
    start = a_model(tmp_path / "model")
    with pytest.raises(ValueError, match=r"--tokenizer is missing: .*model has none beside it"):
        run_pretrain(make_store(), tmp_path / "run", start=start, background="first", **ONE_STEP)
    assert not (tmp_path / "run").exists()
    spec = str(tmp_path / "tokenizer")
    run_pretrain(make_store(), tmp_path / "run", start=start, background="first", tokenizer_spec=spec, **ONE_STEP)


def test_the_words_of_a_run_are_those_of_the_run_before(tmp_path: Path) -> None:
    run_pretrain(make_store(), tmp_path / "one", **ONE_STEP)
    start = load_model(str(tmp_path / "one"))
    load_tokenizer("captions", [*CAPTIONS, "llama llama"]).save(tmp_path / "other")
    with pytest.raises(ValueError, match=r"is not the one that .* was trained with; leave --tokenizer out"):
        run_pretrain(make_store(), tmp_path / "two", start=start, tokenizer_spec=str(tmp_path / "other"), **ONE_STEP)
    run_pretrain(make_store(), tmp_path / "two", start=start, tokenizer_spec=str(start.tokenizer), **ONE_STEP)


def head(model: Any) -> torch.Tensor:
    decoder = model.masked_region_head.decoder
    return torch.cat([decoder.weight, decoder.bias[:, None]], dim=1)


def test_background_is_moved_to_the_end_of_published_classes(tmp_path: Path) -> None:
    start, system = a_model(tmp_path / "model"), SYSTEMS["vlbert"]
    torch.nn.init.normal_(start.model.masked_region_head.decoder.bias)
    with pytest.raises(ValueError, match=f"its {NUM_CLASSES + 1} region classes start with background"):
        continued_model(start, system, {})
    moved = continued_model(start, system, {}, background="first")
    assert torch.equal(head(moved), torch.cat([head(start.model)[1:], head(start.model)[:1]]))
    assert torch.equal(head(continued_model(start, system, {}, background="last")), head(start.model))
    with pytest.raises(ValueError, match=r"--background none: .*: it predicts background too; leave it out"):
        continued_model(start, system, {}, background="none")
    with pytest.raises(ValueError, match="--background 'middle': choose one of first, last, none"):
        continued_model(start, system, {}, background="middle")


def test_where_nothing_is_to_be_said_of_background(tmp_path: Path) -> None:
    run_pretrain(make_store(), tmp_path / "one", **ONE_STEP)
    of_run = load_model(str(tmp_path / "one"))
    assert torch.equal(head(continued_model(of_run, SYSTEMS["vlbert"], {})), head(of_run.model))
    with pytest.raises(ValueError, match="a run of roibeam pretrain has background last; leave it out"):
        continued_model(of_run, SYSTEMS["vlbert"], {}, background="first")
    wordy = VisualBertForPreTraining(visualbert_small(region_feature_size=WIDTH))
    published = dataclasses.replace(of_run, model=wordy, source=tmp_path / "published")
    continued_model(published, SYSTEMS["visualbert"], {})
    with pytest.raises(ValueError, match="it predicts no classes of regions; leave it out"):
        continued_model(published, SYSTEMS["visualbert"], {}, background="first")
