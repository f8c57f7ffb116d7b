"""The command `roibeam`. Each command prints where its output went; bad input gives one line and a non-zero exit."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from roibeam.pipelines.cli.command_end import run_to_the_end
from roibeam.pipelines.cli.conformance import conformance_command
from roibeam.pipelines.cli.convert import convert_command
from roibeam.pipelines.cli.detector import detector_app
from roibeam.pipelines.cli.download import download_command
from roibeam.pipelines.cli.extract import ExtractCommand, extract_command
from roibeam.pipelines.cli.leaks import leaks_command
from roibeam.pipelines.cli.look import look_command
from roibeam.pipelines.cli.progress import progress_command
from roibeam.pipelines.cli.store.info import store_app
from roibeam.pipelines.cli.toyworld import toyworld_command
from roibeam.pipelines.cli.train.evaluate import evaluate_command
from roibeam.pipelines.cli.train.pretrain import pretrain_command
from roibeam.pipelines.cli.train.probe import probe_command
from roibeam.pipelines.cli.train.recipes import recipes_command
from roibeam.pipelines.cli.worker_pool import worker_pool_command
from roibeam.pipelines.foundation.console.our_logs import show_our_logs
from roibeam.version import __version__

app = typer.Typer(
    name="roibeam",
    help="Region features for vision-language models: photos in, region shards out, and the training that reads them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("extract", cls=ExtractCommand)(extract_command)
app.command("look")(look_command)
app.command("progress")(progress_command)
app.command("download")(download_command)
app.command("pretrain")(pretrain_command)
app.command("recipes")(recipes_command)
app.command("evaluate")(evaluate_command)
app.command("probe")(probe_command)
app.command("leaks")(leaks_command)
app.command("conformance")(conformance_command)
app.command("convert")(convert_command)
app.command("toyworld")(toyworld_command)
app.command("worker-pool")(worker_pool_command)
app.add_typer(store_app, name="store")
app.add_typer(detector_app, name="detector")


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug/--no-debug", help="Show tracebacks and debug logs.")] = False,
) -> None:
    if show_version:
        typer.echo(f"roibeam {__version__}")
        raise typer.Exit
    show_our_logs(debug=debug)


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Argument(help="Folder to write pictures, store, report and training run into.")],
) -> None:
    """Draws small pictures with captions, extracts their regions, trains a small VL-BERT on them."""
    from roibeam.pipelines.foundation.files.named_files import check_output_is_no_file

    check_output_is_no_file(out)
    from roibeam.pipelines.demo import run_demo  # torch

    # A clone's environment is often not on the path: then the command is told as it was called.
    run_demo(out, tell=typer.echo, command="roibeam" if shutil.which("roibeam") else sys.argv[0])


def main() -> NoReturn:
    """Entry point of the console script."""
    # Processes that we or Beam start must not find a user's model.py in the working directory in place of our packages.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    run_to_the_end(app)
