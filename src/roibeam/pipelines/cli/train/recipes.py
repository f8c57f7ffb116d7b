"""`roibeam recipes`: the published runs of pre-training and of tasks, what they set and what came of them."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.near_names import name_hint
from roibeam.pipelines.cli.options import JSON
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument
from roibeam.pipelines.finetuning.recipes.task_recipe import BERT, NOTHING, PRETRAINED, TaskRecipe

if TYPE_CHECKING:
    from roibeam.pipelines.pretraining.recipes.recipe import Recipe


def recipes_command(
    name: Annotated[str | None, argument("NAME", "Recipe to show in full.")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Lists the published training runs that can be repeated.

    `roibeam pretrain --recipe NAME` repeats one; those of a task, at the end, are for `roibeam finetune`.

    Examples:
        roibeam recipes
        roibeam recipes vlbert-paper
    """
    from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
    from roibeam.pipelines.pretraining.recipes.published import RECIPES, recipe_named

    chosen: dict[str, Recipe | TaskRecipe] = {**RECIPES, **TASK_RECIPES}
    if name is not None:
        if name not in chosen:
            listed = f"roibeam recipes lists all {len(chosen)}"
            raise ValueError(f"no recipe {name!r}: {name_hint(name, chosen, listed_by=listed)}")
        chosen = {name: chosen[name]}
    if as_json:
        typer.echo(json_line({each: _plain(recipe) for each, recipe in chosen.items()}, event="recipes"))
    elif name is None:
        width = max(map(len, chosen))
        for each, recipe in chosen.items():
            typer.echo(f"{each:<{width}}  {recipe.summary}")
    else:
        found = TASK_RECIPES.get(name)
        typer.echo("\n".join(_lines(name, recipe_named(name)) if found is None else _task_lines(name, found)))


def _lines(name: str, recipe: Recipe) -> list[str]:
    from roibeam.pipelines.pretraining.recipes.named_systems import named_system
    from roibeam.pipelines.pretraining.recipes.published import stages_before

    warmup = f"{recipe.warmup:.0%} of the steps" if recipe.warmup < 1 else f"{recipe.warmup:,.0f} steps"
    lines = [
        f"{name}: {recipe.summary}",
        f"  source     {recipe.source}",
        f"  system     {named_system(recipe.system).title}",
        f"  data       {recipe.data}",
        f"  starts     from {'the run of ' + recipe.after if recipe.after else recipe.start or 'nothing'}",
        *([f"  stages     {', '.join([*stages_before(name), name])}, in one command"] if recipe.after else []),
        f"  steps      {recipe.epochs:g} epochs of {recipe.batch_size} captions, rate {recipe.learning_rate:g}, "
        f"warm-up {warmup}",
        *_wrapped("  optimiser", _settings(recipe.settings)),
        *_wrapped("  samples", _settings(dataclasses.asdict(recipe.sampling))),
        *_wrapped("  model", _settings(_plain(recipe)["model"]) or "as the system's defaults"),
    ]
    if recipe.share < 1:
        lines.append(f"  share      {recipe.share:.0%} of the images")
    if recipe.end_to_end:
        told = ["through the detector's head"] if not recipe.detector else [f"--detector {recipe.detector}"]
        told += [_settings(each) for each in (recipe.encoder, recipe.photos) if each]
        lines += [f"  end to end {told[0]}"] if len(told) == 1 else _wrapped("  end to end", ", ".join(told))
    if recipe.figures:
        lines.append("  printed")
        lines += [f"    {each.task}, {each.metric}: {each.value:g} ({each.where})" for each in recipe.figures]
    if recipe.left_open:
        lines.append("  left open")
        lines += _points(recipe.left_open)
    return lines


