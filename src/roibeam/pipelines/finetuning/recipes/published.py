"""Published fine-tuning runs by name, and their GPU hours from measured rates of steps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from roibeam.messages import name_hint
from roibeam.pipelines.finetuning.recipes.interbert import INTERBERT_GLUE_RECIPES, INTERBERT_TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.retrieval import RETRIEVAL_RECIPES
from roibeam.pipelines.finetuning.recipes.task_recipe import PARAMETERS, TaskRecipe
from roibeam.pipelines.finetuning.recipes.vilbert import VILBERT_TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.visualbert import VISUALBERT_TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.vlbert import VLBERT_TASK_RECIPES
from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS
from roibeam.pipelines.finetuning.tasks.vqa_rules import NONE

TASK_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(
    {
        **VLBERT_TASK_RECIPES,
        **VILBERT_TASK_RECIPES,
        **VISUALBERT_TASK_RECIPES,
        **INTERBERT_TASK_RECIPES,
        **INTERBERT_GLUE_RECIPES,
        **RETRIEVAL_RECIPES,
    }
)


def task_recipe_named(name: str) -> TaskRecipe:
    """The recipe of a name. Raises ValueError for an unknown one."""
    if name not in TASK_RECIPES:
        listed = "roibeam recipes lists all; those of pre-training are for roibeam pretrain"
        raise ValueError(f"--recipe {name!r}: {name_hint(name, TASK_RECIPES, listed_by=listed)}")
    return TASK_RECIPES[name]


CARD = "NVIDIA H200"
_SAME_SIZE = 0.01  # share by which parameters of models of one size may differ: heads, small fields


class StepRate(NamedTuple):
    """One row of BENCHMARKS.md, "Fine-tuning steps on a GPU".

    Attributes:
        model: a pre-training recipe whose model has the measured size.
        end_to_end: whether from photos; else on stored features.
        questions_per_second: median of the rounds.
        problem: of VCR; rows of rationales are longer than those that were measured.
    """

    task: str
    system: str
    model: str
    end_to_end: bool
    questions_per_second: float
    problem: str = ""


RATES = (
    StepRate("vqa", "vilbert", "vilbert", False, 679.0),
    StepRate("vqa", "vlbert", "vlbert-base", False, 1450.0),
    StepRate("vcr", "vlbert", "vlbert-base-e2e", True, 45.5, problem="answer"),
)


class GpuHours(NamedTuple):
    """GPU hours of the steps of a run, without loading, evaluation and checkpoints.

    Attributes:
        hours: on one card.
        questions_per_second: the rate.
    """

    hours: float
    card: str
    questions: int
    questions_per_second: float


def gpu_hours(recipe: TaskRecipe) -> GpuHours | None:
    """GPU hours of a recipe; None without a measured rate for its task, system, size and kind of features."""
    questions = _questions(recipe)
    rate = next((each for each in RATES if _fits(each, recipe)), None)
    if rate is None or questions is None:
        return None
    hours = questions * recipe.epochs / rate.questions_per_second / 3600
    return GpuHours(hours, CARD, questions, rate.questions_per_second)


def _fits(rate: StepRate, recipe: TaskRecipe) -> bool:
    if (rate.task, rate.system, rate.end_to_end) != (recipe.task, recipe.system, recipe.end_to_end):
        return False
    if rate.problem and rate.problem != recipe.options.problem:
        return False
    return abs(recipe.parameters / PARAMETERS[rate.model, rate.task] - 1) < _SAME_SIZE


def _questions(recipe: TaskRecipe) -> int | None:
    """Questions of an epoch, by the data set; None if unknown."""
    rows = SCORED_TASKS[recipe.task].splits
    if recipe.task != "vqa":
        return rows["train"]
    train, validation = rows["train"], rows["val"]
    if train is None or validation is None or recipe.options.visual_genome != NONE:
        return None
    return {"train": train, "train+val": train + validation}.get(recipe.options.train)
