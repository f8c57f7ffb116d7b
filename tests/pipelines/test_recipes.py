"""The published runs: each can be built, says where it is from, and its toy variant trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.pretraining.recipes import RECIPES, recipe_named
from pipelines.pretraining.systems import SYSTEMS
from pipelines.toyworld.draw import draw_samples
from pipelines.train_config import TrainConfig

Cli = Callable[..., Any]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_be_built(name: str) -> None:
    recipe = RECIPES[name]
    system = SYSTEMS[recipe.system]
    assert isinstance(recipe.sampling, system.sampling)
    for build in (recipe.build, recipe.toy_build):
        assert isinstance(build(vocab_size=100), system.model_class.config_class)
    large, toy = recipe.build(), recipe.toy_build()
    assert toy.hidden_size < large.hidden_size
    choices = {field for field in large.to_dict() if isinstance(large.to_dict()[field], str | bool)}
    assert {field: toy.to_dict()[field] for field in choices} == {field: large.to_dict()[field] for field in choices}
    assert not recipe.after or recipe.after in RECIPES
    assert recipe.source and recipe.summary and not recipe.summary.endswith(".")
    steps = recipe.train_config(1_000_000, micro_batch=8, processes=1).steps
    assert steps == -(-recipe.epochs * 1_000_000 // recipe.batch_size)
    assert isinstance(recipe.toy_config(micro_batch=8), TrainConfig)


def test_batch_and_rate_do_not_depend_on_the_processes() -> None:
    recipe = recipe_named("vlbert-base-captions")
    alone = recipe.train_config(3_300_000, micro_batch=32, processes=1)
    eight = recipe.train_config(3_300_000, micro_batch=32, processes=8)
    assert (alone.accumulation, eight.accumulation) == (8, 1)
    assert alone.learning_rate == eight.learning_rate == pytest.approx(2.56e-5)
    assert alone.steps == eight.steps == 128_907 and alone.warmup_steps == 8000
    assert (recipe.at_once(1), recipe.at_once(16), recipe.at_once(3)) == (32, 16, 32)
    assert recipe_named("imagebert-cc").at_once(1) == 24
    with pytest.raises(ValueError, match="256 captions is no multiple of 100 on 1 processes"):
        recipe.train_config(3_300_000, micro_batch=100, processes=1)


def test_the_list_and_one_of_them(roibeam: Cli) -> None:
    listed = roibeam("recipes")
    assert listed.code == 0 and [line.split()[0] for line in listed.out.splitlines()] == list(RECIPES)
    one = roibeam("recipes", "vlbert-paper")
    assert "VQA, accuracy, test-dev: 70.5 (Table 3)" in one.out and "left open" in one.out
    assert json.loads(roibeam("recipes", "vlbert-large", "--json").out)["vlbert-large"]["model"]["hidden_size"] == 1024
    unknown = roibeam("recipes", "vlbert-huge")
    assert unknown.code == 1 and "near: " in unknown.err


def test_a_toy_variant_trains(roibeam: Cli, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    captions = draw_samples(tmp_path / "samples", count=8)
    assert roibeam("extract", tmp_path / "samples" / "images", tmp_path / "store", *tiny_network).code == 0
    options = ("--store", tmp_path / "store", "--captions", captions, "--recipe", "vlbert-base-captions")
    options += ("--batch-size", 4, "--steps", 2)
    done = roibeam("pretrain", tmp_path / "run", *options, "--toy")
    assert done.code == 0, done.err
    resolved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert resolved["train"]["accumulation"] == 8 and resolved["train"]["optimizer"] == "adamw-transformers"
    assert resolved["task"]["model"]["hidden_size"] == 256
    for wrong, words in (
        (("--system", "vlbert"), "leave --system and --model out"),
        (("--recipe", "vlbert-basis"), "near: vlbert-base"),
        (("--from-bert", tmp_path), "expected a folder with config.json"),
    ):
        refused = roibeam("pretrain", tmp_path / "other", *options, *wrong)
        assert refused.code == 1 and words in refused.err, refused.err