def _task_lines(name: str, recipe: TaskRecipe) -> list[str]:
    warmup = f"{recipe.warmup:.0%} of the steps" if recipe.warmup < 1 else f"{recipe.warmup:,.0f} steps"
    falls = f", falls after {' and '.join(f'{share:.0%}' for share in recipe.decays_at)}" if recipe.decays_at else ""
    starts = {PRETRAINED: "pre-trained", BERT: "new, from BERT", NOTHING: "new"}
    return [
        f"{name}: {recipe.summary}",
        *_wrapped("  source", recipe.source),
        f"  task       {recipe.task}; system {recipe.system}, head {recipe.head}",
        f"  model      that of {recipe.model}, {starts[recipe.start]}; {recipe.parameters:,} parameters are trained",
        *([f"  in turn    with {recipe.in_turn_with}, by one model"] if recipe.in_turn_with else []),
        *(_wrapped("  end to end", _photos(recipe)) if recipe.end_to_end else []),
        f"  steps      {recipe.epochs:g} epochs of {recipe.batch_size} questions, rate {recipe.learning_rate:g}, "
        f"warm-up {warmup}{falls}",
        *_wrapped("  GPU hours", _hours(recipe)),
        *_wrapped("  optimiser", _settings(recipe.settings)),
        *(_wrapped("  accidents", _settings(recipe.accidents)) if recipe.accidents else []),
        "  steps.rule",
        *(f"    {name}: {recipe.step_rule(name).words}" for name in recipe.step_rules),
        *_wrapped("  task", _settings(dataclasses.asdict(recipe.options))),
        *_wrapped("  layout", _settings(dataclasses.asdict(recipe.layout))),
        "  printed",
        *(f"    {each.task}, {each.metric}: {each.value:g} ({each.where})" for each in recipe.figures),
        *([] if recipe.figures else ["    nothing that is known here"]),
        "  left open",
        *_points(recipe.left_open),
    ]


def _hours(recipe: TaskRecipe) -> str:
    from roibeam.pipelines.finetuning.recipes.gpu_hours import gpu_hours

    found = gpu_hours(recipe)
    if found is None:
        return "not measured"
    asked = f"{found.questions:,} questions, {recipe.epochs:g} epochs, {found.questions_per_second:,g} questions/s"
    return f"{found.hours:.2g} on one {found.card}, of steps alone: {asked}"


def _points(sentences: Iterable[str]) -> list[str]:
    """Each from a line of its own on."""
    wrapper = textwrap.TextWrapper(110, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
    return [line for each in sentences for line in wrapper.wrap(each)]


def _photos(recipe: TaskRecipe) -> str:
    edges = [f"edges {' x '.join(map(str, recipe.edges))}"] if recipe.edges else []
    named = [f"--detector {recipe.detector}"] if recipe.detector else []
    settings = [_settings(each) for each in (recipe.encoder, recipe.photos, recipe.photo_options) if each]
    return ", ".join(["through the detector's network", *named, *edges, *settings])


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent=f"{head:<12} ", subsequent_indent=" " * 13)


def _settings(settings: Any) -> str:
    return ", ".join(f"{name} {'none' if value in ('', ()) else value}" for name, value in settings.items())


def _plain(recipe: Recipe | TaskRecipe) -> dict[str, Any]:
    from roibeam.pipelines.finetuning.recipes.gpu_hours import gpu_hours

    if isinstance(recipe, TaskRecipe):
        mappings = ("settings", "accidents", "model_fields", "encoder", "photos")
        plain: dict[str, Any] = {name: dict(getattr(recipe, name)) for name in mappings}
        bare = dataclasses.replace(recipe, **plain)
        apart = None if recipe.updates_apart is None else recipe.updates_apart._asdict()
        hours = gpu_hours(recipe)
        told = {"gpu_hours": None if hours is None else hours._asdict(), "parameters": recipe.parameters}
        return {**dataclasses.asdict(bare), "updates_apart": apart, "step_rules": recipe.step_rules, **told}
    fields = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    for name in ("build", "toy_build"):
        del fields[name]
    return {
        **fields,
        "settings": dict(recipe.settings),
        "changes": dict(recipe.changes),
        "sampling": dataclasses.asdict(recipe.sampling),
        "figures": [dataclasses.asdict(figure) for figure in recipe.figures],
        "model": dict(recipe.build.fields),
    }
