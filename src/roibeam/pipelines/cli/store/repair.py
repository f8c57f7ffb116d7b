"""`roibeam store repair`: what is broken or missing in a store, and its repair from the photos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.json_output import json_line


def repair_command(
    store: Annotated[Path, typer.Argument(help="Folder that `roibeam extract` wrote.")],
    images: Annotated[
        str | None,
        typer.Option(
            help="Repair, with the photos or archives below this folder or URL: the one that `roibeam extract` read, "
            "or where it is now [default: only list]."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="The store's weights, where they have moved; as for extract [default: where they were]."),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(help="The store's detector, where its folder has moved: a folder, or toy [default: none]."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or cuda:<n> [default: that of the run that made the store].")
    ] = None,
    retry_dead_letters: Annotated[
        bool,
        typer.Option("--retry-dead-letters/--no-retry-dead-letters", help="Also try images again that failed."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="JSON on standard output, with all ids.")] = False,
) -> None:
    """Lists broken and missing images of a store; with --images extracts these again, and no others.

    Reads every record. Whole records are copied; the new features must be of the store's own kind (the same detector,
    conventions, selection, dtype), or nothing is written. Exit code 0: the store is whole. 1: it needs a repair, or
    images could not be extracted again.
    """
    if images is None:
        given = {"--weights": weights, "--detector": detector, "--device": device}
        names = [name for name, value in given.items() if value is not None]
        names += ["--retry-dead-letters"] if retry_dead_letters else []
        if names:
            raise ValueError(f"{names[0]} is for a repair: give --images FOLDER too")
        _list_damage(store, as_json=as_json)
        return
    if weights is not None and detector is not None:
        raise ValueError("--weights and --detector both name weights; give one of them")
    from roibeam.pipelines.stores.damage_text import repair_json, repair_text
    from roibeam.pipelines.stores.store_repair import RepairSource, repair_store

    source = RepairSource(images, weights, detector, device)
    summary = repair_store(store, source, retry_dead_letters=retry_dead_letters)
    typer.echo(json_line(repair_json(store, summary)) if as_json else repair_text(store, summary))
    if summary.lost:
        raise typer.Exit(1)


def _list_damage(store: Path, *, as_json: bool) -> None:
    from roibeam.pipelines.stores.damage import find_damage
    from roibeam.pipelines.stores.damage_text import damage_json, damage_text

    damage = find_damage(store)
    typer.echo(json_line(damage_json(store, damage)) if as_json else damage_text(store, damage))
    if not damage.is_whole:
        raise typer.Exit(1)
