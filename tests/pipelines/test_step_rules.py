"""How a recipe's steps are made, by `steps.rule`: what is right, and what each release does by accident."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finetune_requests import has_whole_image, request
from task_groups import WHOLE, small_network

from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, PHRASE, REGION
from roibeam.pipelines.finetuning.run.finetune_settings import config_of, without_evaluations
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS
from roibeam.pipelines.training.optimizer import learning_rate_at
from roibeam.pipelines.training.parameter_groups import PARAMETER_RULES, group_parameters
from roibeam.pipelines.training.step_policies import ACCIDENTS, STEP_RULES, release_settings


@pytest.mark.parametrize("name", TASK_RECIPES)
def test_steps_are_right_and_the_releases_accidents_are_asked_for(name: str) -> None:
    recipe = TASK_RECIPES[name]
    options = TASKS[recipe.task].options
    right = config_of(request(recipe.task), options, recipe).train
    assert (right.loss_mean, right.step_gradients, right.starts_at_zero) == ("step", "all", False)
    assert right.average_start == "first_update"
    assert right.parameter_groups in ("task", "vl-bert", "vilbert-tasks", "vilbert-single-stream-tasks")
    as_released = request(recipe.task, set=["steps.rule=release"])
    if not recipe.accidents:
        with pytest.raises(ValueError, match=r"steps\.rule 'release': this recipe has correct$"):
            config_of(as_released, options, recipe)
        return
    released = config_of(as_released, options, recipe).train
    others = (*recipe.accidents, "warmup_steps", "decay_steps")
    assert recipe.accidents.keys() <= set(ACCIDENTS)
    assert right == replace(released, **{field: getattr(right, field) for field in others})
    assert all(getattr(released, field) == value for field, value in recipe.accidents.items())
    assert released.parameter_groups == "task" or released.parameter_groups in PARAMETER_RULES


KINDS = {"vqa": LABEL, "vcr": CHOICE, "refcoco+": REGION, "nlvr2": "pair", "retrieval": CHOICE}
KINDS |= {"flickr30k-entities": PHRASE}


def kind_of(recipe: TaskRecipe) -> str:
    """Of `task_groups`."""
    return WHOLE if has_whole_image(recipe) else KINDS[recipe.task]


def test_every_rule_for_parameters_fits_its_network() -> None:
    """Of models with a head of ours too, which no release names; all that is trained is in one group."""
    rules = {
        (recipe.system, kind_of(recipe), recipe.head, settings["parameter_groups"])
        for recipe in TASK_RECIPES.values()
        for settings in (recipe.settings, recipe.accidents, *(STEP_RULES[name].settings for name in recipe.step_rules))
        if settings.get("parameter_groups", "task") != "task"
    }
    assert len(rules) > 8
    rules |= {("vilbert", kind, "release-mt", "vilbert-release-mt-tasks") for kind in (LABEL, CHOICE, WHOLE, "pair")}
    for system, kind, head, rule in sorted(rules):
        module = small_network(system, kind, head=head).module
        trained = [each for each in module.parameters() if each.requires_grad]
        groups = group_parameters(module, rule, learning_rate=2e-5)
        found = [each for group in groups for each in group["params"]]
        lost = len(trained) - len(found)
        assert len({id(each) for each in found}) == len(found)
        assert (lost == 2 and rule == "visualbert-ucla") or lost == 0, (system, kind, rule)  # its pooler


def test_vilberts_decay_is_turned_round() -> None:
    """What the release means, and what it does: only the decay differs, and the answer head has its own rate."""
    module = small_network("vilbert", LABEL, head="release").module
    names = {id(each): name for name, each in module.named_parameters()}

    def told(rule: str) -> dict[str, tuple[bool, float]]:
        return {
            names[id(each)]: ("weight_decay" not in group, group["learning_rate_scale"])
            for group in group_parameters(module, rule, learning_rate=4e-5)
            for each in group["params"]
        }

    meant, done = told("vilbert-tasks"), told("vilbert-release-tasks")
    assert {name: (not decays, scale) for name, (decays, scale) in meant.items()} == done
    assert meant["vilbert.text_embeddings.words.weight"] == (True, 1.0)
    assert {scale for name, (_, scale) in meant.items() if name.startswith("answer_head.")} == {2.5}


def test_accidents_need_a_release() -> None:
    with pytest.raises(ValueError, match="no release is named; give --recipe"):
        config_of(request(set=["steps.rule=release"]), TASKS["vqa"].options, None)
    with pytest.raises(ValueError, match=r"steps\.rule 'release-mt': this recipe has correct and release$"):
        config_of(request(set=["steps.rule=release-mt"]), TASKS["vqa"].options, TASK_RECIPES["vlbert-vqa"])


def test_what_the_releases_do_by_accident() -> None:
    """By trap: the mean of micro-batches' means, swapped decay, the last micro-batch alone, no pooler, a late rate."""
    accidents = {name: dict(TASK_RECIPES[name].accidents) for name in ("vilbert-vqa", "visualbert-vqa", "vlbert-vqa")}
    assert accidents["vlbert-vqa"] == {"loss_mean": "micro_batch"}
    assert accidents["vilbert-vqa"] == {
        "loss_mean": "micro_batch", "parameter_groups": "vilbert-release-tasks", "starts_at_zero": True,
    }  # fmt: skip
    for name in ("interbert-vcr-release-answer", "interbert-retrieval-release"):
        recipe = TASK_RECIPES[name]
        assert recipe.settings["average_rate"] == 0.9999 and recipe.accidents["average_start"] == "initial"
    assert accidents["visualbert-vqa"]["step_gradients"] == "last"
    assert accidents["visualbert-vqa"]["parameter_groups"] == "visualbert-ucla"


