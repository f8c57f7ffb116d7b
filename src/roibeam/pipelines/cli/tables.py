"""`roibeam tables | data check`: tables of the five papers, the recipes that make them, the data that they need."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.messages import plural
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.help_pages import HelpedCommand, HelpedGroup
from roibeam.pipelines.cli.request_command import request_command
from roibeam.pipelines.common.console.request_options import (
    INPUT,
    OUTPUT,
    SPEED,
    TRAINING,
    Json,
    argument,
    option,
    part_of,
)

if TYPE_CHECKING:
    from roibeam.pipelines.cli.recipe_commands import Command
    from roibeam.pipelines.cli.table_run import TableRequest
    from roibeam.pipelines.common.statistics.paper_figures import PaperTable
    from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
    from roibeam.pipelines.pretraining.recipes.recipe import Recipe


Data = Annotated[Path | None, option(
    "Folder of the official files, each data set in a folder of its own; --dry-run names them.", "DIR", INPUT,
)]  # fmt: skip
Stores = Annotated[Path | None, option("Folder of the stores; --dry-run names them.", "DIR", INPUT)]


def tables_command(
    name: Annotated[str | None, argument("NAME", "Table to show in full, or to reproduce with --out.")] = None,
    data: Data = None,
    stores: Stores = None,
    scored: Annotated[Path | None, option(
        "JSON with figures of a test server, in percent: an object of columns for each row.", "FILE", INPUT,
    )] = None,
    only: Annotated[tuple[str, ...], option("Only these rows; may be given several times.", "PATTERN", TRAINING)] = (),
    seeds: Annotated[int, option("Runs of each recipe of a task.", "N", TRAINING, min=1)] = 1,
    toy: Annotated[bool, option("Small models on drawn pictures: a rehearsal of all commands.", "", TRAINING)] = False,
    jobs: Annotated[int, option("Commands that run at once, on one device.", "N", SPEED, min=1)] = 1,
    processes: Annotated[int, option("Processes of each training, by torchrun.", "N", SPEED, min=1)] = 1,
    part: Annotated[str, option(
        "Begin with this part of the runs, such as 2/8. Several calls in one shared folder divide the work.", "I/N",
        SPEED,
    )] = "1/1",
    out: Annotated[Path | None, option(
        "Where to write the result. A folder of runs and table; run again to continue.", "PATH", OUTPUT, "--out", "-o",
    )] = None,
    dry_run: Annotated[bool, option("Only print the commands, from the downloads on.", "", OUTPUT)] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Lists the tables of the five papers; shows one, or reproduces it.

    To reproduce a table, it trains, predicts and scores all of its rows, and compares the results with the printed
    figures. Tables of VisualBERT are those of its second paper.

    Examples:
        roibeam tables
        roibeam tables vilbert-2
        roibeam tables vilbert-2 --dry-run
        roibeam tables vilbert-2 --data data/ --stores stores/ --out out/
        roibeam tables interbert-2 --toy --out drill/
    """
    from roibeam.pipelines.common.statistics.paper_figures import paper_table, paper_tables

    chosen, its_part = list(paper_tables().values()) if name is None else [paper_table(name)], part_of(part)
    if toy and dry_run:
        raise ValueError("--toy draws its files, --dry-run names the official ones; leave one of them out")
    others = data, stores, only, scored, seeds > 1, jobs > 1, processes > 1, part != "1/1"
    if out is None and (toy or (not dry_run and any(others))):
        raise ValueError("--out is missing: the folder of runs and table; or --dry-run, to see what would be typed")
    if dry_run or out is not None:
        if name is None:
            raise ValueError("name the table to make; roibeam tables lists all")
        from roibeam.pipelines.cli.table_run import TableRequest, table_commands

        if dry_run:
            given = {"--scored": scored, "--jobs": jobs > 1, "--processes": processes > 1, "--part": part != "1/1"}
            if unused := ", ".join(each for each, is_given in given.items() if is_given):
                raise ValueError(f"--dry-run runs nothing, so that {unused} would have no effect; leave it out")
            folders = {"DATA": data, "STORES": stores, "RUNS": None if out is None else out / "runs"}
            echo_commands(table_commands(chosen[0], only, seeds).values(), folders, as_json=as_json)
            return
        assert out is not None
        _make(TableRequest(
            name, *_folders(data, stores, out, is_toy=toy), out, only, seeds, jobs, its_part,
            processes, scored, toy,
        ), as_json=as_json)  # fmt: skip
    elif as_json:
        typer.echo(json_line({each.name: _plain(each) for each in chosen}, event="tables"))
    elif name is None:
        width = max(len(each.name) for each in chosen)
        for each in chosen:
            typer.echo(f"{each.name:<{width}}  {plural(len(each.own), 'figure'):>10}  {each.caption}")
    else:
        typer.echo("\n".join(_lines(chosen[0])))


