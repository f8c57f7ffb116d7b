"""`roibeam store info | verify | show | ids | dead-letters`; here the other commands on stores are put together."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from unicodedata import category

import typer

from roibeam.features.counted import counted
from roibeam.features.printable import on_a_line
from roibeam.pipelines.cli.options import JSON, SCRATCH
from roibeam.pipelines.cli.store.copy import copy_command, plan_command
from roibeam.pipelines.cli.store.exchange import diff_command, export_command, import_command
from roibeam.pipelines.cli.store.repair import repair_command
from roibeam.pipelines.cli.surface.command import HelpedCommand, HelpedGroup
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option
from roibeam.pipelines.cli.surface.option_names import OUTPUT
from roibeam.pipelines.common.console.printable_streams import Unchanged

store_app = typer.Typer(
    cls=HelpedGroup,
    help="Stores of region features: looked at, repaired, copied, compared, exchanged with other code bases.",
    rich_markup_mode=None,
)
_STORE = argument("STORE", "Store: a folder, or its URL (s3://, gs://, ...).")


@store_app.command("info", cls=HelpedCommand)
def info_command(
    store: Annotated[str, _STORE],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Shows what is in a store, and how its features were made.

    Examples:
        roibeam store info store/
    """
    from roibeam.features.reading.unfinished_stores import unfinished_run_of
    from roibeam.pipelines.extract.stores.places import folder_at
    from roibeam.pipelines.extract.stores.store_facts import data_bytes, read_manifest, store_facts

    manifest = read_manifest(store)
    unfinished = unfinished_run_of(folder_at(store), manifest)
    if as_json:
        content = {**manifest.to_json(), "unfinished": None if unfinished is None else asdict(unfinished)}
        typer.echo(json_line({**content, "data_bytes": data_bytes(manifest), "store": str(store)}))
        return
    facts = store_facts(manifest, unfinished)
    typer.echo("\n".join([str(store), *(f"  {name:<15} {value}" for name, value in facts.items())]))


