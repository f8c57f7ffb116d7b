"""All published fine-tuning runs by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roibeam.near_names import name_hint
from roibeam.pipelines.finetuning.recipes.interbert import INTERBERT_TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.interbert_glue import INTERBERT_GLUE_RECIPES
from roibeam.pipelines.finetuning.recipes.retrieval import RETRIEVAL_RECIPES
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.recipes.vilbert import VILBERT_TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.visualbert import VISUALBERT_TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.vlbert import VLBERT_TASK_RECIPES

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
    """Raises ValueError for an unknown name."""
    if name not in TASK_RECIPES:
        listed = "roibeam recipes lists all; those of pre-training are for roibeam pretrain"
        raise ValueError(f"--recipe {name!r}: {name_hint(name, TASK_RECIPES, listed_by=listed)}")
    return TASK_RECIPES[name]
