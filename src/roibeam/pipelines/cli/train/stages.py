"""`roibeam pretrain` in stages: the options of one command into the requests of its stages."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from roibeam.pipelines.pretraining.requests.request import PretrainRequest, RequestedModel

if TYPE_CHECKING:
    from roibeam.pipelines.pretraining.requests.checked_stages import RequestedStage

REQUEST_ALONE = object()  # as `context.obj`: the command gives its request, and runs nothing

# What says how the command runs or where it starts, not what a stage is.
_OF_THE_WHOLE = ("out", "stage", "resume", "resume_from", "as_json", "from_run")
# What changes no result, so a stage that is done stays done.
_FREE = frozenset({"resume", "resume_from", "as_json", "inspect_batch", "threads", "device", "cache_dir", "cache_gb",
                   "checksums"})  # fmt: skip


def stages_of(context: typer.Context, asked: RequestedModel, given: Sequence[str]) -> list[RequestedStage]:
    """The stages that a command asks for: --stage as often as there are, or a recipe that goes on from another one;
    none where the command is one run.

    Raises:
        ValueError: for options that cannot be of a stage; what `recipes_in_row` and `check_recipe_of_stage` raise.
    """
    from roibeam.pipelines.pretraining.requests.stage_rules import recipes_in_row

    chain = recipes_in_row(asked, len(given))
    if not given and not chain:
        return []
    common = options_given(context)
    return [
        _stage(context, common, own, number, None if not chain else chain[number - 1])
        for number, own in enumerate(given or [""] * len(chain), start=1)
    ]


def _stage(
    context: typer.Context, common: Mapping[str, list[str]], own: str, number: int, recipe: str | None
) -> RequestedStage:
    from roibeam.pipelines.pretraining.requests.checked_stages import RequestedStage
    from roibeam.pipelines.pretraining.requests.stage_rules import check_recipe_of_stage, not_passed_on

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
    if recipe is not None:
        if "recipe" in named:
            raise ValueError(f"{where}: the command's --recipe names the recipe of each stage")
        words = ["--recipe", recipe, *words]
    left_out = {*_OF_THE_WHOLE, *not_passed_on(number, recipe)}
    kept = {
        name: value
        for name, value in common.items()
        if name not in left_out and (name not in named or name == "settings")
    }
    if recipe is None and "recipe" in named:
        recipe = str(values["recipe"])
        check_recipe_of_stage(recipe, number, where)
    arguments = [*(word for value in kept.values() for word in value), *words]
    options = list(_decisive(context, arguments))
    return RequestedStage(recipe or f"stage {number}", _request(context, arguments), options)


def _request(context: typer.Context, arguments: Sequence[str]) -> PretrainRequest:
    """What the command would run with these arguments in place of its own, in the same run folder."""
    words = [str(context.params["out"]), *arguments]
    with context.command.make_context(context.info_name, words, parent=context.parent, obj=REQUEST_ALONE) as own:
        request = own.command.invoke(own)
    assert isinstance(request, PretrainRequest)
    return request


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
    from roibeam.pipelines.training.run_folder.free_settings import is_free_on_resume

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
