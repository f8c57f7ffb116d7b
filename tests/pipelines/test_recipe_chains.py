"""A chain fits: a recipe, the one whose model it starts from, and what comes after, each accepted by the real check.

What differs between two links on purpose is said by the later one (`left_open`).
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_requests import request
from photo_store import write_photo_store
from run_facts import built
from soak_share import some

from roibeam.extraction.weights.detector_choice import PRESETS
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.task_recipe import PRETRAINED, TaskRecipe
from roibeam.pipelines.finetuning.run.finetune_settings import check_finetune
from roibeam.pipelines.finetuning.run.task_start import start_of
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.training.model_files.joint_checkpoint import save_joint

STAGES = {name: recipe for name, recipe in RECIPES.items() if recipe.after}
TASKS_AFTER = {name: recipe for name, recipe in TASK_RECIPES.items() if recipe.start == PRETRAINED}
# What says that a task is trained through the detector after a model on stored features, as its source has it.
BY_DESIGN = ("reads stored features", "stored features")


def before(recipe: Recipe | TaskRecipe) -> Recipe:
    return RECIPES[recipe.model if isinstance(recipe, TaskRecipe) else recipe.after]


def feature_space(features: Features) -> tuple[str, str]:
    """The network and how it computes."""
    return features.detector, PRESETS[features.preset].conventions if features.preset else ""


def box_numbers(recipe: Recipe | TaskRecipe) -> bool:
    if isinstance(recipe, TaskRecipe):
        return recipe.layout.box_numbers
    return getattr(recipe.sampling, "box_numbers", False)


@pytest.mark.parametrize("name", [*STAGES, *TASKS_AFTER])
def test_what_comes_after_fits_what_was_before(name: str) -> None:
    recipe: Recipe | TaskRecipe = STAGES.get(name) or TASKS_AFTER[name]
    first = before(recipe)
    assert recipe.system == first.system and box_numbers(recipe) == box_numbers(first)
    if recipe.end_to_end != first.end_to_end:
        # The other way, an encoder that was trained along would be thrown away, which is refused.
        assert recipe.end_to_end and any(words in each for words in BY_DESIGN for each in recipe.left_open)
    if recipe.features is not None and first.features is not None:
        assert feature_space(recipe.features) == feature_space(first.features)
    if isinstance(recipe, Recipe):
        assert (recipe.start, recipe.build().region_feature_size) == (first.start, first.build().region_feature_size)
        own, earlier = recipe.build(), first.build()
        fields = own.own_fields()
        wanted = {each: recipe.changes.get(each, getattr(earlier, each)) for each in fields}
        assert {each: getattr(own, each) for each in fields} == wanted


def test_texts_alone_need_no_features() -> None:
    for name, recipe in TASK_RECIPES.items():
        assert (recipe.features is None) == (not TASKS[recipe.task].reads_images), name


class Chain:
    """Small models of the pre-training recipes, as their runs leave them, and a store; nothing may be written there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, write_photo_store(folder / "made", feature_dim=128).path
        (folder / "data").mkdir()

    def model_of(self, name: str) -> Path:
        folder = self.folder / name
        if not folder.is_dir():
            torch.manual_seed(0)
            _, made, _ = built(name, toy=True, end_to_end=RECIPES[name].end_to_end, device="cpu")
            if made.joint is None:
                made.model.save_pretrained(folder)
            else:
                save_joint(made.joint, folder)
        return folder


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"))


def one_of_each() -> list[Any]:
    """The first task of each system, task and mode, of a start and of its own; the others are a soak."""
    first: dict[tuple[object, ...], str] = {}
    for name, recipe in TASKS_AFTER.items():
        kind = recipe.system, recipe.task, recipe.end_to_end, RECIPES[recipe.model].end_to_end
        first.setdefault(kind, name)
    return some(TASKS_AFTER, first.values())


@pytest.mark.parametrize("name", one_of_each())
def test_the_real_check_takes_the_model_of_its_own_pre_training(
    chain: Chain, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The official files of the task are not there.
    monkeypatch.setattr("roibeam.pipelines.finetuning.run.finetune_settings.check_data_folder", lambda *_: None)
    recipe = TASKS_AFTER[name]
    asked: Any = request(
        recipe.task, out=tmp_path / "run", from_=str(chain.model_of(recipe.model)),
        store=str(chain.store) if recipe.features is not None else None, data=chain.folder / "data", recipe=name,
        toy=True, end_to_end=recipe.end_to_end, photos=str(chain.folder) if recipe.end_to_end else None,
    )  # fmt: skip
    check_finetune(asked)
    start = start_of(asked, recipe)
    assert start.system.name == recipe.system and start.found is not None
    assert (start.encoder is not None) == RECIPES[recipe.model].end_to_end


def test_a_chain_that_does_not_fit_is_refused(chain: Chain, tmp_path: Path) -> None:
    """So that the checks above can fail: stored features after a model that was trained end to end."""
    asked = request("vqa", out=tmp_path / "run", from_=str(chain.model_of("vlbert-paper")), store=str(chain.store))
    asked = dataclasses.replace(asked, data=chain.folder / "data", recipe="vlbert-vqa")
    with pytest.raises(ValueError, match="was trained end to end: its encoder goes on with it"):
        check_finetune(asked)
