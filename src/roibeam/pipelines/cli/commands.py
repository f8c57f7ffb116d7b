"""All commands of `roibeam`, in the order of the help. Each prints where its output went."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.analysis import attention_command, evaluate_command, probe_command, search_command
from roibeam.pipelines.cli.collect import collect_app, download_command
from roibeam.pipelines.cli.convert import convert_command
from roibeam.pipelines.cli.detector import detector_app
from roibeam.pipelines.cli.developers import conformance_command, leaks_command, worker_pool_command
from roibeam.pipelines.cli.extract import ExtractCommand, extract_command, look_command, progress_command
from roibeam.pipelines.cli.finetune import finetune_command, predict_command, score_command
from roibeam.pipelines.cli.help_pages import (
    DEVELOPERS,
    FEATURES,
    HELP_NAMES,
    LOOKING,
    SETUP,
    STORES,
    TRAIN,
    HelpedCommand,
    HelpedGroup,
)
from roibeam.pipelines.cli.pretrain import pretrain_command
from roibeam.pipelines.cli.recipes import recipes_command
from roibeam.pipelines.cli.request_command import request_command
from roibeam.pipelines.cli.store import store_app
from roibeam.pipelines.cli.tables import data_app, tables_command
from roibeam.pipelines.cli.toyworld import toyworld_command
from roibeam.pipelines.common.console.progress import configure_logging
from roibeam.pipelines.common.console.request_options import argument

app = typer.Typer(
    name="roibeam",
    cls=HelpedGroup,
    help="Region features for vision-language models: extract them from photos, keep them in stores, train on them.",
    context_settings={"help_option_names": HELP_NAMES},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _add(group: str, name: str, command: Callable[..., object], cls: type[HelpedCommand] = HelpedCommand) -> None:
    app.command(name, cls=cls, rich_help_panel=group)(request_command(command))


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Print what a bug report needs, and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug logs.")] = False,
) -> None:
    if show_version:
        from roibeam.version import __version__  # the one caller; it reads the package's metadata

        typer.echo(f"roibeam {__version__}")
        raise typer.Exit
    if report:
        from roibeam.pipelines.cli.bug_report import bug_report

        typer.echo(bug_report())
        raise typer.Exit
    configure_logging(debug=debug)


def demo_command(out: Annotated[Path, argument("OUT", "Folder to write.")]) -> None:
    """Shows the whole chain on drawn pictures, without a download.

    It extracts regions, trains a small VL-BERT and shows its predictions, in a few minutes on two cores.

    Examples:
        roibeam demo demo/
    """
    from roibeam.pipelines.common.console.command_files import check_output_is_no_file

    check_output_is_no_file(out)
    from roibeam.pipelines.cli.demo import run_demo

    # A clone's environment is often not on the path: then the printed command is as it was called.
    run_demo(out, tell=typer.echo, command="roibeam" if shutil.which("roibeam") else sys.argv[0])


# In the order of the help.
_add(FEATURES, "extract", extract_command, ExtractCommand)
_add(FEATURES, "download", download_command)
app.add_typer(collect_app, name="collect", rich_help_panel=FEATURES)
app.add_typer(store_app, name="store", rich_help_panel=STORES)
_add(TRAIN, "pretrain", pretrain_command)
_add(TRAIN, "finetune", finetune_command)
_add(TRAIN, "predict", predict_command)
_add(TRAIN, "recipes", recipes_command)
_add(TRAIN, "tables", tables_command)
app.add_typer(data_app, name="data", rich_help_panel=TRAIN)
app.add_typer(detector_app, name="detector", rich_help_panel=TRAIN)
_add(LOOKING, "look", look_command)
_add(LOOKING, "probe", probe_command)
_add(LOOKING, "search", search_command)
_add(LOOKING, "evaluate", evaluate_command)
_add(LOOKING, "attention", attention_command)
_add(LOOKING, "score", score_command)
_add(LOOKING, "progress", progress_command)
_add(SETUP, "demo", demo_command)
_add(SETUP, "toyworld", toyworld_command)
_add(SETUP, "convert", convert_command)
_add(DEVELOPERS, "conformance", conformance_command)
_add(DEVELOPERS, "leaks", leaks_command)
_add(DEVELOPERS, "worker-pool", worker_pool_command)
