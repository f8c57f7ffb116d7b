"""`roibeam recipes`: the published runs of pre-training and of tasks, their settings and their results."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.messages import name_hint, plural
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.tables import Data, Stores, echo_commands
from roibeam.pipelines.common.console.request_options import QUESTION, Json, argument, option
from roibeam.pipelines.data.mode_changes import (
    DATA,
    END_TO_END,
    FROM_BERT,
    FROM_RUN,
    NO_CLASSES,
    TASK,
    TEXTS,
    TOY,
    TOY_TASK,
    changed_by,
)
from roibeam.pipelines.finetuning.recipes.task_recipe import BERT, NOTHING, PRETRAINED, TaskRecipe
from roibeam.pipelines.training.step_policies import UpdatesApart

if TYPE_CHECKING:
    from roibeam.pipelines.common.statistics.paper_figures import PaperFigure
    from roibeam.pipelines.data.feature_settings import Features
    from roibeam.pipelines.pretraining.recipes.recipe import Recipe


def _filter(help: str, value: str) -> Any:
    return option(help, value, QUESTION, default="all")


def recipes_command(
    name: Annotated[str | None, argument("NAME", "Recipe to show in full.")] = None,
    commands: Annotated[bool, option(
        "With NAME: the commands to type, from downloads to the figures; replace the words in capitals.", "", QUESTION,
    )] = False,
    data: Data = None,
    stores: Stores = None,
    paper: Annotated[str, _filter("Only those with a figure of this paper, such as ViLBERT.", "PAPER")] = "",
    task: Annotated[str, _filter("Only those of this task; pretraining for none.", "TASK")] = "",
    system: Annotated[str, _filter("Only those of this system.", "NAME")] = "",
    figure: Annotated[str, _filter("Only those that print this figure, such as 71.79.", "FIGURE")] = "",
    search: Annotated[str, _filter("Only those with this word in name, summary, source or data.", "WORD")] = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Lists the published training runs that can be repeated.

    `roibeam pretrain --recipe NAME` repeats one; recipes of a task, at the end, are for `roibeam finetune`. `roibeam
    tables` lists the tables that they reproduce.

    Examples:
        roibeam recipes
        roibeam recipes vlbert-paper
        roibeam recipes vlbert-vqa-large --commands
        roibeam recipes --task vqa --figure 71.79
    """
    from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
    from roibeam.pipelines.pretraining.recipes.published import PARAMETERS, RECIPES

    chosen: dict[str, Recipe | TaskRecipe] = {**RECIPES, **TASK_RECIPES}
    if name is not None:
        if name not in chosen:
            listed = f"roibeam recipes lists all {len(chosen)}"
            raise ValueError(f"no recipe {name!r}: {name_hint(name, chosen, listed_by=listed)}")
        chosen = {name: chosen[name]}
    elif commands:
        raise ValueError("--commands is of one recipe; name it, such as roibeam recipes vlbert-vqa --commands")
    if (data or stores) and not commands:
        raise ValueError("--data and --stores are for --commands, which lists what is missing there")
    asked = {"paper": paper, "task": task, "system": system, "figure": figure, "search": search}
    every: dict[str, Recipe | TaskRecipe] = {**RECIPES, **TASK_RECIPES}
    for each, value in ((each, value) for each, value in asked.items() if value):
        facts = {name: _facts(name, recipe)[each] for name, recipe in every.items()}
        fits = {name for name, own in facts.items() if any(_fits(each, value, fact) for fact in own)}
        if not fits:
            known = dict.fromkeys(fact for own in facts.values() for fact in own)
            listed = "roibeam recipes lists all" if each == "search" else name_hint(value, known)
            raise ValueError(f"no recipe fits --{each} {value!r}: {listed}")
        chosen = {name: recipe for name, recipe in chosen.items() if name in fits}
        if not chosen:
            rest = "not this one" if name else "but none of them the other filters"
            raise ValueError(f"--{each} {value!r} fits {plural(len(fits), 'recipe')}, {rest}; give fewer filters")
    if commands:
        from roibeam.pipelines.cli.recipe_commands import commands_of

        echo_commands(commands_of(str(name)), {"DATA": data, "STORES": stores}, of=chosen[str(name)], as_json=as_json)
    elif as_json:
        sizes = {each: {"parameters": count} for each, count in PARAMETERS.items()}
        plain = {each: _plain(recipe) | sizes.get(each, {}) for each, recipe in chosen.items()}
        typer.echo(json_line(plain, event="recipes"))
    elif name is None:
        width = max(map(len, chosen))
        for each, recipe in chosen.items():
            typer.echo(f"{each:<{width}}  {recipe.summary}")
    else:
        typer.echo("\n".join(recipe_lines(name)))


def recipe_lines(name: str) -> list[str]:
    """One recipe in full, as `roibeam recipes NAME` prints it."""
    from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
    from roibeam.pipelines.pretraining.recipes.published import recipe_named

    found = TASK_RECIPES.get(name)
    return _lines(name, recipe_named(name)) if found is None else _task_lines(name, found)


