"""`roibeam pretrain` in stages: one command into the commands of its stages, and these one after the other."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from roibeam.pipelines.pretraining.recipes.recipe import Recipe

logger = logging.getLogger(__name__)

# What says how the command runs or where it starts, not what a stage is.
_OF_THE_WHOLE = ("out", "stage", "resume", "as_json", "from_run")
# Of the options, those that name files and those that name stores.
_FILES, _STORES = ("captions", "task_text", "text_corpus", "validation"), ("store", "validation_store")
# What changes no result, so a stage that is done stays done.
_FREE = frozenset({"resume", "as_json", "inspect_batch", "threads", "device", "stage_to", "stage_gb"})


@dataclass(frozen=True)
class Stage:
    """Attributes:
    name: for people.
    arguments: of `roibeam pretrain`, without the run folder and --from-run.
    options: those of them that decide its result.
    """

    name: str
    arguments: list[str]
    options: list[str]


def stages_of(context: typer.Context, recipe: str | None, from_run: str | None, given: Sequence[str]) -> list[Stage]:
    """The stages that a command asks for: --stage as often as there are, or a recipe that goes on from another one;
    none where the command is one run.

    Raises:
        ValueError: for options that cannot be of a stage, or another number of stages than the recipe has.
    """
    from roibeam.pipelines.pretraining.recipes.published import recipe_named, stages_before

    chain: list[str] = []
    if recipe is not None and from_run is None and recipe_named(recipe).after:
        chain = [*stages_before(recipe), recipe]
    if not given and not chain:
        return []
    if chain and given and len(given) != len(chain):
        raise ValueError(
            f"--recipe {recipe} has {len(chain)} stages ({', '.join(chain)}), --stage is given {len(given)}x"
        )
    if len(given) == 1:
        raise ValueError("--stage: one stage is no more than the command without it; give it once for each of several")
    common = options_given(context)
    return [
        _stage(context, common, own, number, None if not chain else chain[number - 1])
        for number, own in enumerate(given or [""] * len(chain), start=1)
    ]


def run_stages(
    context: typer.Context, out: Path, stages: Sequence[Stage], *, as_json: bool, resume: bool | None
) -> None:
    """Runs the stages into folders of `out`, each from the weights of the one before."""
    from roibeam.pipelines.training.loop import is_main_process
    from roibeam.pipelines.training.run_folder.stages import StagedRun
    from roibeam.pipelines.training.run_folder.stages_page import write_stages_page

    run = StagedRun(out, [stage.options for stage in stages])
    done = {number for number in range(1, len(stages) + 1) if resume is not False and run.is_done(number)}
    _check_ahead(context, stages, done)
    if is_main_process():
        run.save()
    how = ["--json"] * as_json + ([] if resume is None else ["--resume" if resume else "--no-resume"])
    names = [stage.name for stage in stages]
    for number, stage in enumerate(stages, start=1):
        folder = run.folder(number)
        if number in done:
            logger.info("stage %d of %d (%s) is done: %s", number, len(stages), stage.name, folder)
            continue
        logger.info("stage %d of %d: %s", number, len(stages), stage.name)
        before = [] if number == 1 else ["--from-run", str(run.folder(number - 1))]
        arguments = [str(folder), *stage.arguments, *before, *how]
        try:
            with context.command.make_context(context.info_name, arguments, parent=context.parent) as own:
                own.command.invoke(own)
        finally:
            if is_main_process():
                write_stages_page(out, names)
        if is_main_process():
            run.mark_done(number)
    if is_main_process() and not as_json:
        typer.echo(f"\n{out}/\n  report.html   look here first: all {len(stages)} stages")


def _stage(context: typer.Context, common: Mapping[str, list[str]], own: str, number: int, recipe: str | None) -> Stage:
    from roibeam.pipelines.pretraining.recipes.published import recipe_named

    where = f"--stage {own!r}"
    try:
        words = shlex.split(own)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    values, _, parameters = context.command.make_parser(context).parse_args(list(words))
    named = {parameter.name for parameter in parameters if values.get(parameter.name) is not None}
    for name in _OF_THE_WHOLE:
        if name in named:
            raise ValueError(f"{where}: {_spelled(context, name)} is of the whole command, not of a stage")
    chosen: Recipe | None = None
    if recipe is not None:
        if "recipe" in named:
            raise ValueError(f"{where}: the command's --recipe names the recipe of each stage")
        chosen = recipe_named(recipe)
    elif values.get("recipe") is not None:
        recipe = str(values["recipe"])
        if number == 1 and recipe_named(recipe).after:
            raise ValueError(
                f"{where}: {recipe} goes on from {recipe_named(recipe).after}; let that be the stage before"
            )
    kept = {name: value for name, value in common.items() if name not in named or name == "settings"}
    for name in (*_OF_THE_WHOLE, *(["recipe"] if recipe is not None else [])):
        kept.pop(name, None)
    if number > 1:  # a stage takes over configuration and tokenizer with the weights
        for name in ("from_bert", "tokenizer", "background_first"):
            kept.pop(name, None)
    if chosen is not None:
        kept.pop("captions" if chosen.task_text else "task_text", None)
        words = ["--recipe", str(recipe), *words]
    arguments = [*(word for value in kept.values() for word in value), *words]
    return Stage(recipe or f"stage {number}", arguments, list(_decisive(context, arguments)))


def _check_ahead(context: typer.Context, stages: Sequence[Stage], done: Collection[int]) -> None:
    """Says before the first stage has trained for days what a later one would stop at: settings that are none, files or
    local stores that are not there, stores with features of different spaces or without the boxes that words name.

    Args:
        done: stages whose data is read no more, and may be gone.
    Raises:
        ValueError: naming the stage.
    """
    from roibeam.features.store import FeatureStore
    from roibeam.pipelines.inputs.captioned.captioned_store import check_pair_agrees
    from roibeam.pipelines.inputs.captioned.task_corpus import check_given_boxes

    with ExitStack() as opened:
        first: FeatureStore | None = None
        for number, stage in enumerate(stages, start=1):
            if number in done:
                continue
            values, _, _ = context.command.make_parser(context).parse_args(list(stage.arguments))
            try:
                aligns_words = _check_settings(values)
                _check_files(context, values)
                for path in (each for name in _STORES for each in _as_list(values.get(name)) if "://" not in each):
                    store = opened.enter_context(FeatureStore(path))
                    if first is not None:
                        check_pair_agrees(first, store, in_one_run=False)
                    if aligns_words:
                        check_given_boxes(store)
                    first = first or store
            except (ValueError, OSError) as error:
                name = f"stage {number}"
                raise ValueError(f"{name if stage.name == name else f'{name} ({stage.name})'}: {error}") from None


def _check_settings(values: Mapping[str, Any]) -> bool:
    """Whether --set makes words be aligned with the regions that they name; ValueError for a setting that is none.

    Settings of the model and of the encoder are left to the stage.
    """
    from roibeam.pipelines.foundation.overrides import apply_overrides
    from roibeam.pipelines.pretraining.recipes.published import recipe_named
    from roibeam.pipelines.pretraining.systems import system_named
    from roibeam.pipelines.pretraining.task import DataConfig
    from roibeam.pipelines.training.train_config import TrainConfig

    published = None if values.get("recipe") is None else recipe_named(str(values["recipe"]))
    system = system_named(published.system if published else values.get("system") or "vlbert")
    sections = {
        "train": TrainConfig(steps=2**40),
        "data": DataConfig(),
        "sampling": published.sampling if published else system.sampling(),
    }
    settings = [each for each in _as_list(values.get("settings")) if each.partition(".")[0].strip() in sections]
    return system.aligns_words(apply_overrides(sections, settings)["sampling"])


def _check_files(context: typer.Context, values: Mapping[str, Any]) -> None:
    from roibeam.pipelines.cli.options.given_stores import OWN_CAPTIONS

    for name in _FILES:
        for file in _as_list(values.get(name)):
            if file != OWN_CAPTIONS and not os.path.isfile(file):
                raise ValueError(f"{_spelled(context, name)}: no file here: {file!r}")


def _as_list(value: Any) -> list[str]:
    return [] if value is None else [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]


def options_given(context: typer.Context) -> dict[str, list[str]]:
    """The words of each option that the user gave, by the name of its parameter."""
    words: dict[str, list[str]] = {}
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            words[name] = _words(parameter, value)
    return words


def _words(parameter: Any, value: Any) -> list[str]:
    if getattr(parameter, "is_flag", False):
        return [parameter.opts[0] if value else parameter.secondary_opts[0]]
    values = value if isinstance(value, list | tuple) else [value]
    return [word for each in values for word in (parameter.opts[0], str(each))]


def _decisive(context: typer.Context, arguments: Sequence[str]) -> Iterator[str]:
    """The options that decide what comes out, one text for each; settings that do not are left out."""
    from roibeam.pipelines.training.run_folder.folder import is_free_on_resume

    values, _, parameters = context.command.make_parser(context).parse_args(list(arguments))
    for parameter in dict.fromkeys(parameters):
        name, value = str(parameter.name), values.get(str(parameter.name))
        if value is None or name in _FREE:
            continue
        if name == "settings":
            yield from (f"--set {each}" for each in value if not is_free_on_resume(each.partition("=")[0].strip()))
        else:
            yield shlex.join(_words(parameter, value))


def _spelled(context: typer.Context, name: str) -> str:
    parameter = next(each for each in context.command.params if each.name == name)
    return "the run folder" if name == "out" else str(parameter.opts[0])