@store_app.command("verify", cls=HelpedCommand)
def verify_command(
    store: Annotated[str, _STORE],
    deep: Annotated[bool, option("deep")] = False,
    shards: Annotated[str | None, option("shards", "With --deep.", default="all")] = None,
    scratch: Annotated[str | None, SCRATCH] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Checks that a store is whole.

    Without --deep it checks manifests, sizes, indexes and captions, which takes seconds. The exit code is 1 if there is
    a problem. Of a store at a URL, --deep copies one shard after the other to a temporary folder.

    Examples:
        roibeam store verify store/
        roibeam store verify s3://bucket/store
        roibeam store verify store/ --deep
    """
    from roibeam.pipelines.extract.stores.places import check_scratch
    from roibeam.pipelines.extract.stores.store_check import check_store

    check_scratch(scratch, (store,))
    problems = check_store(store, deep=deep, shards=shards, scratch=scratch)
    if as_json:
        typer.echo(
            json_line({"store": str(store), "deep": deep, "problems": [asdict(problem) for problem in problems]})
        )
    else:
        for problem in problems:
            typer.echo(on_a_line(f"{problem.file}: {problem.what}; {problem.what_to_do}"))
        depth = "every record read" if deep else "manifests, sizes and indexes; --deep reads every record"
        if shards is not None:
            depth = f"every record of the shards {shards} read; manifests, sizes and indexes of all"
        count = counted(len(problems), "problem")
        typer.echo(f"{store}: {count}" if problems else f"{store}: clean ({depth})")
    if problems:
        raise typer.Exit(1)


@store_app.command("show", cls=HelpedCommand)
def show_command(
    store: Annotated[Path, _STORE],
    image_id: Annotated[str | None, argument("IMAGE_ID", "Image to show [default: the first].")] = None,
    max_regions: Annotated[int, option("max-regions")] = 10,
    draw: Annotated[Path | None, option("draw", "It replaces an older picture of ours.")] = None,
    photo: Annotated[
        Path | None,
        option("photo", "With --draw; none: a blank page.", group=OUTPUT, default="where the store says"),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Shows one image of a store: its captions, regions and features.

    Examples:
        roibeam store show store/
        roibeam store show store/ 000000391895 --draw regions.png
    """
    from roibeam.pipelines.extract.stores.record_view import BLANK, draw_stored, view_record

    if photo is not None and draw is None:
        raise ValueError("--photo is for --draw")
    view = view_record(store, image_id, num_regions=max_regions)
    if draw is not None:
        draw_stored(store, view.record.image_id, draw, photo, num_regions=max_regions)
    if as_json:
        typer.echo(json_line(view.to_json() if draw is None else {**view.to_json(), "picture": str(draw)}))
        return
    typer.echo("\n".join(view.lines()))
    if draw is not None:
        page = "a blank page" if photo == BLANK else "the photo"
        typer.echo(f"{draw}   {page} with {'its regions' if view.is_whole else 'the best regions'}")


@store_app.command("ids", cls=HelpedCommand)
def ids_command(store: Annotated[str, _STORE], as_json: Annotated[bool, JSON] = False) -> None:
    """Lists the image ids of a store, one on each line.

    Such a list in a file, or a part of it, is what `roibeam store copy --ids` takes. An id that a line cannot hold, as
    one with a line break, is spelled with escapes; --json has it as it is, and --ids takes that too.

    Examples:
        roibeam store ids store/
    """
    from roibeam.features.reading.borrowed_store import borrowed_store
    from roibeam.features.reading.indexed_ids import IndexedIds

    with borrowed_store(store) as opened:
        ids = iter(IndexedIds(opened)) if opened.folder.local_path is None else opened.ids()
        if as_json:
            typer.echo(json_line({"store": store, "ids": list(ids)}))
            return
        escaped, is_terminal = 0, sys.stdout.isatty()
        for number, image_id in enumerate(ids):
            # A file gets format characters as they are, such as the joiners of Persian names; a terminal does not.
            shown = on_a_line(image_id) if is_terminal else _without_controls(image_id)
            escaped += shown != image_id
            if not is_terminal and number == 0 and shown.startswith("\ufeff"):
                shown = "\ufeff" + shown  # readers take one mark off a file's first bytes
            sys.stdout.write(Unchanged(shown + "\n"))
        if escaped:
            typer.echo(
                f"roibeam: {counted(escaped, 'id holds', 'ids hold')} line breaks or other control characters and "
                f"{'is' if escaped == 1 else 'are'} spelled with escapes above; for --ids take `store ids --json`",
                err=True,
            )


@store_app.command("dead-letters", cls=HelpedCommand)
def dead_letters_command(store: Annotated[str, _STORE], as_json: Annotated[bool, JSON] = False) -> None:
    """Lists the images that gave no record, one on each line.

    A line has the image id, its location, stage, reason and detail, with tabs between. While a run is at work, those of
    its finished shards are listed. `roibeam extract --retry-dead-letters` tries them again.

    Examples:
        roibeam store dead-letters store/
    """
    from roibeam.pipelines.common.files.dead_letters import read_letters
    from roibeam.pipelines.extract.stores.places import folder_at

    letters = map(asdict, read_letters(folder_at(store)))
    if as_json:
        typer.echo(json_line({"store": store, "dead_letters": list(letters)}))
        return
    for letter in letters:
        typer.echo("\t".join(map(on_a_line, letter.values())))


def _without_controls(text: str) -> str:
    """Control characters as escapes, such as \\n: they would end the line, or be swallowed on their way to a file."""
    return text if text.isprintable() else "".join(on_a_line(c) if category(c) == "Cc" else c for c in text)


# Below the others, so that `--help` lists those first.
store_app.command("repair", cls=HelpedCommand)(repair_command)
store_app.command("copy", cls=HelpedCommand)(copy_command)
store_app.command("plan", cls=HelpedCommand)(plan_command)
store_app.command("diff", cls=HelpedCommand)(diff_command)
store_app.command("import", cls=HelpedCommand)(import_command)
store_app.command("export", cls=HelpedCommand)(export_command)