def _plain_name(name: str) -> str:
    """ "vlbert" of "VL-BERT"."""
    return name.lower().replace("-", "")


def _facts(name: str, recipe: Recipe | TaskRecipe) -> dict[str, list[str]]:
    """Facts that the filters read."""
    from roibeam.pipelines.common.statistics.paper_figures import paper_figures

    return {
        "paper": [paper for each in recipe.figures for paper in (each.paper, each.title)],
        "task": [recipe.task if isinstance(recipe, TaskRecipe) else "pretraining"],
        "system": [recipe.system],
        "figure": [each.printed for each in (*recipe.figures, *(one for one in paper_figures() if one.recipe == name))],
        "search": [" ".join((name, recipe.summary, recipe.source, getattr(recipe, "data", "")))],
    }


def _fits(asked: str, value: str, fact: str) -> bool:
    if asked == "figure":
        return value in (fact, fact.removesuffix("0"), fact.removesuffix(".0"))
    given, found = _plain_name(value), _plain_name(fact)
    return found.startswith(given) if asked == "system" else given == found if asked == "task" else given in found


def _lines(name: str, recipe: Recipe) -> list[str]:
    from roibeam.pipelines.pretraining.recipes.named_systems import named_system
    from roibeam.pipelines.pretraining.recipes.published import PARAMETERS, stages_before

    warmup = f"{recipe.warmup:.0%} of the steps" if recipe.warmup < 1 else f"{recipe.warmup:,.0f} steps"
    lines = [
        f"{name}: {recipe.summary}",
        f"  source     {recipe.source}",
        f"  system     {named_system(recipe.system).title}",
        f"  data       {recipe.data}",
        *_features(recipe),
        f"  starts     from {'the run of ' + recipe.after if recipe.after else recipe.start or 'nothing'}",
        *([f"  stages     {', '.join([*stages_before(name), name])}, in one command"] if recipe.after else []),
        f"  steps      {recipe.epochs:g} epochs of {recipe.batch_size} captions, rate {recipe.learning_rate:g}, "
        f"warm-up {warmup}",
        *_wrapped("  optimiser", _settings(recipe.settings)),
        *_wrapped("  samples", _settings(dataclasses.asdict(recipe.sampling))),
        *_wrapped("  model", _settings(_plain(recipe)["model"]) or "as the system's defaults"),
        *(_wrapped("  parameters", _size(name)) if name in PARAMETERS else []),
    ]
    if recipe.share < 1:
        lines.append(f"  share      {recipe.share:.0%} of the images")
    if recipe.end_to_end:
        words = ["through the detector's head"] if not recipe.detector else [f"--detector {recipe.detector}"]
        words += [_settings(each) for each in (recipe.encoder, recipe.photos) if each]
        lines += [f"  end to end {words[0]}"] if len(words) == 1 else _wrapped("  end to end", ", ".join(words))
        lines += [f"    end_to_end.masking {recipe.masking}"] if recipe.masking else []
    if recipe.figures:
        lines.append("  printed")
        lines += [f"    {each.column}: {each.printed} ({each.where})" for each in recipe.figures]
    lines += ["  a mode changes", *_mode_lines(modes_of_pretraining(recipe), recipe.system)]
    if recipe.left_open:
        lines.append("  left open")
        lines += _points(recipe.left_open)
    return lines


def _mode_lines(modes: Collection[str], system: str) -> list[str]:
    from roibeam.pipelines.pretraining.recipes.named_systems import named_system

    own = named_system(system).fields.own_fields()
    fields = ((each, each.named(own)) for each in changed_by(modes))
    return _points(f"{each.mode}: {names}: {each.words}" for each, names in fields if names)


def modes_of_pretraining(recipe: Recipe) -> tuple[str, ...]:
    """Returns the modes in which a run of the recipe is possible."""
    possible = {
        DATA: True,
        NO_CLASSES: True,
        TEXTS: recipe.text_corpus,
        TOY: True,
        END_TO_END: not (recipe.end_to_end or recipe.task_text),
        FROM_BERT: bool(recipe.start) and not recipe.after,
        FROM_RUN: bool(recipe.after),
    }
    return tuple(mode for mode, is_possible in possible.items() if is_possible)


def _size(name: str) -> str:
    from roibeam.pipelines.pretraining.recipes.published import PARAMETERS, PRINTED

    printed = PRINTED.get(name)
    if printed is None:
        return f"{PARAMETERS[name]:,}"
    return (
        f"{PARAMETERS[name]:,}; {printed.millions} million in InterBERT's paper, section 3.5, near the "
        f"{printed.nearest:,} of its layers and the embedding of regions (docs/models.md)"
    )


