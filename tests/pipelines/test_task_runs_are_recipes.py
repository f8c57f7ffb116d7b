"""A run is its recipe: what is built for `roibeam finetune --recipe` has each field as the recipe says.

Compared are settings, the built network, its optimizer and its encoder, on torch's meta device and without data, on the
model of the recipe's own pre-training. What a mode may change is `MODE_CHANGES`; test_recipes_run.py runs them.
"""

import dataclasses
import json
from functools import cache
from typing import Any

import pytest
import torch
from finetune_requests import ASKED, has_whole_image, request
from run_facts import built_model, parameters

from roibeam.extraction.region_encoder import STAGES, RegionEncoder
from roibeam.model.task_heads import MatchModel, TaskModel
from roibeam.pipelines.data.mode_changes import DATA, TASK, TOY_TASK, changed_by
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.run.finetune_settings import (
    TOY_RATE,
    TOY_STEPS,
    TOY_STEPS_END_TO_END,
    FinetuneConfig,
    config_of,
    steps_for,
)
from roibeam.pipelines.finetuning.run.network import started_network
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS
from roibeam.pipelines.finetuning.tasks.vcr import vcr_input_classes
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.training.optimizer import build_optimizer, chosen_groups
from roibeam.pipelines.training.train_config import TrainConfig

GROUPS, BATCH = 100_000, 4
TOY = {field for change in changed_by({TOY_TASK}) for field in change.fields}
# Said by the command line or computed from the steps: how often a run is kept and evaluated, where it is computed.
NOT_OF_RECIPES = {"device", "seed", "checkpoint_every", "evaluate_every", "steps"}


def asked_for(name: str, *, toy: bool) -> Any:
    recipe = TASK_RECIPES[name]
    weights = "random:1" if recipe.end_to_end and not toy else None
    named = {"recipe": name, "toy": toy, "end_to_end": recipe.end_to_end, "weights": weights}
    return request(recipe.task, batch_size=BATCH if toy else None, **named)


def sections(name: str, *, toy: bool) -> FinetuneConfig:
    recipe, asked = TASK_RECIPES[name], asked_for(name, toy=toy)
    return config_of(asked, TASKS[recipe.task].options, recipe, steps=steps_for(recipe, asked, GROUPS))


def check_settings(recipe: TaskRecipe, found: FinetuneConfig, *, toy: bool) -> None:
    """Options of the task, layout, head and training."""
    free = {each.partition(".")[2] for each in TOY if each.startswith("vqa.") and toy and recipe.task == "vqa"}
    options, published = found.task, recipe.options_for(recipe.end_to_end)
    for field in dataclasses.fields(published):
        if field.name not in free:
            assert getattr(options, field.name) == getattr(published, field.name), field.name
    assert found.layout == recipe.layout
    assert (found.head.kind, found.head.start) == (recipe.head, recipe.head_start)
    config: TrainConfig = found.train
    free = NOT_OF_RECIPES | ({each.partition(".")[2] for each in TOY if each.startswith("train.")} if toy else set())
    for name, value in recipe.settings.items():
        if name not in free:
            assert getattr(config, name) == value, name
    if toy:
        steps = TOY_STEPS_END_TO_END if recipe.end_to_end else TOY_STEPS
        assert (config.steps, config.learning_rate, config.accumulation) == (steps, TOY_RATE, 1)
        return
    assert config.steps == max(1, round(recipe.epochs * GROUPS / recipe.batch_size))
    assert config.accumulation * found.data.batch_size == recipe.batch_size
    assert config.learning_rate == recipe.learning_rate
    warmup = recipe.warmup * config.steps if recipe.warmup < 1 else recipe.warmup
    assert config.warmup_steps == pytest.approx(warmup, abs=1)
    falls = [share * config.steps for share in recipe.decays_at]
    assert list(config.decay_steps) == pytest.approx(falls, abs=1)
    assert (config.best_by, config.patience) == ((recipe.judged_by, recipe.patience) if recipe.patience else ("", 0))


@cache
def parameters_of(model_class: Any, fields: str) -> dict[str, tuple[int, ...]]:
    """Of a model with these fields of its configuration, as JSON."""
    with torch.device("meta"):
        return parameters(model_class(model_class.config_class(**json.loads(fields))))