def echo_commands(
    commands: Collection[Command], folders: Mapping[str, Path | None], *, of: Recipe | TaskRecipe | None = None,
    as_json: bool,
) -> None:  # fmt: skip
    """Prints commands, and below them, as comments of a shell, what they need.

    Args:
        folders: as of `filled`.
        of: recipe whose commands they are, to name the recipes that measure its figures; None for a table's.
    """
    from roibeam.pipelines.cli.recipe_commands import filled, made_elsewhere, need_lines
    from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles

    named = NamedFiles()
    for option_name in ("--data", "--stores"):
        named.need(option_name, folders.get(option_name[2:].upper()), FOLDER)
    named.check()
    needs = [*(made_elsewhere(of, commands) if of else ()), *need_lines(list(commands), folders)]
    lines = [[filled(word, folders) for word in each.words] for each in commands]
    if as_json:
        typer.echo(json_line({"commands": lines, "needs": needs}))
    else:
        typer.echo("\n".join((*(shlex.join(("roibeam", *each)) for each in lines), *(f"# {line}" for line in needs))))


def _folders(data: Path | None, stores: Path | None, out: Path, *, is_toy: bool) -> tuple[Path, Path]:
    """DATA and STORES, which a drill draws."""
    if is_toy and (data is not None or stores is not None):
        raise ValueError("--toy draws data and stores of its own; leave --data and --stores out")
    if is_toy:
        return out / "toy" / "data", out / "toy" / "stores"
    if data is None or stores is None:
        raise ValueError("--data and --stores are needed: official files and stores, as --dry-run names them")
    return data, stores


def _make(request: TableRequest, *, as_json: bool) -> None:
    from roibeam.pipelines.cli.table_run import HEAD, TableRun

    run = TableRun(request, partial(typer.echo, err=as_json))
    if request.toy:
        from roibeam.pipelines.toyworld.paper_files import write_paper_files

        needs = dict.fromkeys(need[6:] for each in run.in_turn for need in each.needs if need.startswith("store "))
        write_paper_files(request.out / "toy", needs, os.cpu_count() or 1)
    run.check()
    failed = run.run()
    run.write()
    cells = run.cells()
    known = sum(bool(each.values or each.words) for each in cells)
    if as_json:
        typer.echo(json_line({"cells": [dict(zip(HEAD, each.line(), strict=True)) for each in cells]}))
    else:
        counts = f"{known} of {plural(len(cells), 'figure')}"
        typer.echo(f"{request.out / request.name}.html   {counts}; also .md and .csv")
    if failed:
        raise ValueError(f"{plural(len(failed), 'command')} failed, see {failed[0]}; run the same command again")


def _lines(table: PaperTable) -> Iterator[str]:
    from roibeam.pipelines.cli.recipe_commands import AVERAGED, chain_of

    yield f"{table.name}: {table.title}: {table.caption}"
    for row, figures in groupby(table.own, key=lambda each: each.row):
        yield f"  {row}"
        for each in figures:
            made_by = " > ".join(chain_of(each.recipe)) if each.recipe else f"none: {each.why}"
            made_by = "mean of the row's tasks" if each.recipe and each.task == AVERAGED else made_by
            yield from textwrap.wrap(
                f"{each.column:<44} {each.printed:>6}  {made_by}", 110, initial_indent="    ",
                subsequent_indent=" " * 57, break_on_hyphens=False, break_long_words=False,
            )  # fmt: skip
    quoted = Counter(each.quoted for each in table.figures if each.quoted)
    yield from (
        f"  and {plural(count, 'figure')} of {'others' if each == 'other work' else 'a data set'}"
        for each, count in quoted.items()
    )
    yield "  roibeam recipes NAME prints settings and features of a recipe"


def _plain(table: PaperTable) -> dict[str, object]:
    return {"paper": table.paper, "place": table.place, "caption": table.caption} | {
        "figures": [asdict(each) for each in table.figures]
    }


data_app = typer.Typer(cls=HelpedGroup, help="Official files of data sets.", rich_markup_mode=None)


@data_app.command("check", cls=HelpedCommand)
@request_command
def check_command(
    task: Annotated[str, argument("TASK", "Task, as in `roibeam finetune --task`.")],
    data: Annotated[Path, argument("DATA", "Folder with the official files of a data set.")],
    as_json: Json = False,
) -> None:
    """Compares official files with the published counts.

    For each split it prints the number of rows, the published number, the first and the last id, and what is missing,
    cut off or of another version, such as photos that rows name. The exit code is 1 if a file is incomplete, or if
    there is none.

    Examples:
        roibeam data check vqa vqa/
        roibeam data check refcoco+ refcoco+/
    """
    from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles
    from roibeam.pipelines.finetuning.scored_tasks import check_data

    named = NamedFiles()
    named.need("DATA", data, FOLDER)
    named.check()
    found = check_data(task, data)
    if as_json:
        typer.echo(json_line({"splits": [each._asdict() for each in found]}))
    else:
        typer.echo(f"{'split':<16}{'rows':>12}{'published':>12}  first .. last")
        for each in found:
            rows = "-" if each.rows is None else f"{each.rows:,}"
            published = "not known" if each.published is None else f"{each.published:,}"
            words = "; ".join(filter(None, (f"{each.first} .. {each.last}" * bool(each.first), each.fault)))
            typer.echo(f"{each.split:<16}{rows:>12}{published:>12}  {words}")
        typer.echo(
            "not checked: texts and answers of VQA; what is inside photos; where COCO's and Flickr30k's photos are"
        )
    if any(each.fault for each in found if not each.is_missing) or all(each.is_missing for each in found):
        raise typer.Exit(1)
