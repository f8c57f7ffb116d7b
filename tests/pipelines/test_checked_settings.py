"""Settings looked at without torch: what the model would refuse in the same words, and nothing that data could fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roibeam.pipelines.pretraining.recipes.named_systems import NAMED_SYSTEMS
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.pretraining.requests.checked_settings import check_settings
from roibeam.pipelines.pretraining.requests.request import PretrainRequest, RequestedModel, RequestedTraining


def check(model: RequestedModel, *settings: str, goes_on: bool = False) -> None:
    request = PretrainRequest(Path("run"), model=model, training=RequestedTraining(settings=settings))
    check_settings(request, None if model.recipe is None else RECIPES[model.recipe], None, goes_on=goes_on)


@pytest.mark.parametrize("name", NAMED_SYSTEMS)
def test_fields_refuse_what_the_configuration_refuses_in_the_same_words(name: str) -> None:
    system = NAMED_SYSTEMS[name]
    config: Any = type(system.sizes["small"]())
    assert issubclass(config, system.fields) and config.own_fields() == system.fields.own_fields()
    for wrong in ({"hidden_size": "abc"}, {"hidden_size": 33}, {"num_attention_heads": 0}, {"hidden_activation": "x"},
                  {"hidden_size": True}, {"hidden_dropout": None}):  # fmt: skip
        with pytest.raises(ValueError) as of_config:
            config(**wrong)
        with pytest.raises(ValueError) as of_fields:
            system.fields(**wrong)
        assert str(of_fields.value) == str(of_config.value)
        assert str(of_fields.value).startswith(f"{config.__name__}: ")


@pytest.mark.parametrize("toy", [False, True])
def test_every_size_and_recipe_is_accepted(toy: bool) -> None:
    for name, system in NAMED_SYSTEMS.items():
        for size in system.sizes:
            check(RequestedModel(system=name, size=size), "train.keep=3", "data.workers=0")
    for recipe in RECIPES:
        check(RequestedModel(recipe=recipe, toy=toy))


@pytest.mark.parametrize("system", ["vilbert", "interbert"])
def test_widths_that_the_stores_decide_are_not_held_against_the_presets(system: str) -> None:
    model = RequestedModel(system=system)
    check(model, "model.region_loss=regression")
    check(model, "model.region_loss=regression", "model.region_target_size=64")
    check(model, "model.region_loss=regression", "model.region_feature_size=64")
    both = ("model.region_loss=regression", "model.region_feature_size=64", "model.region_target_size=65")
    with pytest.raises(ValueError, match=r"predicts features of width 64, region_target_size is 65"):
        check(model, *both)


def test_sizes_that_come_with_another_model_are_not_held_against_the_presets() -> None:
    """A BERT of 12 heads, a run of 3: the small preset has 4."""
    odd = "model.hidden_size=33"
    with pytest.raises(ValueError, match=r"model settings {'hidden_size': 33}: ImageBertConfig: hidden_size 33 is not"):
        check(RequestedModel(system="imagebert"), odd)
    for model in (RequestedModel(system="imagebert", from_run="x"), RequestedModel(system="imagebert", from_bert="x")):
        check(model, odd)
        with pytest.raises(ValueError, match=r"hidden_size must be of type int, got 'abc'"):
            check(model, "model.hidden_size=abc")
    check(RequestedModel(system="imagebert"), odd, goes_on=True)


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"train has no field 'x'.*data has no field 'y'.*model has no field 'z'"):
        check(RequestedModel(system="vlbert"), "train.x=1", "data.y=1", "model.z=1")