def official_rates(name: str) -> np.ndarray:
    """That each update of a case's first group had in the official script."""
    with np.load(Path(__file__).resolve().parents[1] / "goldens" / "finetune_vilbert" / f"{name}.npz") as file:
        return np.asarray(file["out/lr_per_update"][:, 0])


def test_the_first_rates_of_the_multi_task_release() -> None:
    """As the reference of fine-tuning has them: 9 epochs of two updates, of which 3.6 are the warm-up."""
    recipe = replace(TASK_RECIPES["vilbert-vqa"], epochs=9, warmup=0.2, learning_rate=4e-5)
    config = config_of(request(set=["steps.rule=release-mt"]), TASKS["vqa"].options, recipe, steps=18).train
    assert config.warmup_steps == pytest.approx(3.6) and config.decay_steps == (9, 13)
    rates = [learning_rate_at(step, config) for step in range(1, 19)]
    np.testing.assert_allclose(rates, official_rates("multitask_vqa_mannul"), rtol=1e-12)
    assert [float(f"{rate:.1e}") for rate in rates[:5]] == [4e-5, 1.1e-5, 4e-5, 3.3e-5, 4e-5]


@pytest.mark.parametrize(
    "case, rule, recipe, steps, changes",
    [
        # Falls come at the ends of epochs, though the rise lags one step; its length is 1.8 steps.
        ("first_vqa_decay", "release", "vilbert-vqa", 18, {"epochs": 18, "decays_at": (12 / 18, 16 / 18)}),
        # Each problem has an update of its own: the rise is over after half of what is meant.
        ("first_vcr_joint", "release", "vilbert-vcr", 24, {"warmup": 0.25, "decays_at": ()}),
        ("multitask_vcr_joint", "release-mt-linear", "vilbert-vcr", 24, {"warmup": 0.25}),
        ("multitask_vqa_warmup_linear", "release-mt-linear", "vilbert-vqa", 12, {"warmup": 0.25}),
    ],
)
def test_rates_are_those_of_the_release(case: str, rule: str, recipe: str, steps: int, changes: dict[str, Any]) -> None:
    published = replace(TASK_RECIPES[recipe], **changes)
    asked = request(published.task, set=[f"steps.rule={rule}"])
    config = config_of(asked, TASKS[published.task].options, published, steps=steps).train
    want, got = official_rates(case), [learning_rate_at(step, config) for step in range(1, steps + 1)]
    assert len(want) == steps
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-20)


