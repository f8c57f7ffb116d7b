"""Which recipes are stages of one run, and what a stage does not take over from what is asked of all."""

from __future__ import annotations

from roibeam.pipelines.pretraining.recipes.published import recipe_named, stages_before
from roibeam.pipelines.pretraining.requests.request import RequestedModel

# A later stage takes these over with the weights of the one before.
_COMES_WITH_THE_WEIGHTS = ("from_bert", "tokenizer", "background", "detector", "weights", "conventions")


def recipes_in_row(asked: RequestedModel, num_stages: int) -> list[str]:
    """The recipes of the stages, in their order; none where `asked` names no recipe that goes on from another one.

    Args:
        num_stages: how many are described one by one; 0 where none is.
    Raises:
        ValueError: for one stage, or for another number than the recipe has.
    """
    recipe, chain = asked.recipe, list[str]()
    if recipe is not None and asked.from_run is None and recipe_named(recipe).after:
        chain = [*stages_before(recipe), recipe]
    if chain and num_stages and num_stages != len(chain):
        raise ValueError(
            f"--recipe {recipe} has {len(chain)} stages ({', '.join(chain)}), --stage is given {num_stages}x"
        )
    if num_stages == 1:
        raise ValueError("--stage: one stage is no more than the command without it; give it once for each of several")
    return chain


def not_passed_on(number: int, recipe: str | None) -> tuple[str, ...]:
    """Names of options that stage `number` (from 1) does not take from what is given for all stages.

    Args:
        recipe: the stage's, where the run is a recipe's chain.
    """
    names = () if number == 1 else _COMES_WITH_THE_WEIGHTS
    if recipe is None:
        return names
    return (*names, "recipe", "captions" if recipe_named(recipe).task_text else "task_text")


def check_recipe_of_stage(recipe: str, number: int, where: str) -> None:
    """Raises ValueError where the first stage goes on from a recipe that no stage before it has run."""
    after = recipe_named(recipe).after
    if number == 1 and after:
        raise ValueError(f"{where}: {recipe} goes on from {after}; let that be the stage before")