def _task_lines(name: str, recipe: TaskRecipe) -> list[str]:
    warmup = f"{recipe.warmup:.0%} of the steps" if recipe.warmup < 1 else f"{recipe.warmup:,.0f} steps"
    falls = f", falls after {' and '.join(f'{share:.0%}' for share in recipe.decays_at)}" if recipe.decays_at else ""
    starts = {PRETRAINED: f"a run of --recipe {recipe.model} or its authors' file", BERT: "BERT", NOTHING: "nothing"}
    found = _settings(recipe.accidents)
    return [
        f"{name}: {recipe.summary}",
        *_wrapped("  source", recipe.source),
        f"  task       {recipe.task}; system {recipe.system}, head {recipe.head}",
        f"  model      that of {recipe.model}, with {recipe.parameters:,} parameters to train",
        f"  starts     from {starts[recipe.start]}",
        *([f"  in turn    with {recipe.in_turn_with}, by one model"] if recipe.in_turn_with else []),
        *_features(recipe),
        *(_wrapped("  end to end", _photos(recipe)) if recipe.end_to_end else []),
        f"  steps      {recipe.epochs:g} epochs of {recipe.batch_size} questions, rate {recipe.learning_rate:g}, "
        f"warm-up {warmup}{falls}",
        *_wrapped("  GPU hours", _hours(recipe)),
        *_wrapped("  optimiser", _settings(recipe.settings)),
        *(_wrapped("  bugs", f"of the authors' code, by steps.rule=release: {found}") if found else []),
        "  steps.rule",
        *(f"    {name}: {recipe.step_rule(name).words}" for name in recipe.step_rules),
        *_wrapped("  task", _settings(dataclasses.asdict(recipe.options))),
        *_wrapped("  layout", _settings(dataclasses.asdict(recipe.layout))),
        "  printed",
        *(f"    {each.column}: {each.printed} ({each.where})" for each in recipe.figures),
        *([] if recipe.figures else ["    nothing that is known here"]),
        "  a mode changes",
        *_mode_lines((TOY_TASK, *([TASK] if recipe.system == "vlbert" else [])), recipe.system),
        "  left open",
        *_points(recipe.left_open),
    ]


def _features(recipe: Recipe | TaskRecipe) -> list[str]:
    """Lines on the features to extract, with the command of each store."""
    if recipe.features is None:
        return ["  features   none: texts alone"]
    own = "; the run makes features of its own: the store's boxes are read" if recipe.end_to_end else ""
    words = _wrapped("  features", f"{recipe.features.words()}{own}")
    return [*words, *(f"    {command}" for command in recipe.features.commands)]


def _hours(recipe: TaskRecipe) -> str:
    from roibeam.pipelines.finetuning.recipes.published import gpu_hours

    found = gpu_hours(recipe)
    if found is None:
        return "not measured"
    work = f"{found.questions:,} questions, {recipe.epochs:g} epochs, {found.questions_per_second:,g} questions/s"
    return f"{found.hours:.2g} on one {found.card}, of steps alone: {work}"


def _points(sentences: Iterable[str]) -> list[str]:
    """Wraps sentences, each from a line of its own on."""
    wrapper = textwrap.TextWrapper(110, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
    return [line for each in sentences for line in wrapper.wrap(each)]


def _photos(recipe: TaskRecipe) -> str:
    from roibeam.pipelines.pretraining.recipes.published import RECIPES

    edges = [f"edges {' x '.join(map(str, recipe.edges))}"] if recipe.edges else []
    goes_on = recipe.start == PRETRAINED and RECIPES[recipe.model].end_to_end
    begins = f"goes on from {recipe.model}" if goes_on else "begins with the detector's own weights"
    named = [f"--detector {recipe.detector}"] if recipe.detector else []
    settings = [_settings(each) for each in (recipe.encoder, recipe.photos, recipe.photo_options) if each]
    return ", ".join([f"through the detector's network, which {begins}", *named, *edges, *settings])


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent=f"{head:<12} ", subsequent_indent=" " * 13)


def _settings(settings: Any) -> str:
    return ", ".join(f"{name} {'none' if value in ('', ()) else value}" for name, value in settings.items())


def _plain(recipe: Recipe | TaskRecipe) -> dict[str, Any]:
    from roibeam.pipelines.finetuning.recipes.published import gpu_hours

    names = [each.name for each in dataclasses.fields(recipe) if each.name not in ("build", "toy_build")]
    fields = {name: _plain_value(getattr(recipe, name)) for name in names}
    fields |= {"features": _plain_features(recipe.features), "figures": [_figure(each) for each in recipe.figures]}
    if not isinstance(recipe, TaskRecipe):
        return {**fields, "model": dict(recipe.build.fields)}
    hours = gpu_hours(recipe)
    measured = {"gpu_hours": None if hours is None else hours._asdict(), "parameters": recipe.parameters}
    return {**fields, "step_rules": recipe.step_rules, **measured}


def _plain_value(value: Any) -> Any:
    """A field of a recipe as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value._asdict() if isinstance(value, UpdatesApart) else value


def _plain_features(features: Features | None) -> dict[str, Any] | None:
    return None if features is None else {**dataclasses.asdict(features), "commands": features.commands}


def _figure(figure: PaperFigure) -> dict[str, Any]:
    return {"task": figure.task, "metric": figure.metric, "value": figure.value, "where": figure.where}