def check_network(name: str, found: FinetuneConfig, *, toy: bool) -> torch.nn.Module:
    """The model of the recipe's pre-training under the head of the recipe: each field as that recipe has it, but for
    what a task asks of a model; and the parts as a model has them that is made of these fields."""
    recipe = TASK_RECIPES[name]
    first, system = RECIPES[recipe.model], SYSTEMS[recipe.system]
    model: Any = built_model(recipe.model, toy=toy)
    asked = dataclasses.replace(ASKED[recipe.task], whole_image=has_whole_image(recipe))
    told = vcr_input_classes(recipe.options) if recipe.task == "vcr" else None
    grounding = {"grounding": recipe.options.grounding} if recipe.task == "vcr" else {}
    with torch.device("meta"):
        network = started_network(
            system, model, asked, found.head.kind, source=name, num_input_classes=told.num_classes if told else 0,
            **grounding,
        )  # fmt: skip
        config = network.encoder_config
    changes = changed_by({DATA, TASK if recipe.system == "vlbert" else DATA, *([TOY_TASK] if toy else [])})
    free = {each.removeprefix("model.") for change in changes for each in change.fields}
    if recipe.system == "visualbert" and recipe.task == "vcr":
        free |= {"num_region_classes"}  # each region is told its class
    published, kept = first.build(), config.own_fields()
    for field in published.own_fields():
        if field in kept and field not in free and not field.startswith(("num_answers", "num_gqa", "with_")):
            assert getattr(config, field) == getattr(published, field), field
    inner = parameters(getattr(network.module, "model", network.module))
    fields = {each: getattr(config, each) for each in model.config.own_fields()}
    expected = parameters_of(system.model_class, json.dumps(fields))
    own = {each: shape for each, shape in expected.items() if each.startswith(system.trained)}
    assert {each: inner.get(each) for each in own} == own
    kind = {"ours": TaskModel, "match": MatchModel}.get(recipe.head)
    assert isinstance(network.module, kind) if kind else not isinstance(network.module, TaskModel | MatchModel)
    return network.module


def check_optimizer(recipe: TaskRecipe, module: torch.nn.Module, config: TrainConfig) -> None:
    groups = chosen_groups(module, lambda: [{"params": [p for p in module.parameters() if p.requires_grad]}], config)
    optimizer = build_optimizer(groups, config, device=torch.device("cpu"))
    settings = {"weight_decay": 0.01, **recipe.settings}
    for group in optimizer.param_groups:
        assert group["lr"] == config.learning_rate
        assert group["weight_decay"] in (0, settings["weight_decay"])
        assert group.get("betas") in (None, config.betas) and group.get("momentum") in (None, config.momentum)


def check_encoder(recipe: TaskRecipe, found: FinetuneConfig, *, toy: bool) -> None:
    """The published network of the detector, its edges and outlines, and which of its stages train."""
    if not recipe.end_to_end:
        assert found.from_photos is None
        return
    for name, value in recipe.encoder.items():
        assert getattr(found.from_photos.encoder, name) == value, name
    for name, value in recipe.photos.items():
        assert getattr(found.from_photos.photos, name) == value, name
    if not toy and recipe.edges:
        assert (found.from_photos.detector.short_edge, found.from_photos.detector.long_edge) == recipe.edges
    with torch.device("meta"):
        network = RegionEncoder(found.from_photos.detector, **found.from_photos.encoder.of_network())
    frozen = recipe.encoder.get("frozen_stages", (1, 2))
    for stage, part in STAGES.items():
        trains = {each.requires_grad for each in network.get_submodule(part).parameters()}
        assert trains <= {stage not in frozen}, part
    assert (network.mask_conv is not None) == bool(recipe.encoder.get("mask_channels", 0))


@pytest.mark.parametrize("toy", [False, True], ids=["published", "toy"])
@pytest.mark.parametrize("name", TASK_RECIPES)
def test_a_run_of_a_task_is_its_recipe(name: str, toy: bool) -> None:
    recipe, found = TASK_RECIPES[name], sections(name, toy=toy)
    check_settings(recipe, found, toy=toy)
    module = check_network(name, found, toy=toy)
    check_optimizer(recipe, module, found.train)
    check_encoder(recipe, found, toy=toy)
