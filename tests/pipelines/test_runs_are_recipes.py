"""A run is its recipe: what is built for `roibeam pretrain --recipe` has each field as the recipe says.

Compared are the built model, rules, training, optimizer and encoder, on torch's meta device and without data. What a
mode may change is `MODE_CHANGES`, and nothing else. tests/pipelines/test_recipes.py holds recipes against their papers.
"""

import dataclasses
from typing import Any

import pytest
import torch
from run_facts import BATCH, HELD, attributes, built, held, parameters, requested

from roibeam.extraction.region_encoder import STAGES
from roibeam.model.common.fields import DEFAULT_MASKING, MASKINGS
from roibeam.pipelines.data.mode_changes import DATA, END_TO_END, TEXTS, TOY, changed_by
from roibeam.pipelines.pretraining.checked_request import check_settings
from roibeam.pipelines.pretraining.end_to_end_encoder import EndToEnd
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.run_setup import RunModel, RunSettings
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.optimizer import build_optimizer, chosen_groups
from roibeam.pipelines.training.parameter_groups import ENCODER_RULES, PARAMETER_RULES
from roibeam.pipelines.training.train_config import TASK_GROUPS, TrainConfig

CAPTIONS = 100_000
# Fields of a run that are not the recipe's to say: how often a run is kept and evaluated, and where it is computed.
NOT_OF_RECIPES = {"device", "seed", "checkpoint_every", "evaluate_every"}


def modes_of(recipe: Recipe, *, toy: bool, end_to_end: bool) -> set[str]:
    named = {DATA: True, TOY: toy, TEXTS: recipe.text_corpus, END_TO_END: end_to_end and not recipe.masking}
    return {mode for mode, applies in named.items() if applies}


def changed(modes: set[str]) -> set[str]:
    return {field for change in changed_by(modes) for field in change.fields}


def check_model(name: str, made: RunModel, modes: set[str]) -> None:
    """Each field as the recipe says; the parts as a model has them that is made of these fields; and what can be read
    from the parts, read from them."""
    recipe = RECIPES[name]
    free = {field.removeprefix("model.") for field in changed(modes) if field.startswith("model.")}
    config, published = made.model.config, recipe.build()
    fields = config.own_fields()
    own = [each for each in fields if each not in free]
    assert [getattr(config, each) for each in own] == [getattr(published, each) for each in own]
    expected = {each: getattr(config if each in free else published, each) for each in fields}
    with torch.device("meta"):
        other = SYSTEMS[recipe.system].model_class(type(config)(**expected))
    assert parameters(made.model) == parameters(other)
    assert attributes(made.model) == attributes(other)
    found = held(recipe.system, made.model)
    assert found == {each: expected[each] for each in found}


def check_training(name: str, run: RunSettings, made: RunModel, modes: set[str]) -> None:
    """Rules, training settings and the optimizer that they make."""
    recipe = RECIPES[name]
    free = {field.removeprefix("train.") for field in changed(modes) if field.startswith("train.")} | NOT_OF_RECIPES
    assert type(made.sampler) is SYSTEMS[recipe.system].sampler and run.sampling == recipe.sampling
    assert recipe.sampling in vars(made.sampler).values()
    assert run.data.share == recipe.share and run.data.batch_size == BATCH
    assert callable(run.train_config)
    config = run.train_config(CAPTIONS)
    published = recipe.train_config(CAPTIONS, micro_batch=BATCH, processes=1)
    names = [each.name for each in dataclasses.fields(TrainConfig) if each.name not in free]
    assert {each: getattr(config, each) for each in names} == {each: getattr(published, each) for each in names}
    assert published.accumulation * BATCH == recipe.batch_size and published.learning_rate == recipe.learning_rate
    assert all(getattr(published, each) == value for each, value in recipe.settings.items())
    module = made.model if made.joint is None else made.joint
    groups = chosen_groups(module, lambda: [{"params": [p for p in module.parameters() if p.requires_grad]}], config)
    optimizer = build_optimizer(groups, config, device=torch.device("cpu"))
    for group in optimizer.param_groups:
        assert group["lr"] == config.learning_rate
        assert group.get("betas", published.betas) == published.betas
        assert group.get("eps", published.epsilon) == published.epsilon
        assert group["weight_decay"] in (0, published.weight_decay)
    classes = {"adamw": "AdamW", "sgd": "SGD", "bert-adam": "BertAdam"}
    assert classes.get(published.optimizer, "TransformersAdamW") == type(optimizer).__name__


