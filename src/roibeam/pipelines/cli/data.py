"""`roibeam data check`: official files beside their published counts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.help_pages import HelpedCommand, HelpedGroup
from roibeam.pipelines.cli.request_command import request_command
from roibeam.pipelines.common.console.request_options import Json, argument

data_app = typer.Typer(cls=HelpedGroup, help="Official files of data sets.", rich_markup_mode=None)


@data_app.command("check", cls=HelpedCommand)
@request_command
def check_command(
    task: Annotated[str, argument("TASK", "As of `roibeam finetune`.")],
    data: Annotated[Path, argument("DATA", "Folder with the official files of a data set.")],
    as_json: Json = False,
) -> None:
    """Compares official files with the published counts.

    For each split it tells rows, published rows, the first and the last id, and what is missing, cut or of another
    version. It ends with 1 if a split that is there has another count, or if none is there.

    Examples:
        roibeam data check vqa vqa/
        roibeam data check refcoco+ refcoco+/
    """
    from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles
    from roibeam.pipelines.finetuning.data_check import check_data

    named = NamedFiles()
    named.need("DATA", data, FOLDER)
    named.check()
    found = check_data(task, data)
    if as_json:
        typer.echo(json_line({"splits": [asdict(each) for each in found]}))
    else:
        typer.echo(f"{'split':<16}{'rows':>12}{'published':>12}  first .. last")
        for each in found:
            rows = "-" if each.rows is None else f"{each.rows:,}"
            published = "not known" if each.published is None else f"{each.published:,}"
            told = each.fault or f"{each.first} .. {each.last}"
            typer.echo(f"{each.split:<16}{rows:>12}{published:>12}  {told}")
    there = [each for each in found if each.rows is not None]
    if not there or any(each.fault for each in there):
        raise typer.Exit(1)