def test_a_release_does_not_round_its_warm_up() -> None:
    """A share of the steps is one of a float there; the correct rule takes whole steps, and a user's number stays."""
    recipe, options = TASK_RECIPES["vilbert-vqa"], TASKS["vqa"].options
    lengths = [
        config_of(request(set=[f"steps.rule={rule}"], **given), options, recipe, steps=36).train.warmup_steps
        for rule, given in (("correct", {}), ("release", {}), ("release-mt", {}), ("release", {"warmup_steps": 5}))
    ]
    assert lengths == [4, pytest.approx(3.6), pytest.approx(3.6), 5]


def test_the_multi_task_release_s_steps_are_a_rule_of_vilbert_s_recipes() -> None:
    recipe = TASK_RECIPES["vilbert-vcr"]
    found = config_of(request("vcr", set=["steps.rule=release-mt"]), TASKS["vcr"].options, recipe, steps=133_080)
    config = found.train
    settings = release_settings("vilbert-release-mt-tasks")
    assert {field: getattr(config, field) for field in settings} == dict(settings)
    # 66,540 iterations of two updates, 3,327 in an epoch; one step of the schedule for both.
    assert found.task.updates == "task" and config.updates_per_schedule_step == 2
    assert (config.warmup_steps, config.warmup_overwritten_every) == (6654, 3327)
    assert config.decay_steps == (5 * 3327 - 1, 7 * 3327 - 1) and config.decay_factor == 0.2


def test_a_plateau_is_a_rule_of_vilbert_s_recipes() -> None:
    """ReduceLROnPlateau of `--lr_scheduler automatic`, by the evaluation of each epoch."""
    judged = {}
    tasks = ("vqa", "vcr", "vcr-rationale", "refcoco+-detected", "retrieval")
    for name in (f"vilbert-{task}" for task in tasks):
        recipe = TASK_RECIPES[name]
        asked = request(recipe.task, set=["steps.rule=release-plateau"])
        config = config_of(asked, TASKS[recipe.task].options, recipe, steps=400).train
        assert (config.schedule, config.decay_steps, config.decay_factor) == ("plateau", (), 0.2)
        assert (config.plateau_patience, config.plateau_cooldown, config.plateau_threshold) == (1, 1, 1e-3)
        assert config.evaluate_every == 20 and config.starts_at_zero
        judged[name] = config.best_by
    assert list(judged.values()) == ["overall", "Q->AR", "QA->R", "accuracy", "R@1_of_4"]
    with pytest.raises(ValueError, match="the task leaves no validation data; choose another "):
        without_evaluations(config)


@pytest.mark.parametrize("name", ["vilbert-vcr", "interbert-vcr-release"])
def test_a_release_makes_an_update_of_each_problem(name: str) -> None:
    recipe, options = TASK_RECIPES[name], TASKS["vcr"].options

    def updates(*settings: str, of: TaskRecipe = recipe) -> tuple[str, float]:
        found = config_of(request("vcr", set=list(settings)), options, of, steps=1000)
        return found.task.updates, found.train.warmup_steps

    released = "steps.rule=release"
    assert updates() == ("step", 100) and updates(released) == ("task", 50)
    assert updates(released, "vcr.updates=step") == ("step", 100) and updates("vcr.updates=task") == ("task", 100)
    answers = TASK_RECIPES[f"{name}-answer"]
    assert updates(released, of=answers) == ("step", 100)
    assert updates(released, "vcr.problem=both", of=answers) == ("task", 50)