def check_encoder(name: str, made: RunModel, encoder: EndToEnd | None) -> None:
    """What is hidden of photos, and which stages of the encoder train."""
    recipe = RECIPES[name]
    if encoder is None:
        assert made.joint is None
        return
    assert made.joint is not None
    joint, choices = made.joint, made.joint.choices
    masking = recipe.masking or DEFAULT_MASKING
    appearances = SYSTEMS[recipe.system].masking
    if appearances:
        assert made.model.config.masked_appearance == appearances[masking]
        assert choices.masked_pixels == MASKINGS[masking]
    assert (choices.blank_pixels, choices.whole_image) == ("after_resize", SYSTEMS[recipe.system].whole_image)
    network: Any = joint.region_encoder
    # The default is VL-BERT's release: cfgs/pretrain, IMAGE_FROZEN_BACKBONE_STAGES.
    assert network.frozen_stages == tuple(recipe.encoder.get("frozen_stages", (1, 2)))
    assert (network.mask_conv is not None) == bool(recipe.encoder.get("mask_channels", 0))
    for stage, part in STAGES.items():
        trains = {each.requires_grad for each in network.get_submodule(part).parameters()}
        assert trains <= {stage not in network.frozen_stages}
    photos = {"flip": True, "short_edges": (), **recipe.photos}
    assert {each: getattr(encoder.photos, each) for each in photos} == photos


def check_run(name: str, *, toy: bool, end_to_end: bool) -> None:
    run, made, encoder = built(name, toy=toy, end_to_end=end_to_end)
    modes = modes_of(RECIPES[name], toy=toy, end_to_end=end_to_end)
    check_model(name, made, modes)
    check_training(name, run, made, modes)
    check_encoder(name, made, encoder)


@pytest.mark.parametrize("name", RECIPES)
def test_a_published_run_is_its_recipe(name: str) -> None:
    check_run(name, toy=False, end_to_end=RECIPES[name].end_to_end)


@pytest.mark.parametrize("name", RECIPES)
def test_a_toy_run_is_its_recipe_but_for_sizes_and_steps(name: str) -> None:
    check_run(name, toy=True, end_to_end=RECIPES[name].end_to_end)


@pytest.mark.parametrize("name", [name for name, each in RECIPES.items() if not (each.end_to_end or each.task_text)])
def test_a_run_of_stored_features_is_its_recipe_end_to_end_too(name: str) -> None:
    """Or it is refused at once, naming the field that cannot be kept; with that set otherwise, the rest is kept."""
    recipe = RECIPES[name]
    rule, refused = recipe.settings.get("parameter_groups", TASK_GROUPS), ""
    if rule not in (TASK_GROUPS, *ENCODER_RULES):
        refused = f"{rule}' of train.parameter_groups knows no parameters of a region"
    elif getattr(recipe.sampling, "box_numbers", False):
        refused = "features of photos have no box numbers; set sampling.box_numbers to false"
    if refused:
        with pytest.raises(ValueError, match=refused):
            check_settings(requested(name, toy=True, end_to_end=True), recipe, None, goes_on=False)
        return
    check_run(name, toy=True, end_to_end=True)


def test_the_rules_that_know_an_encoder_do() -> None:
    for name, rule in PARAMETER_RULES.items():
        if name in ENCODER_RULES:
            assert rule("region_encoder.backbone.res3.0.conv1.weight") is not None
        else:
            with pytest.raises(ValueError, match="has no name in a checkpoint"):
                rule("region_encoder.backbone.res3.0.conv1.weight")


def test_a_bert_has_the_sizes_of_the_recipes_that_start_from_it() -> None:
    """So starting from it changes nothing of what is compared above."""
    sizes = {"bert-base-uncased": (768, 12, 12, 3072), "bert-large-uncased": (1024, 24, 16, 4096)}
    for name, recipe in RECIPES.items():
        config: Any = recipe.build()
        if recipe.start:
            layers = 12 if recipe.system == "interbert" else config.num_hidden_layers  # keeps its own number
            found = (config.hidden_size, layers, config.num_attention_heads, config.intermediate_size)
            assert found == sizes[recipe.start], name


def test_what_can_be_read_from_a_model_is_read() -> None:
    """Each choice that a recipe makes beside sizes is read from the parts of the built model, or stands here."""
    in_a_batch_alone = {
        "vlbert": {"end_visual", "region_labels", "whole_image_element", "whole_image_epsilon"},
        "visualbert": {"num_answers", "region_feature_size"},
    }
    sizes = changed({TOY})
    for name, recipe in RECIPES.items():
        chosen = {each for each in {**recipe.build.fields, **recipe.changes} if f"model.{each}" not in sizes}
        unread = chosen - set(HELD[recipe.system]) - in_a_batch_alone.get(recipe.system, set())
        assert not unread, f"{name}: {sorted(unread)}"
