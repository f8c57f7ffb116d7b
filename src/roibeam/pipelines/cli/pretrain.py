"""`roibeam pretrain`: pre-training on a store, in one run or in stages."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.messages import plural
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.common.compute import sleep_beside_others
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.console.request_options import TRAINING, Json, option
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedModel

if TYPE_CHECKING:
    from roibeam.pipelines.pretraining.checked_request import RequestedStage
    from roibeam.pipelines.pretraining.run_setup import PretrainResult

REQUEST_ALONE = object()  # as `context.obj`: the command gives its request, and runs nothing

# Parameters of the whole command: how it runs and where it starts.
_OF_THE_WHOLE = ("out", "stage", "resume", "resume_from", "dry_run", "json", "from_run")
# Parameters that change no result, so a stage that is done stays done.
_FREE = frozenset({"resume", "resume_from", "json", "inspect_batch", "threads", "device", "cache_dir", "cache_gb",
                   "checksums"})  # fmt: skip


def stages_of(context: typer.Context, model: RequestedModel, given: Sequence[str]) -> list[RequestedStage]:
    """Returns the stages of a command: one for each --stage, or those of a recipe that goes on from another one; none
    where the command is one run.

    Raises:
        ValueError: for options that cannot be of a stage; what `recipes_in_row` and `check_recipe_of_stage` raise.
    """
    from roibeam.pipelines.pretraining.checked_request import recipes_in_row

    chain = recipes_in_row(model, len(given))
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
    from roibeam.pipelines.pretraining.checked_request import RequestedStage, check_recipe_of_stage, not_passed_on

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
        name: value for name, value in common.items() if name not in left_out and (name not in named or name == "set")
    }
    if recipe is None and "recipe" in named:
        recipe = str(values["recipe"])
        check_recipe_of_stage(recipe, number, where)
    arguments = [*(word for value in kept.values() for word in value), *words]
    options = list(_decisive(context, arguments))
    return RequestedStage(recipe or f"stage {number}", _request(context, arguments), options)


def _request(context: typer.Context, arguments: Sequence[str]) -> PretrainRequest:
    """Returns the request of the command with these arguments in place of its own, in the same run folder."""
    words = [str(context.params["out"]), *arguments]
    with context.command.make_context(context.info_name, words, parent=context.parent, obj=REQUEST_ALONE) as own:
        request = own.command.invoke(own)
    assert isinstance(request, PretrainRequest)
    return request


def options_given(context: typer.Context) -> dict[str, list[str]]:
    """Returns the words of each option that the user gave, by the name of its parameter."""
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
    """Yields the options that change the result, one text for each; settings that do not are left out."""
    from roibeam.pipelines.training.run_folder.folder import is_free_on_resume

    values, _, parameters = context.command.make_parser(context).parse_args(list(arguments))
    for parameter in dict.fromkeys(parameters):
        name, value = str(parameter.name), values.get(str(parameter.name))
        if value is None or name in _FREE:
            continue
        if name == "set":
            yield from (f"--set {each}" for each in value if not is_free_on_resume(each.partition("=")[0].strip()))
        else:
            yield shlex.join(_words(parameter, value))


def _spelled(context: typer.Context, name: str) -> str:
    parameter = next(each for each in context.command.params if each.name == name)
    return "the run folder" if name == "out" else str(parameter.opts[0])


def pretrain_command(
    context: typer.Context,
    request: PretrainRequest,
    stage: Annotated[tuple[str, ...], option(
        "Options of one training stage; several stages run one after the other. Such as --stage '--store web/' --stage "
        "'--store coco/ --steps 5000'. Each stage starts from the weights of the one before; its folder is "
        "OUT/stage-N.", "OPTIONS", TRAINING, advanced=True,
    )] = (),
    json: Json = False,
) -> PretrainRequest | None:  # fmt: skip
    """Trains a model on captions and the regions of a store.

    The model learns to predict masked words and masked regions, and which captions and images match. torchrun runs it
    on several GPUs.

    Examples:
        roibeam pretrain run/ --store store/ --captions captions.json
        roibeam pretrain run/ --store store/ --recipe vlbert-paper --toy
        roibeam pretrain run/ --store store/ --end-to-end --weights vg.pkl
        torchrun --no-python --nproc-per-node 8 roibeam pretrain run/ --store store/
    """
    if context.obj is REQUEST_ALONE:
        return request
    _run(request, stages_of(context, request.model, stage), as_json=json)
    return None


def _run(request: PretrainRequest, stages: Sequence[RequestedStage], *, as_json: bool) -> None:
    """Runs the stages, or without any the request itself, and prints the results."""
    # Before torch is imported.
    from roibeam.pipelines.pretraining.checked_request import check_request, check_stages

    training = request.training
    if stages:
        if training.resume_from is not None or training.dry_run:
            option = "--dry-run" if training.dry_run else "--resume-from"
            raise ValueError(f"{option} is for one run; give it the options of one stage")
        check_stages(request.out, stages)
    else:
        check_request(request)
    sleep_beside_others()
    with waiting("loading torch"):
        from roibeam.pipelines.cli.figure_table import print_dry_run
        from roibeam.pipelines.common.compute import is_main_process
        from roibeam.pipelines.pretraining.requested_run import run_pretraining, run_stages

    def print_once(one: PretrainRequest, result: PretrainResult) -> None:
        if is_main_process():
            _print_result(one, result, as_json=as_json)

    if training.dry_run:
        print_dry_run(lambda out: run_pretraining(replace(request, out=out)), as_json=as_json)
        return
    if not stages:
        print_once(request, run_pretraining(request))
        return
    run_stages(request.out, stages, resume=training.resume, tell=print_once)
    if is_main_process() and not as_json:
        typer.echo(f"\n{request.out}/\n  report.html   look here first: all {len(stages)} stages")


def _print_result(request: PretrainRequest, result: PretrainResult, *, as_json: bool) -> None:
    from roibeam.pipelines.cli.figure_table import figure_lines, origin_facts, origin_lines, run_folder_lines
    from roibeam.pipelines.training.run_folder.run_summary import DETECTOR_NAME, change_rows, encoder_lines

    out = result.run_dir
    if as_json:
        typer.echo(json_line({**result.to_json(), **origin_facts(out)}))
        return
    if result.left_out:
        image_id, why = next(iter(result.left_out.items()))
        typer.echo(f"{plural(len(result.left_out), 'image')} left out, such as {image_id!r}: {why}")
    typer.echo(result.training.done())
    typer.echo(origin_lines(out))
    typer.echo(f"evaluated on {result.asked}:")
    typer.echo("\n".join(figure_lines(result.figures)))
    if result.detector is not None:
        typer.echo(f"the detector on {plural(result.detector['photos'], 'held-out photo')}, before and after")
        for name, before, after in change_rows(result.detector):
            typer.echo(f"  {name:<30} {before:>8} {after:>8}")
    if result.encoder is not None:
        typer.echo("\n".join(encoder_lines(result.encoder)))
    typer.echo(f"\n{out}/\n  {result.training.checkpoint.relative_to(out)}/   weights, optimizer, position")
    typer.echo("\n".join(run_folder_lines(out, result.training)))
    typer.echo("  tokenizer/")
    if result.detector is not None:
        typer.echo(f"  {DETECTOR_NAME}   the detector before and after, class by class")
    if request.training.inspect_batch:
        typer.echo("  batch.html   rows of the first batch, to look at")
