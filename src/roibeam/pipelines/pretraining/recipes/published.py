"""All published pre-training runs by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roibeam.near_names import name_hint
from roibeam.pipelines.pretraining.recipes.imagebert import IMAGEBERT_RECIPES
from roibeam.pipelines.pretraining.recipes.interbert import INTERBERT_RECIPES
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.recipes.vilbert import VILBERT_RECIPES
from roibeam.pipelines.pretraining.recipes.visualbert import VISUALBERT_RECIPES
from roibeam.pipelines.pretraining.recipes.vlbert import VLBERT_RECIPES

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {**VLBERT_RECIPES, **VILBERT_RECIPES, **VISUALBERT_RECIPES, **IMAGEBERT_RECIPES, **INTERBERT_RECIPES}
)


def stages_before(name: str) -> list[str]:
    """The recipes whose runs come before that one, in their order."""
    after = RECIPES[name].after
    return [*stages_before(after), after] if after else []


def recipe_named(name: str) -> Recipe:
    """Raises ValueError for an unknown name, with the near ones."""
    if name not in RECIPES:
        listed = "roibeam recipes lists all; those of a task are for roibeam finetune"
        raise ValueError(f"no recipe {name!r}: {name_hint(name, RECIPES, listed_by=listed)}")
    return RECIPES[name]
