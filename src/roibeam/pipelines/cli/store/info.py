"""`roibeam store info | verify | show`: look at a store; and where the other commands on stores are put together."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from roibeam.features.counted import counted
from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import JSON_OUTPUT
from roibeam.pipelines.cli.store.copy import copy_command, plan_command
from roibeam.pipelines.cli.store.exchange import diff_command, export_command, import_command
from roibeam.pipelines.cli.store.repair import repair_command

store_app = typer.Typer(
    help="Look at a store, repair, copy, merge or cut it, compare two, exchange features with other code bases.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_STORE = typer.Argument(help="Folder that `roibeam extract`, `store import` or `store copy` wrote.")


@store_app.command("info")
def info_command(
    store: Annotated[str, typer.Argument(help="Store: a folder, or its URL (s3://, gs://, ...).")],
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """What is in a store: counts, sizes, and what its features mean."""
    from roibeam.pipelines.stores.store_facts import data_bytes, read_manifest, store_facts

    manifest = read_manifest(store)
    if as_json:
        content = manifest.to_json()
        typer.echo(json_line({**content, "data_bytes": data_bytes(manifest), "store": str(store)}))
        return
    typer.echo("\n".join([str(store), *(f"  {name:<15} {value}" for name, value in store_facts(manifest).items())]))


@store_app.command("verify")
def verify_command(
    store: Annotated[Path, _STORE],
    deep: Annotated[bool, typer.Option("--deep/--no-deep", help="Also read every record: checksums, digests.")] = False,
    shards: Annotated[
        str | None,
        typer.Option(help="Shards that --deep reads, <first>-<last> or <first>-: to go on, to share work [all]."),
    ] = None,
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """Checks manifests, sizes, indexes and the table of captions (seconds); with --deep every byte of every record and
    every row; exit 1 on a problem."""
    from roibeam.pipelines.stores.store_check import check_store

    problems = check_store(store, deep=deep, shards=shards, tell=lambda line: typer.echo(f"roibeam: {line}", err=True))
    if as_json:
        typer.echo(
            json_line({"store": str(store), "deep": deep, "problems": [asdict(problem) for problem in problems]})
        )
    else:
        for problem in problems:
            typer.echo(f"{problem.file}: {problem.what}; {problem.what_to_do}")
        depth = "every record read" if deep else "manifests, sizes and indexes; --deep reads every record"
        if shards is not None:
            depth = f"every record of the shards {shards} read; manifests, sizes and indexes of all"
        count = counted(len(problems), "problem")
        typer.echo(f"{store}: {count}" if problems else f"{store}: clean ({depth})")
    if problems:
        raise typer.Exit(1)


@store_app.command("show")
def show_command(
    store: Annotated[Path, _STORE],
    image_id: Annotated[str | None, typer.Argument(help="Image to show [default: the first].")] = None,
    regions: Annotated[int, typer.Option(min=1, help="Regions to list, best first.")] = 10,
    draw: Annotated[
        Path | None,
        typer.Option(
            help="Also draw these regions on the photo, into this .png file; takes the place of an older one that was "
            "drawn so, of no other file.",
            show_default=False,
        ),
    ] = None,
    photo: Annotated[
        Path | None, typer.Option(help="With --draw: the photo [default: where the store says].", show_default=False)
    ] = None,
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """One record: size, captions, labels, boxes, classes, attributes, feature statistics; a picture with --draw."""
    from roibeam.pipelines.stores.record_view import draw_stored, view_record

    if photo is not None and draw is None:
        raise ValueError("--photo is for --draw")
    view = view_record(store, image_id, num_regions=regions)
    if draw is not None:
        draw_stored(store, view.record.image_id, draw, photo, num_regions=regions)
    if as_json:
        typer.echo(json_line(view.to_json() if draw is None else {**view.to_json(), "picture": str(draw)}))
        return
    typer.echo("\n".join(view.lines()))
    if draw is not None:
        typer.echo(f"{draw}   the photo with {'its regions' if view.is_whole else 'the best regions'}")


# Below the others, so that `--help` lists those first.
store_app.command("repair")(repair_command)
store_app.command("copy")(copy_command)
store_app.command("plan")(plan_command)
store_app.command("diff")(diff_command)
store_app.command("import")(import_command)
store_app.command("export")(export_command)
